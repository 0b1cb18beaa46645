/// A PEFT folder: adapter_config.json and adapter_model.safetensors, as `peft` reads and writes
/// them.
///
/// Reading is strict: an option of peft that changes what an adapter computes and that nothing here
/// does is an error that names it, and so are all missing, unknown and misshapen tensors. Plain
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
  std::vector<WeightTensor> tensors;  // as AdapterTable(model, config).tensors() wants them
};

/// `model` is what the adapter is put on. Where its base is a folder of this machine whose
/// config.json describes another model, that is an error, too.
Result<AdapterFolder> read_adapter_folder(const std::filesystem::path& folder,
                                          const ModelConfig& model);

/// The tensors of the PEFT folder that training of an adapter of `wanted` on `model` starts from.
/// Also an error: another rank, scaling or targets, and numbers that are not finite, of which no
/// step would ever be taken.
Result<std::vector<WeightTensor>> read_adapter_start(const std::filesystem::path& folder,
                                                     const ModelConfig& model,
                                                     const AdapterConfig& wanted);

/// Why an adapter of `found` is not one of `wanted`; ok if only seeds and dropout differ, which are
/// of training alone.
Status check_same_adapter(const AdapterConfig& wanted, const AdapterConfig& found);

/// The tensors of a PEFT folder of whatever model, and its scaling: what a snapshot has of it.
Result<std::vector<WeightTensor>> read_adapter_tensors(const std::filesystem::path& folder);

/// Writes both files of an adapter, whose scaling may be among `tensors`, into `folder`, which it
/// makes, and syncs them. `base` is the folder of the model that it was trained on.
Status write_adapter_folder(const std::filesystem::path& folder, const AdapterConfig& config,
                            const std::string& base, std::vector<WeightTensor> tensors);

/// Writes both files of the adapter in `buffer` into `folder`, which it makes, and syncs them.
/// `base` is the folder of the model that it was trained on.
Status write_adapter_folder(const std::filesystem::path& folder, const AdapterTable& table,
                            const std::string& base, const float* buffer);

}  // namespace primerl
