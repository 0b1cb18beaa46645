#include "kernels/models/adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "graph/base/random.h"

namespace primerl {
namespace {

constexpr std::array<std::string_view, 7> kTargets = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                      "gate_proj", "up_proj", "down_proj"};
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kSuffixA = ".lora_A.weight", kSuffixB = ".lora_B.weight";
constexpr std::string_view kWeight = ".weight";

bool is_target(std::string_view name) {
  return std::find(kTargets.begin(), kTargets.end(), name) != kTargets.end();
}

/// "q_proj" of "model.layers.0.self_attn.q_proj".
std::string_view last_word(std::string_view module) { return module.substr(module.rfind('.') + 1); }

std::vector<AdapterLinear> linears_of(const TensorTable& model, const AdapterConfig& config) {
  const auto targets = named_targets(config);
  std::vector<AdapterLinear> linears;
  for (const auto& slice : model.slices()) {
    if (slice.shape.size() != 2 || !slice.name.ends_with(kWeight)) continue;
    const std::string module = slice.name.substr(0, slice.name.size() - kWeight.size());
    if (!std::binary_search(targets.begin(), targets.end(), last_word(module))) continue;
    const Parameter& parameter = model.parameters()[slice.parameter];
    AdapterLinear& linear = linears.emplace_back();
    linear.module = module;
    linear.parameter = slice.parameter;
    linear.outputs = slice.shape[0];
    linear.inputs = slice.shape[1];
    const int64_t columns = parameter.shape[parameter.shape.size() - 2];
    const int64_t first = (slice.offset - parameter.offset) / linear.inputs;
    linear.group = first / columns;
    linear.column = first % columns;
  }
  std::sort(linears.begin(), linears.end(), [](const auto& a, const auto& b) {
    return std::tie(a.parameter, a.group, a.column) < std::tie(b.parameter, b.group, b.column);
  });
  for (size_t i = 0; i < linears.size(); ++i) {
    linears[i].a = 2 * i;
    linears[i].b = 2 * i + 1;
  }
  return linears;
}

std::vector<Parameter> parameters_of(const TensorTable& model, const AdapterConfig& config,
                                     std::span<const AdapterLinear> linears) {
  std::vector<Parameter> parameters;
  const int64_t rank = config.rank;
  for (const auto& linear : linears) {
    const ParameterKind kind = model.parameters()[linear.parameter].kind;
    const std::string name = std::string(kPrefix) + linear.module;
    parameters.push_back({name + std::string(kSuffixA), kind, {rank, linear.inputs}});
    parameters.push_back({name + std::string(kSuffixB), kind, {linear.outputs, rank}});
  }
  parameters.push_back({std::string(kAdapterScaling), ParameterKind::kNorm, {1}, false});
  return parameters;
}

/// Rank and target, as read from a tensor's name and shape.
struct TensorWords {
  std::string_view target;
  int64_t rank = 0;
};

Result<TensorWords> words_of(const WeightTensor& tensor) {
  const std::string_view name = tensor.name;
  const bool is_a = name.ends_with(kSuffixA);
  if (!name.starts_with(kPrefix) || (!is_a && !name.ends_with(kSuffixB)))
    return error(Code::kInvalid, "tensor '{}' does not belong to an adapter", name)
        .note(
            "tensors of an adapter are base_model.model.MODULE.lora_A.weight and lora_B.weight, "
            "and 'scaling'");
  const auto word = last_word(name.substr(0, name.size() - kSuffixA.size()));
  if (!is_target(word))
    return error(Code::kInvalid, "tensor '{}' is for '{}', which adapters cannot target here", name,
                 word)
        .note(fmt::format("known targets: {}", fmt::join(kTargets, ", ")));
  if (tensor.shape.size() != 2)
    return error(Code::kInvalid, "tensor '{}' has {} dimensions, it needs 2", name,
                 tensor.shape.size());
  return TensorWords{word, tensor.shape[is_a ? 0 : 1]};
}

}  // namespace

Status validate(const AdapterConfig& config) {
  if (config.rank < 1 || config.rank > kAdapterRankMax)
    return error(Code::kInvalid, "the adapter's rank is {}, it must be 1 to {}", config.rank,
                 kAdapterRankMax);
  if (!(config.alpha > 0) || !std::isfinite(config.alpha))
    return error(Code::kInvalid, "the adapter's alpha is {}, it must be above 0", config.alpha);
  if (!(config.dropout >= 0 && config.dropout < 1))
    return error(Code::kInvalid, "the adapter's dropout is {}, it must be from 0 to below 1",
                 config.dropout);
  const auto known = [] {
    return fmt::format("known targets: {}, or {} alone", fmt::join(kTargets, ", "), kAllLinear);
  };
  if (config.targets.empty())
    return error(Code::kInvalid, "the adapter has no targets").note(known());
  if (config.targets.size() == 1 && config.targets.front() == kAllLinear) return ok();
  for (const auto& target : config.targets)
    if (!is_target(target))
      return error(Code::kInvalid, "unknown target '{}' of an adapter", target).note(known());
  return ok();
}

