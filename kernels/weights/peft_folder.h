/// A PEFT folder: adapter_config.json and adapter_model.safetensors, as `peft` reads and writes
/// them, whatever the model.
///
/// Reading is strict: an option of peft that changes what an adapter computes, and that is not
/// supported here, is an error that names it. Plain functions, any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/weights/adapter.h"

namespace primerl {

inline constexpr std::string_view kAdapterConfigFile = "adapter_config.json";
inline constexpr std::string_view kAdapterWeightsFile = "adapter_model.safetensors";

/// The copy of the base's head that peft writes into the folder of an adapter on the head.
inline constexpr std::string_view kPeftHeadCopy = "base_model.model.lm_head.base_layer.weight";

struct PeftFolder {
  AdapterConfig config;
  std::string base;                   // base_model_name_or_path; may be empty
  std::vector<WeightTensor> tensors;  // and the scaling, sorted by name
};

/// Reads only adapter_config.json; `tensors` stay empty.
Result<PeftFolder> read_peft_config(const std::filesystem::path& folder);

/// Reads the tensors of the folder's file, without kPeftHeadCopy. The scaling of `config` is one
/// more tensor.
Result<std::vector<WeightTensor>> read_peft_tensors(const std::filesystem::path& folder,
                                                    const AdapterConfig& config);

/// The tensors of a PEFT folder for any model, and its scaling, as a snapshot has them.
Result<std::vector<WeightTensor>> read_adapter_tensors(const std::filesystem::path& folder);

/// Writes both files of an adapter into `folder`, which it creates, and syncs them. `tensors` may
/// contain the scaling. `base` is the folder of the model that it was trained on.
Status write_adapter_folder(const std::filesystem::path& folder, const AdapterConfig& config,
                            const std::string& base, std::vector<WeightTensor> tensors);

/// Why an adapter with config `found` cannot continue as `wanted`. Ok if only seeds and dropout
/// differ, which matter only in training.
Status check_same_adapter(const AdapterConfig& wanted, const AdapterConfig& found);

}  // namespace primerl
