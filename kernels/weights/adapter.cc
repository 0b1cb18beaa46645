#include "kernels/weights/adapter.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <cstring>
#include <set>

namespace primerl {
namespace {

constexpr std::array<std::string_view, 7> kLayerTargets = {
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};

bool is_target(std::string_view name) {
  return name == kHeadTarget || std::ranges::find(kLayerTargets, name) != kLayerTargets.end();
}

std::string known_targets() {
  return fmt::format("{}, {}", fmt::join(kLayerTargets, ", "), kHeadTarget);
}

/// Rank and target, as read from a tensor's name and shape.
struct TensorWords {
  std::string_view target;
  int64_t rank = 0;
};

Result<TensorWords> words_of(const WeightTensor& tensor) {
  const std::string_view name = tensor.name;
  const bool is_a = name.ends_with(kAdapterSuffixA);
  if (!name.starts_with(kAdapterPrefix) || (!is_a && !name.ends_with(kAdapterSuffixB)))
    return error(Code::kInvalid, "tensor '{}' does not belong to an adapter", name)
        .note(
            "tensors of an adapter are base_model.model.MODULE.lora_A.weight and lora_B.weight, "
            "and 'scaling'");
  const auto word = adapter_target(name.substr(0, name.size() - kAdapterSuffixA.size()));
  if (!is_target(word))
    return error(Code::kInvalid, "tensor '{}' is for '{}', which adapters cannot target here", name,
                 word)
        .note(fmt::format("known targets: {}", known_targets()));
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
    return fmt::format("known targets: {}, or {}, alone or with {}", known_targets(), kAllLinear,
                       kHeadTarget);
  };
  if (config.targets.empty())
    return error(Code::kInvalid, "the adapter has no targets").note(known());
  if (std::ranges::all_of(config.targets, [](const std::string& target) {
        return target == kAllLinear || target == kHeadTarget;
      }))
    return ok();
  for (const auto& target : config.targets)
    if (!is_target(target))
      return error(Code::kInvalid, "unknown target '{}' of an adapter", target).note(known());
  return ok();
}

std::vector<std::string> named_targets(const AdapterConfig& config) {
  std::set<std::string> names(config.targets.begin(), config.targets.end());
  if (names.erase(std::string(kAllLinear)) > 0)
    names.insert(kLayerTargets.begin(), kLayerTargets.end());
  return {names.begin(), names.end()};
}

double scaling_of(const AdapterConfig& config) {
  return config.alpha / (config.is_rank_stabilized ? std::sqrt(config.rank) : config.rank);
}

Result<AdapterConfig> config_of_snapshot(const std::vector<WeightTensor>& tensors) {
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
  config.targets.clear();
  for (const auto& target : targets) config.targets.emplace_back(target);
  return config;
}

}  // namespace primerl
