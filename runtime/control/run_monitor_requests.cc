// The requests of persons to a run: pauses of engines, and tenants that come and go.
#include "runtime/control/run_monitor.h"

namespace primerl {

void RunMonitor::make_tenants() {
  TenantControl::Setup setup;
  setup.run_folder = folder_.path();
  setup.send = [this](ProcessId to, Payload message) { send(to, std::move(message)); };
  setup.answer = answer_;
  setup.describe = [this](const HostedTenant& tenant, Json& picture) { describe(tenant, picture); };
  setup.warn = [this](const std::string& line) { publisher_.say("warning: " + line); };
  tenants_ = std::make_unique<TenantControl>(plan_, std::move(setup));
  coordinator_.serve();
}

/// Requests begin when all processes run, and have followed their records: a process that follows
/// its record gets the orders of that record first.
void RunMonitor::open_tenants() {
  if (tenants_ == nullptr || has_open_tenants_ || !coordinator_.is_up() ||
      lifecycle_.is_following())
    return;
  has_open_tenants_ = true;
  publisher_.begin();  // `tenant` must find the run before its first step
  lifecycle_.on_step();
  for (uint32_t i = 0; i < workers_.size(); ++i)
    if (!workers_[i].is_closed && !tenants_->is_ready(ProcessId(i)))
      tenants_->process_ready(ProcessId(i), clock_());
}

/// Before the RunCoordinator handles the message: a process that has no record to follow must make
/// the actors of all tenants, and destroy those of tenants that have left, before it is told to
/// accept inputs.
void RunMonitor::handle_of_tenants(const ControlEvent& event) {
  const Time now = clock_();
  Status written;
  if (const auto* answered = as_if<TenantAnswered>(event.message))
    written = tenants_->handle(event.peer, *answered, now);
  if (const auto* finished = as_if<TenantFinished>(event.message))
    written = tenants_->on_finished(*finished, now);
  const bool follows = lifecycle_.is_following() && !coordinator_.is_absent(event.peer);
  if (as_if<GroupsReady>(event.message) != nullptr && (has_open_tenants_ || !follows))
    tenants_->process_ready(event.peer, now);
  if (!written.ok()) cannot_write(written.error());
}

std::string RunMonitor::why_no_tenant() const {
  const auto phase = lifecycle_.phase();
  if (phase == RunLifecycle::Phase::kDraining || phase == RunLifecycle::Phase::kStopping)
    return "the run ends: it takes no request about tenants any more";
  if (has_open_tenants_) return "";
  return phase == RunLifecycle::Phase::kFollowing
             ? "the run still follows its record; ask again when it has resumed"
             : "the run is starting; ask again when it runs";
}

void RunMonitor::describe(const HostedTenant& tenant, Json& picture) const {
  const ServedTenant served = served_tenant(tenant);
  picture.set("max_steps", served.max_steps).set("share", served.share);
  const auto now = publisher_.store().tenant(served.name);
  if (!now) return;
  if (now->served.engine) picture.set("engine_share", *now->served.engine);
  if (now->served.learner) picture.set("learner_share", *now->served.learner);
  if (now->served.engine) picture.set("tokens_per_second", now->served.tokens_per_second);
  if (now->newest == nullptr) return;
  picture.set("step", now->newest->step);
  for (const auto& [name, value] : now->newest->values) {
    if (name == "reward/all/mean") picture.set("reward", value);
    if (name == "off_policy/mean") picture.set("staleness", value);
  }
}

void RunMonitor::show_tenants() {
  if (!tenants_->take_changed()) return;
  std::vector<ServedTenant> all;
  for (const auto& [name, tenant] : tenants_->table().tenants())
    all.push_back(served_tenant(tenant));
  publisher_.show_tenants(std::move(all));
}

/// Why the run accepts no command now; "": it does.
std::string RunMonitor::why_no_command() const {
  switch (lifecycle_.phase()) {
    case RunLifecycle::Phase::kStarting:
      return "the run is starting; ask again when it runs";
    case RunLifecycle::Phase::kFollowing:
      return "the run still follows its record; ask again when it has resumed";
    case RunLifecycle::Phase::kRunning:
      return "";
    case RunLifecycle::Phase::kDraining:
    case RunLifecycle::Phase::kStopping:
      return "the run ends: nothing of it can be held any more";
  }
  return "";
}

void RunMonitor::apply_commands(std::span<const CommandInbox::Ask> requests) {
  const Time now = clock_();
  for (const auto& each : requests)
    if (!TenantControl::is_ask(each.content))
      pauses_.ask(each.id, each.content, why_no_command(), now);
    else if (tenants_ != nullptr)
      tenants_->ask(each.id, each.content, why_no_tenant(), now);
    else
      answer_(each.id, Json::object()
                           .set("error",
                                "the run takes no tenants: it was started by `run`; "
                                "`primerl-graph serve` starts one that does")
                           .set("is_bad", true));
  if (tenants_ != nullptr) {
    tenants_->tick(now);
    show_tenants();
  }
  pauses_.tick(now);
  publisher_.store().set_holds(pauses_.holds(now));
}

}  // namespace primerl
