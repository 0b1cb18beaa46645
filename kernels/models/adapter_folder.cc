#include "kernels/models/adapter_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <system_error>
#include <utility>

namespace primerl {
namespace {

/// If the base is not on this machine, only the shapes of the tensors are checked.
Status check_base(const std::string& base, const ModelConfig& model) {
  std::error_code fault;
  if (base.empty() || !std::filesystem::exists(std::filesystem::path(base) / "config.json", fault))
    return ok();
  ASSIGN_OR_RETURN(const auto config, read_model_config(base));
  if (is_same_model(config, model)) return ok();
  return error(Code::kInvalid, "it was trained on '{}', whose config.json describes another model",
               base)
      .note("use the model that the adapter was trained on");
}

Status check_tensors(const std::vector<WeightTensor>& tensors, const ModelConfig& model,
                     const AdapterConfig& config) {
  const AdapterTable table(TensorTable(model), config);
  const auto match = match_tensors(table.tensors(), tensors);
  if (match.ok()) return ok();
  return Error(match.error())
      .note(fmt::format("{} says rank {} and targets {}", kAdapterConfigFile, config.rank,
                        fmt::join(config.targets, ", ")));
}

Status check_finite(const std::vector<WeightTensor>& tensors) {
  std::vector<float> numbers;
  for (const auto& tensor : tensors) {
    numbers.resize(tensor.bytes.size() / size_in_bytes(tensor.type));
    convert_to_f32(tensor, 0, std::ssize(numbers), numbers.data());
    const auto broken =
        std::ranges::find_if(numbers, [](float number) { return !std::isfinite(number); });
    if (broken == numbers.end()) continue;
    return error(Code::kInvalid, "number {} of tensor '{}' is {}", broken - numbers.begin(),
                 tensor.name, *broken)
        .note("start from an adapter without NaN or infinity");
  }
  return ok();
}

}  // namespace

Result<AdapterFolder> read_adapter_folder(const std::filesystem::path& folder,
                                          const ModelConfig& model) {
  ASSIGN_OR_RETURN(AdapterFolder read, read_peft_config(folder));
  Status known = check_base(read.base, model);
  if (!known.ok()) return Error(known.error()).while_doing((folder / kAdapterConfigFile).string());
  ASSIGN_OR_RETURN(read.tensors, read_peft_tensors(folder, read.config));
  Status fits = check_tensors(read.tensors, model, read.config);
  if (!fits.ok()) return Error(fits.error()).while_doing((folder / kAdapterWeightsFile).string());
  return read;
}

Result<std::vector<WeightTensor>> read_adapter_start(const std::filesystem::path& folder,
                                                     const ModelConfig& model,
                                                     const AdapterConfig& wanted) {
  ASSIGN_OR_RETURN(auto found, read_adapter_folder(folder, model));
  Status same = check_same_adapter(wanted, found.config);
  if (!same.ok()) return Error(same.error()).while_doing((folder / kAdapterConfigFile).string());
  Status finite = check_finite(found.tensors);
  if (!finite.ok())
    return Error(finite.error()).while_doing((folder / kAdapterWeightsFile).string());
  return std::move(found.tensors);
}

}  // namespace primerl
