#include "kernels/engine/known_adapters.h"

namespace primerl {
/// The engine has memory for only one set of whole weights.
Status KnownAdapters::check_key(WeightsKey key, const VersionsByKey& versions) const {
  if (applies_adapters()) return ok();
  if (!key.is_whole())
    return error(Code::kUnavailable, "this engine applies whole weights, not {}", key)
        .note("give the engine 'adapter_slots'");
  const auto& held = versions.list();
  if (held.empty() || held.front().key == key) return ok();
  return error(Code::kUnavailable, "this engine has the weights of {}, not those of {}",
               held.front().key, key)
      .note(
          "it has memory for the whole weights of one tenant; give each tenant its own engine, or "
          "give the engine 'adapter_slots'");
}

Result<int32_t> KnownAdapters::number_of(WeightsKey key) const {
  if (!applies_adapters()) return kNoAdapter;
  for (size_t i = 0; i < adapters_.size(); ++i)
    if (adapters_[i] && adapters_[i]->key == key) return static_cast<int32_t>(i);
  return error(Code::kUnavailable, "this engine has no adapter of {}", key)
      .note("apply its first version before sending requests");
}

Result<AdapterConfig> KnownAdapters::check(const WeightSnapshot& snapshot) const {
  ASSIGN_OR_RETURN(const auto config, adapter_config_of(model_, snapshot.tensors));
  if (config.rank > rank_max_)
    return error(Code::kInvalid, "the adapter of {} has rank {}, this engine takes up to {}",
                 snapshot.key, config.rank, rank_max_)
        .note("raise 'max_adapter_rank' of the engine, or train a smaller rank");
  if (!number_of(snapshot.key).ok() && count() >= adapters_max_)
    return error(Code::kExhausted, "the {} adapters of this engine are in use, {} has none",
                 adapters_max_, snapshot.key)
        .note("give the engine a larger 'adapters_max', or more 'adapter_slots'");
  return config;
}

Result<int32_t> KnownAdapters::take(const WeightSnapshot& snapshot, const AdapterConfig& config) {
  const auto known = number_of(snapshot.key);
  const auto free = std::ranges::find_if(adapters_, [](const auto& one) { return !one; });
  const int32_t number = known.ok() ? *known : static_cast<int32_t>(free - adapters_.begin());
  if (adapters_max_ > num_slots_) RETURN_IF_ERROR(copies_.put(number, snapshot.tensors));
  if (!known.ok() && free == adapters_.end()) adapters_.emplace_back();
  adapters_[static_cast<size_t>(number)] = Adapter{snapshot.key, config};
  return number;
}

std::optional<int32_t> KnownAdapters::drop(WeightsKey key) {
  if (!applies_adapters()) return std::nullopt;
  const auto number = number_of(key);
  if (!number.ok()) return std::nullopt;
  adapters_[static_cast<size_t>(*number)].reset();
  copies_.remove(*number);
  return *number;
}

}  // namespace primerl
