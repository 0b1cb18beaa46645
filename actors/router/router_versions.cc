// Which engines have the weights of a request: versions, snapshots and their end.
#include <algorithm>

#include "actors/common/tenant_key.h"
#include "actors/router/router.h"

namespace primerl {

WeightsKey Router::key_of(const HeldRequest& held) const {
  return primerl::key_of(services(), held.tenant, held.request.adapter);
}

/// Frozen engines apply no version, and their requests need none. A snapshot must be there.
bool Router::has_version(const EngineRecord& record, const HeldRequest& held) const {
  const WeightsKey key = key_of(held);
  const PolicyVersion applied = record.applied.of(key);
  return applied >= held.request.version && !(key.is_snapshot() && applied.is_none());
}

bool Router::is_dropped(WeightsKey key) const {
  return key.is_snapshot() && dropped_.find(key) != nullptr;
}

bool Router::take_versions(EngineRecord& record, const EngineLoad& load) {
  std::vector<WeightsKey> gone = load.gone;
  // A drop was reported to an earlier connection, or to this router after its saved state.
  if (load.is_whole)
    for (const auto& [key, version] : record.applied.list())
      if (key.is_snapshot() && load.applied.of(key).is_none()) gone.push_back(key);
  for (const WeightsKey key : gone) drop(record, key);
  for (const auto& [key, version] : load.applied.list()) {
    if (version <= record.applied.of(key) || !is_present(services(), key)) continue;
    in_use_is_stale_ = true;
    if (record.applied.set(key, version)) record.behind.erase(key);
  }
  return !gone.empty();
}

/// Only engines that the broadcaster told to drop the snapshot do so, and it tells all. So the
/// others need not be asked.
void Router::drop(EngineRecord& record, WeightsKey key) {
  record.applied.erase(key);
  record.behind.erase(key);
  in_use_is_stale_ = true;
  dropped_.put(key, {}, kWeightsKeysMax);
  const auto has_key = [&](const HeldRequest& held) { return key_of(held) == key; };
  for (HeldRequest& held : held_.take_all(key.tenant, has_key))
    refuse_later(std::move(held), FinishReason::kRefused, detail_of_dropped(key));
}

std::string Router::detail_of_dropped(WeightsKey key) {
  return fmt::format("{} was dropped: its requests are refused", key);
}

std::map<WeightsKey, std::vector<InstanceId>> Router::engines_in_use() const {
  std::map<WeightsKey, std::vector<InstanceId>> in_use;
  for (const InstanceId engine : prefill_.targets()) {
    const auto found = engines_.find(engine);
    if (found == engines_.end() || found->second.is_down) continue;
    const EngineRecord& record = found->second;
    for (const auto& [key, version] : record.applied.list()) {
      const auto behind = record.behind.find(key);
      if (behind == record.behind.end() || !behind->second.is_too_long)
        in_use[key].push_back(engine);
    }
  }
  const Time now = services().now();
  for (auto& [key, engines] : in_use) {
    const bool is_any_closed = std::ranges::any_of(engines, [&](InstanceId engine) {
      return engines_.at(engine).breaker.state(now) == CircuitBreaker::State::kClosed;
    });
    if (is_any_closed)
      std::erase_if(engines, [&](InstanceId engine) { return !is_allowed(engines_.at(engine)); });
  }
  return in_use;
}

}  // namespace primerl