std::vector<std::string> named_targets(const AdapterConfig& config) {
  const bool is_all = config.targets.front() == kAllLinear;
  std::set<std::string> names(config.targets.begin(), config.targets.end());
  if (is_all) names = {kTargets.begin(), kTargets.end()};
  return {names.begin(), names.end()};
}

double scaling_of(const AdapterConfig& config) {
  return config.alpha / (config.is_rank_stabilized ? std::sqrt(config.rank) : config.rank);
}

AdapterTable::AdapterTable(const TensorTable& model, AdapterConfig config)
    : config_(std::move(config)),
      linears_(linears_of(model, config_)),
      tensors_(parameters_of(model, config_, linears_)) {}

Result<AdapterConfig> told_adapter(const std::vector<WeightTensor>& tensors) {
  AdapterConfig config;
  std::set<std::string_view> targets;
  const WeightTensor* scaling = nullptr;
  int64_t rank = 0;
  for (const auto& tensor : tensors) {
    if (tensor.name == kAdapterScaling) {
      scaling = &tensor;
      continue;
    }
    ASSIGN_OR_RETURN(const TensorWords words, words_of(tensor));
    if (rank == 0) rank = words.rank;
    if (words.rank != rank)
      return error(Code::kInvalid, "tensor '{}' has rank {}, others of this adapter have {}",
                   tensor.name, words.rank, rank)
          .note("all linears of an adapter have one rank");
    targets.insert(words.target);
  }
  if (targets.empty())
    return error(Code::kInvalid, "there is no tensor of an adapter among {}", tensors.size());
  if (rank < 1 || rank > kAdapterRankMax)
    return error(Code::kInvalid, "the adapter's rank is {}, it must be 1 to {}", rank,
                 kAdapterRankMax);
  float factor = 0;
  if (scaling == nullptr || scaling->type != DataType::kF32 ||
      scaling->bytes.size() != sizeof(factor))
    return error(Code::kInvalid, "tensor '{}' of shape [1] is missing", kAdapterScaling);
  std::memcpy(&factor, scaling->bytes.bytes().data(), sizeof(factor));
  config.rank = static_cast<int32_t>(rank);
  config.alpha = static_cast<double>(factor) * config.rank;  // exact
  config.targets.assign(targets.begin(), targets.end());
  return config;
}

Result<AdapterConfig> adapter_config_of(const TensorTable& model,
                                        const std::vector<WeightTensor>& tensors) {
  ASSIGN_OR_RETURN(AdapterConfig config, told_adapter(tensors));
  Status fits = [&]() -> Status {
    const auto match = match_tensors(AdapterTable(model, config).tensors(), tensors);
    return match.ok() ? ok() : Status(match.error());
  }();
  if (!fits.ok()) return Error(fits.error());
  return config;
}

void initialize_adapter(const AdapterTable& table, float* buffer) {
  const TensorTable& tensors = table.tensors();
  std::fill_n(buffer, tensors.count(), 0.0F);
  for (const auto& linear : table.linears()) {
    const Parameter& a = tensors.parameters()[linear.a];
    const double bound = 1 / std::sqrt(static_cast<double>(linear.inputs));
    RandomStream random(mix(table.config().init_seed, stable_hash(a.name)));
    for (int64_t i = 0; i < a.count; ++i)
      buffer[a.offset + i] = static_cast<float>(bound * (2 * random.uniform() - 1));
  }
  buffer[tensors.at(kAdapterScaling).offset] = static_cast<float>(scaling_of(table.config()));
}

void merge_adapter(const TensorTable& model, const AdapterTable& table, const float* adapter,
                   float* weights) {
  const auto scaling = static_cast<float>(scaling_of(table.config()));
  const int64_t rank = table.config().rank;
  const auto of_adapter = [&](size_t parameter) {
    return adapter + table.tensors().parameters()[parameter].offset;
  };
  for (const AdapterLinear& linear : table.linears()) {
    const Parameter& matrix = model.parameters()[linear.parameter];
    const int64_t rows = matrix.shape[matrix.shape.size() - 2];
    float* weight = weights + matrix.offset + (linear.group * rows + linear.column) * linear.inputs;
    const float *a = of_adapter(linear.a), *b = of_adapter(linear.b);
    std::vector<float> added(static_cast<size_t>(linear.inputs));
    for (int64_t output = 0; output < linear.outputs; ++output, weight += linear.inputs) {
      std::fill(added.begin(), added.end(), 0.0F);
      for (int64_t r = 0; r < rank; ++r) {
        const float factor = b[output * rank + r];
        for (size_t i = 0; i < added.size(); ++i)
          added[i] += factor * a[static_cast<size_t>(r * linear.inputs) + i];
      }
      for (size_t i = 0; i < added.size(); ++i) weight[i] += scaling * added[i];
    }
  }
}

}  // namespace primerl
