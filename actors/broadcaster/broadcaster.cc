#include "actors/broadcaster/broadcaster.h"

#include <algorithm>

#include "actors/common/tenant_key.h"

namespace primerl {
namespace {

/// The burst of an output that sends one message per tenant: when an engine comes or goes, the
/// weights of every tenant are concerned.
Amount one_of_each_tenant() {
  return {[](const void*, std::span<const Tenant> tenants) {
            return std::max<int64_t>(static_cast<int64_t>(tenants.size()), 1);
          },
          "tenants"};
}

}  // namespace

Contract Broadcaster::contract() {
  return ContractOf<Broadcaster, BroadcasterOptions>("broadcaster",
                                                     "makes new policy versions live")
      .option("applied_max", &BroadcasterOptions::applied_max, above(0),
              "how long an engine may take to apply a version before it is set aside")
      .in("weights", &Broadcaster::on_weights, "a new version is in the channel")
      .in("applied", &Broadcaster::on_applied, "an engine has applied a version", latest_wins())
      .timer("applied", &Broadcaster::on_timeout,
             "an engine did not apply a version within applied_max")
      .out("update", &Broadcaster::update_, "apply this version", broadcast(),
           burst(one_of_each_tenant()))
      .out("live", &Broadcaster::live_out_, "every engine in use has this version", broadcast(),
           burst(one_of_each_tenant()))
      .stops_on_error()
      .single()
      .state([](auto& f) { f("keys", &Broadcaster::keys_)("armed", &Broadcaster::armed_); });
}

Status Broadcaster::on_tenant(TenantSlot slot, TenantChange::Kind kind) {
  if (kind != TenantChange::Kind::kLeave) return ok();
  std::erase_if(keys_, [slot](const auto& each) { return each.first.tenant == slot; });
  arm();
  return ok();
}

std::string Broadcaster::name_of(WeightsKey key, PolicyVersion version) const {
  const std::string& tenant = services().tenant(key.tenant).name;
  return key.is_snapshot()
             ? fmt::format("snapshot {} of tenant '{}'", key.snapshot_number(), tenant)
             : fmt::format("version {} of tenant '{}'", version, tenant);
}

Status Broadcaster::on_weights(const WeightsReady& ready) {
  const WeightsKey key = key_of(services(), services().delivery().tenant, ready.adapter);
  if (ready.is_dropped) return drop(key);
  if (!keys_.contains(key) && keys_.size() >= keys_max_)
    return error(Code::kExhausted, "{} cannot become live: there are {} weights keys already",
                 name_of(key, ready.version), keys_max_)
        .note("a key is a tenant, or a snapshot of one: drop snapshots that are not used");
  KeyRecord& record = keys_[key];
  if (record.is_given_up) return ok();
  Changes changes;
  record.newest = std::max(record.newest, ready.version);
  make_live_if_applied(key, record, changes);
  send(changes);
  arm();
  return ok();
}

Status Broadcaster::drop(WeightsKey key) {
  if (!key.is_snapshot())
    return error(Code::kInvalid, "the moving weights of tenant '{}' cannot be dropped",
                 services().tenant(key.tenant).name)
        .note("only snapshots can");
  if (keys_.erase(key) == 0) return ok();
  send({{key.moving_key(), {.live = {}, .update = key}}});
  arm();
  return ok();
}

void Broadcaster::begin(WeightsKey key, KeyRecord& record, PolicyVersion version,
                        Changes& changes) {
  record.updating = version;
  for (const InstanceId engine : update_.targets()) record.engines.try_emplace(engine);
  record.late_at = services().now() + options_.applied_max;
  auto& update = changes[key.moving_key()].update;
  if (!update) update = key;
}

template <class F>
std::vector<AdapterVersion> Broadcaster::others_of(WeightsKey key, const F& version_of) const {
  std::vector<AdapterVersion> others;
  for (auto each = keys_.lower_bound({key.tenant, AdapterId(0)});
       each != keys_.end() && each->first.tenant == key.tenant; ++each) {
    const PolicyVersion version = version_of(each->second);
    if (each->first == key || each->first.moving_key() != key.moving_key() || version.is_none())
      continue;
    others.push_back({adapter_in_message(each->first), version});
  }
  return others;
}

PolicyUpdate Broadcaster::update_of(WeightsKey key) const {
  const auto wanted = [](const KeyRecord& record) {
    return record.updating.is_none() ? record.live : record.updating;
  };
  const auto record = keys_.find(key);
  PolicyUpdate update;
  update.adapter = adapter_in_message(key);
  update.is_dropped = record == keys_.end();
  if (!update.is_dropped) update.version = wanted(record->second);
  update.others = others_of(key, wanted);
  return update;
}

PolicyLive Broadcaster::live_of(WeightsKey key) const {
  return {.version = keys_.at(key).live,
          .adapter = adapter_in_message(key),
          .others = others_of(key, [](const KeyRecord& record) { return record.live; })};
}

void Broadcaster::send(const Changes& changes) {
  for (const auto& [moving, change] : changes) {
    if (change.live) live_out_.send(live_of(*change.live), for_tenant(moving.tenant));
    if (change.update) update_.send(update_of(*change.update), for_tenant(moving.tenant));
  }
}

Broadcaster::KeyRecord* Broadcaster::record_of(WeightsKey key) {
  if (!key.is_snapshot()) return &keys_[key];
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : &found->second;
}

Status Broadcaster::on_applied(const PolicyApplied& applied) {
  const TenantSlot tenant = services().delivery().tenant;
  Changes changes;
  const auto take = [&](WeightsKey key, PolicyVersion version, bool is_fault) {
    KeyRecord* record = record_of(key);
    if (record == nullptr || record->is_given_up) return;
    if (is_fault)
      take_fault(key, *record, applied);
    else
      take_applied(key, *record, applied.engine, version);
    make_live_if_applied(key, *record, changes);
  };
  take(key_of(services(), tenant, applied.adapter), applied.version, !applied.fault.empty());
  // The answer for another key may have been replaced by this one.
  for (const AdapterVersion& other : applied.others)
    take(key_of(services(), tenant, other.adapter), other.version, false);
  send(changes);
  arm();
  return ok();
}

void Broadcaster::take_applied(WeightsKey key, KeyRecord& record, InstanceId id,
                               PolicyVersion version) {
  EngineRecord& engine = record.engines[id];
  engine.applied = std::max(engine.applied, version);
  if (!engine.is_set_aside || engine.applied < std::max(record.live, record.updating)) return;
  engine.is_set_aside = false;
  services().log(LogLevel::kInfo, fmt::format("engine instance {} is back with {}", id,
                                              name_of(key, engine.applied)));
}

void Broadcaster::take_fault(WeightsKey key, KeyRecord& record, const PolicyApplied& applied) {
  EngineRecord& engine = record.engines[applied.engine];
  if (!engine.is_set_aside)
    services().log(LogLevel::kError,
                   fmt::format("engine instance {} is set aside: it could not apply {}: {}",
                               applied.engine, name_of(key, applied.version), applied.fault));
  engine.is_set_aside = true;
  engine.refused = std::max(engine.refused, applied.version);
  const PolicyVersion updating = record.updating;
  const bool all_have_refused =
      std::all_of(record.engines.begin(), record.engines.end(), [updating](const auto& each) {
        return each.second.refused >= updating && each.second.applied < updating;
      });
  if (updating.is_none() || !all_have_refused) return;
  record = KeyRecord();
  record.is_given_up = true;
  services().fail_tenant(
      key.tenant,
      error(Code::kInvalid, "no engine could apply {}: {}", name_of(key, updating), applied.fault)
          .note("engines and learner need models of the same shape, made for this "
                "tenant"));
}

void Broadcaster::make_live_if_applied(WeightsKey key, KeyRecord& record, Changes& changes) {
  if (!record.updating.is_none()) {
    bool has_one = false;
    for (const auto& [id, engine] : record.engines) {
      if (engine.is_set_aside) continue;
      if (engine.applied < record.updating) return;
      has_one = true;
    }
    // If every engine is set aside, no version becomes live until the first engine applies it.
    if (!has_one) return;
    record.live = record.updating;
    record.updating = PolicyVersion();
    record.late_at.reset();
    auto& live = changes[key.moving_key()].live;
    if (!live) live = key;
  }
  if (record.newest > record.live) begin(key, record, record.newest, changes);
}

Status Broadcaster::on_timeout() {
  armed_.reset();
  Changes changes;
  for (auto& [key, record] : keys_)
    if (record.late_at && *record.late_at <= services().now()) set_late_aside(key, record, changes);
  send(changes);
  arm();
  return ok();
}

void Broadcaster::set_late_aside(WeightsKey key, KeyRecord& record, Changes& changes) {
  record.late_at.reset();
  for (auto& [id, engine] : record.engines) {
    if (engine.is_set_aside || engine.applied >= record.updating) continue;
    engine.is_set_aside = true;
    services().count("engines_set_aside", 1);
    services().log(LogLevel::kWarning,
                   fmt::format("engine instance {} is set aside: {} was not applied within {}", id,
                               name_of(key, record.updating), to_string(options_.applied_max)));
  }
  make_live_if_applied(key, record, changes);
}

void Broadcaster::arm() {
  std::optional<Time> first;
  for (const auto& [key, record] : keys_)
    if (record.late_at) first = first ? std::min(*first, *record.late_at) : *record.late_at;
  if (first == armed_) return;
  armed_ = first;
  if (first)
    services().set_timer("applied", std::max(*first - services().now(), Duration()));
  else
    services().cancel_timer("applied");
}

Status Broadcaster::on_peer(const PeerEvent& event) {
  const auto targets = update_.targets();
  const bool is_engine = std::find(targets.begin(), targets.end(), event.instance) != targets.end();
  Changes changes;
  for (auto& [key, record] : keys_) {
    if (event.kind == PeerEvent::Kind::kDown) {
      record.engines.erase(event.instance);
      make_live_if_applied(key, record, changes);
    } else if (is_engine) {
      // A new engine is not waited for. Engines that have the version already ignore the repeated
      // update.
      record.engines[event.instance] = {
          .applied = PolicyVersion(), .is_set_aside = true, .refused = {}};
      auto& update = changes[key.moving_key()].update;
      if (!update && !(record.updating.is_none() && record.live.is_none())) update = key;
    }
  }
  send(changes);
  arm();
  return ok();
}

}  // namespace primerl
