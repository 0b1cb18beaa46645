/// A PEFT folder: adapter_config.json and adapter_model.safetensors, as `peft` reads and writes
/// them.
///
/// Reading is strict: a peft option that changes what an adapter computes and is not supported here
/// is an error that names it. All missing, unknown and misshapen tensors are errors too. Plain
/// functions, any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/models/adapter.h"
#include "kernels/models/config.h"

namespace primerl {

struct AdapterFolder {
  AdapterConfig config;
  std::string base;                   // base_model_name_or_path; may be empty
  std::vector<WeightTensor> tensors;  // as AdapterTable(model, config).tensors() expects them
};

/// `model` is the model that the adapter will change. It is an error if the adapter's base is a
/// folder on this machine whose config.json describes another model.
Result<AdapterFolder> read_adapter_folder(const std::filesystem::path& folder,
                                          const ModelConfig& model);

/// The tensors of the PEFT folder from which training of an adapter of `wanted` on `model` starts.
/// Another rank, scaling or other targets are errors. NaN and infinity are errors too: with them no
/// training step would ever succeed.
Result<std::vector<WeightTensor>> read_adapter_start(const std::filesystem::path& folder,
                                                     const ModelConfig& model,
                                                     const AdapterConfig& wanted);

/// Why an adapter with config `found` cannot continue as `wanted`. Ok if only seeds and dropout
/// differ, which matter only in training.
Status check_same_adapter(const AdapterConfig& wanted, const AdapterConfig& found);

/// The tensors of a PEFT folder for any model, and its scaling, as a snapshot has them.
Result<std::vector<WeightTensor>> read_adapter_tensors(const std::filesystem::path& folder);

/// Writes both files of an adapter into `folder`, which it creates, and syncs them. `tensors` may
/// contain the scaling. `base` is the folder of the model that it was trained on.
Status write_adapter_folder(const std::filesystem::path& folder, const AdapterConfig& config,
                            const std::string& base, std::vector<WeightTensor> tensors);

/// Writes both files of the adapter in `buffer` into `folder`, which it creates, and syncs them.
/// `base` is the folder of the model that it was trained on.
Status write_adapter_folder(const std::filesystem::path& folder, const AdapterTable& table,
                            const std::string& base, const float* buffer);

}  // namespace primerl
