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

std::string Broadcaster::name_of(WeightsKey key, PolicyVersion version) const {
  return fmt::format("version {} of tenant '{}'", version, services().tenant(key.tenant).name);
}

Status Broadcaster::on_weights(const WeightsReady& ready) {
  const WeightsKey key = weights_key(services(), services().delivery().tenant);
  KeyRecord& record = keys_[key];
  if (record.is_given_up) return ok();
  record.newest = std::max(record.newest, ready.version);
  make_live_if_applied(key, record);
  arm();
  return ok();
}

void Broadcaster::begin(WeightsKey key, KeyRecord& record, PolicyVersion version) {
  record.updating = version;
  for (const InstanceId engine : update_.targets()) record.engines.try_emplace(engine);
  record.late_at = services().now() + options_.applied_max;
  send_update(key, version);
}

void Broadcaster::send_update(WeightsKey key, PolicyVersion version) {
  update_.send({.version = version}, for_tenant(key.tenant));
}

Status Broadcaster::on_applied(const PolicyApplied& applied) {
  const WeightsKey key = weights_key(services(), services().delivery().tenant);
  KeyRecord& record = keys_[key];
  if (record.is_given_up) return ok();
  EngineRecord& engine = record.engines[applied.engine];
  if (!applied.fault.empty()) {
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
    if (!updating.is_none() && all_have_refused) {
      record = KeyRecord();
      record.is_given_up = true;
      services().fail_tenant(
          key.tenant,
          error(Code::kInvalid, "no engine could apply {}: {}", name_of(key, updating),
                applied.fault)
              .note("engines and learner need models of the same shape, made for this tenant"));
    }
  } else {
    engine.applied = std::max(engine.applied, applied.version);
    if (engine.is_set_aside && engine.applied >= std::max(record.live, record.updating)) {
      engine.is_set_aside = false;
      services().log(LogLevel::kInfo, fmt::format("engine instance {} is back with {}",
                                                  applied.engine, name_of(key, engine.applied)));
    }
  }
  make_live_if_applied(key, record);
  arm();
  return ok();
}

void Broadcaster::make_live_if_applied(WeightsKey key, KeyRecord& record) {
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
    live_out_.send({.version = record.live}, for_tenant(key.tenant));
  }
  if (record.newest > record.live) begin(key, record, record.newest);
}

Status Broadcaster::on_timeout() {
  armed_.reset();
  for (auto& [key, record] : keys_)
    if (record.late_at && *record.late_at <= services().now()) set_late_aside(key, record);
  arm();
  return ok();
}

void Broadcaster::set_late_aside(WeightsKey key, KeyRecord& record) {
  record.late_at.reset();
  for (auto& [id, engine] : record.engines) {
    if (engine.is_set_aside || engine.applied >= record.updating) continue;
    engine.is_set_aside = true;
    services().count("engines_set_aside", 1);
    services().log(LogLevel::kWarning,
                   fmt::format("engine instance {} is set aside: {} was not applied within {}", id,
                               name_of(key, record.updating), to_string(options_.applied_max)));
  }
  make_live_if_applied(key, record);
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
  for (auto& [key, record] : keys_) {
    if (event.kind == PeerEvent::Kind::kDown) {
      record.engines.erase(event.instance);
      make_live_if_applied(key, record);
    } else if (is_engine) {
      // A new engine is not waited for. Engines that have the version already ignore the repeated
      // update.
      record.engines[event.instance] = {
          .applied = PolicyVersion(), .is_set_aside = true, .refused = {}};
      const PolicyVersion version = record.updating.is_none() ? record.live : record.updating;
      if (!version.is_none()) send_update(key, version);
    }
  }
  arm();
  return ok();
}

}  // namespace primerl
