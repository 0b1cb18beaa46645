#include "kernels/models/adapter_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <system_error>
#include <utility>

#include "kernels/weights/safetensors.h"

namespace primerl {
namespace {

constexpr std::string_view kHeadTensor = "lm_head.weight";
constexpr std::string_view kEmbeddingTensor = "model.embed_tokens.weight";

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

/// What rounding to bfloat16 may change, relative, and of numbers near 0.
constexpr float kRoundedBy = 1.0F / 256, kSmallest = 1e-7F;

bool are_alike(const WeightTensor& one, const WeightTensor& other) {
  constexpr int64_t kCompared = int64_t{1} << 20;  // elements at a time
  const auto count = static_cast<int64_t>(one.bytes.size() / size_in_bytes(one.type));
  std::vector<float> a(static_cast<size_t>(std::min(count, kCompared))), b(a.size());
  for (int64_t begin = 0; begin < count; begin += kCompared) {
    const int64_t size = std::min(kCompared, count - begin);
    convert_to_f32(one, begin, size, a.data());
    convert_to_f32(other, begin, size, b.data());
    for (size_t i = 0; i < static_cast<size_t>(size); ++i)
      if (!(std::abs(a[i] - b[i]) <= kRoundedBy * std::abs(b[i]) + kSmallest)) return false;
  }
  return true;
}

/// peft adds the base's head to the file of an adapter on it, and loads that copy again: another
/// head is another base. If the base is not on this machine, only the copy's shape is checked.
Status check_head_copy(const std::filesystem::path& folder, const AdapterFolder& read,
                       const ModelConfig& model) {
  if (!targets_head(read.config.targets)) return ok();
  ASSIGN_OR_RETURN(const auto tensors, read_safetensors(folder / kAdapterWeightsFile));
  const auto copy = std::ranges::find(tensors, kPeftHeadCopy, &WeightTensor::name);
  if (copy == tensors.end()) return ok();
  const std::vector<int64_t> shape = {model.vocab_size, model.hidden_size};
  if (copy->shape != shape)
    return error(Code::kInvalid, "tensor '{}' has shape [{}], the model's head has [{}]",
                 copy->name, fmt::join(copy->shape, ", "), fmt::join(shape, ", "));
  const auto base = read_model_tensors(read.base);
  if (!base.ok()) return ok();
  for (const std::string_view name : {kHeadTensor, kEmbeddingTensor}) {
    const auto head = std::ranges::find(*base, name, &WeightTensor::name);
    if (head == base->end()) continue;
    if (head->shape == shape && are_alike(*copy, *head)) return ok();
    return error(Code::kInvalid, "tensor '{}' is not '{}' of the base '{}'", copy->name, name,
                 read.base)
        .note("a changed head is not part of an adapter: train from the base's own");
  }
  return ok();
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
  if (fits.ok()) fits = check_head_copy(folder, read, model);
  if (!fits.ok()) return Error(fits.error()).while_doing((folder / kAdapterWeightsFile).string());
  return read;
}

Result<MergedModel> merge_adapter_folder(const ModelFolder& model,
                                         const std::vector<WeightTensor>& tensors,
                                         const AdapterFolder& adapter) {
  const TensorTable before(model.config);
  MergedModel merged{model, std::vector<float>(static_cast<size_t>(before.count())),
                     needs_own_head(before, adapter.config)};
  RETURN_IF_ERROR(fill_parameters(before, tensors, merged.weights.data()));
  if (merged.has_new_head) {
    auto all = copy_parameters(before, merged.weights.data());
    all.push_back(*std::ranges::find(all, kEmbeddingTensor, &WeightTensor::name));
    all.back().name = kHeadTensor;
    std::ranges::sort(all, {}, &WeightTensor::name);
    merged.model.config.is_tied = false;
    merged.model.config.source.set("tie_word_embeddings", false);
    const TensorTable untied(merged.model.config);
    merged.weights.assign(static_cast<size_t>(untied.count()), 0.0F);
    RETURN_IF_ERROR(fill_parameters(untied, all, merged.weights.data()));
  }
  const TensorTable table(merged.model.config);
  const AdapterTable linears(table, adapter.config);
  std::vector<float> added(static_cast<size_t>(linears.tensors().count()));
  RETURN_IF_ERROR(fill_parameters(linears.tensors(), adapter.tensors, added.data()));
  merge_adapter(table, linears, added.data(), merged.weights.data());
  return merged;
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
