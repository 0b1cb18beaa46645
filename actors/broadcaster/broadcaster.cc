#include "actors/broadcaster/broadcaster.h"

#include <algorithm>

namespace primerl {

Contract Broadcaster::contract() {
  return ContractOf<Broadcaster, BroadcasterOptions>("broadcaster",
                                                     "makes new policy versions live")
      .option("applied_max", &BroadcasterOptions::applied_max, above(0),
              "how long an engine may take to apply a version before it is set aside")
      .in("weights", &Broadcaster::on_weights, "a new version lies in the channel")
      .in("applied", &Broadcaster::on_applied, "an engine has applied a version", latest_wins())
      .timer("applied", &Broadcaster::on_timeout, "an engine took longer than applied_max")
      // One that a settled update starts, and one to an engine that came back.
      .out("update", &Broadcaster::update_, "apply this version", broadcast(), burst(2))
      .out("live", &Broadcaster::live_out_, "every engine in use has this version")
      .stops_on_error()
      .single()
      .one_tenant()
      .state([](auto& f) {
        using B = Broadcaster;
        f("engines", &B::engines_)("live", &B::live_)("updating", &B::updating_)("newest",
                                                                                 &B::newest_);
      });
}

Status Broadcaster::start(Resources&) {
  tenant_ = services().tenants().front();
  return ok();
}

Status Broadcaster::on_weights(const WeightsReady& ready) {
  newest_ = std::max(newest_, ready.version);
  settle();
  return ok();
}

void Broadcaster::begin(PolicyVersion version) {
  updating_ = version;
  for (const InstanceId engine : update_.targets()) engines_.try_emplace(engine);
  services().set_timer("applied", options_.applied_max);
  send_update(version);
}

void Broadcaster::send_update(PolicyVersion version) {
  update_.send({.version = version}, for_tenant(tenant_));
}

Status Broadcaster::on_applied(const PolicyApplied& applied) {
  EngineRecord& engine = engines_[applied.engine];
  if (!applied.fault.empty()) {
    if (!engine.is_set_aside)
      services().log(
          LogLevel::kError,
          fmt::format("engine instance {} is set aside: it could not apply version {}: {}",
                      applied.engine, applied.version, applied.fault));
    engine.is_set_aside = true;
    engine.refused = std::max(engine.refused, applied.version);
    if (!updating_.is_none() && all_have_refused(updating_)) {
      services().finish(tenant_);
      return error(Code::kInvalid, "no engine could apply version {}: {}", updating_, applied.fault)
          .note("the engines and the learner must be made from models of one shape");
    }
    settle();
    return ok();
  }
  engine.applied = std::max(engine.applied, applied.version);
  if (engine.is_set_aside && engine.applied >= std::max(live_, updating_)) {
    engine.is_set_aside = false;
    services().log(LogLevel::kInfo, fmt::format("engine instance {} is back with version {}",
                                                applied.engine, engine.applied));
  }
  settle();
  return ok();
}

bool Broadcaster::all_have_refused(PolicyVersion version) const {
  return std::all_of(engines_.begin(), engines_.end(), [version](const auto& each) {
    return each.second.refused >= version && each.second.applied < version;
  });
}

void Broadcaster::settle() {
  if (!updating_.is_none()) {
    bool has_one = false;
    for (const auto& [id, engine] : engines_) {
      if (engine.is_set_aside) continue;
      if (engine.applied < updating_) return;
      has_one = true;
    }
    // With every engine set aside nothing is live; the first one that applies makes it so.
    if (!has_one) return;
    live_ = updating_;
    updating_ = PolicyVersion();
    services().cancel_timer("applied");
    live_out_.send({.version = live_}, for_tenant(tenant_));
  }
  if (newest_ > live_) begin(newest_);
}

Status Broadcaster::on_timeout() {
  for (auto& [id, engine] : engines_) {
    if (engine.is_set_aside || engine.applied >= updating_) continue;
    engine.is_set_aside = true;
    services().count("engines_set_aside", 1);
    services().log(LogLevel::kWarning,
                   fmt::format("engine instance {} is set aside: version {} was not applied within "
                               "{}",
                               id, updating_, to_string(options_.applied_max)));
  }
  settle();
  return ok();
}

Status Broadcaster::on_peer(const PeerEvent& event) {
  if (event.kind == PeerEvent::Kind::kDown) {
    engines_.erase(event.instance);
    settle();
    return ok();
  }
  const auto targets = update_.targets();
  if (std::find(targets.begin(), targets.end(), event.instance) == targets.end()) return ok();
  // Nobody waits for a newcomer; applying a version again does nothing to the others.
  engines_[event.instance] = {.applied = PolicyVersion(), .is_set_aside = true, .refused = {}};
  const PolicyVersion version = updating_.is_none() ? live_ : updating_;
  if (!version.is_none()) send_update(version);
  return ok();
}

}  // namespace primerl
