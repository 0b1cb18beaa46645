// The part of a RunMonitor that serves tenants: it joins TenantControl to the run.
#include "runtime/control/run_monitor.h"

namespace primerl {

void RunMonitor::make_tenants() {
  TenantControl::Setup setup;
  setup.run_folder = folder_.path();
  setup.send = [this](ProcessId to, Payload message) { send(to, std::move(message)); };
  setup.answer = answer_;
  setup.describe = [this](const HostedTenant& tenant, Json& picture) {
    describe(tenant, picture);
  };
  setup.warn = [this](const std::string& line) { publisher_.say("warning: " + line); };
  tenants_ = std::make_unique<TenantControl>(plan_, std::move(setup));
  coordinator_.serve();
}

/// Orders begin when all processes run, and have followed their records: a process that follows its
/// record gets the orders of that record.
void RunMonitor::open_tenants() {
  if (tenants_ == nullptr || has_open_tenants_ || !coordinator_.is_up() ||
      lifecycle_.is_following())
    return;
  has_open_tenants_ = true;
  publisher_.begin();  // `tenant` must find the run before its first step
  lifecycle_.on_step();
  for (uint32_t i = 0; i < workers_.size(); ++i)
    if (!workers_[i].is_closed) tenants_->process_ready(ProcessId(i), clock_());
}

/// Before the RunCoordinator handles the message: a restarted process must make the actors of all
/// tenants before it is told to accept inputs.
void RunMonitor::handle_of_tenants(const ControlEvent& event) {
  const Time now = clock_();
  Status written;
  if (const auto* answered = as_if<TenantAnswered>(event.message))
    written = tenants_->handle(event.peer, *answered, now);
  if (const auto* finished = as_if<TenantFinished>(event.message))
    written = tenants_->on_finished(finished->tenant, finished->fault, now);
  if (has_open_tenants_ && as_if<GroupsReady>(event.message) != nullptr)
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
  publisher_.store().describe_tenant(tenancy_label(tenant), picture);
}

void RunMonitor::show_tenants() {
  if (!tenants_->take_changed()) return;
  std::vector<ServedTenant> all;
  for (const auto& [name, tenant] : tenants_->table().tenants()) all.push_back(served(tenant));
  publisher_.show_tenants(std::move(all));
}

}  // namespace primerl
