#include "runtime/monitor/tenant_metrics.h"

#include <algorithm>
#include <map>

#include "graph/base/histogram.h"

namespace primerl {
namespace {

class TenantMetrics {
 public:
  TenantMetrics(PrometheusText& out, const RunSnapshot& picture, Time now)
      : out_(out), picture_(picture), now_(now) {}
  void tenants();
  void states();
  void training();

 private:
  PrometheusText& out_;
  const RunSnapshot& picture_;
  const Time now_;
};

/// Labels are bounded by the slots: tenants that have left are only counted.
void TenantMetrics::tenants() {
  const auto each = [this](const auto& sample) {
    for (const TenantPicture& tenant : picture_.tenants)
      if (!tenant.name.empty()) sample(tenant);
  };
  states();
  out_.gauge("primerl_tenant_max_steps", "Steps the tenant is to take.");
  each([this](const TenantPicture& tenant) {
    if (tenant.max_steps > 0) out_.sample({{"tenant", tenant.name}}, as_number(tenant.max_steps));
  });
  const auto each_with_step = [&](const auto& value) {
    each([&](const TenantPicture& tenant) {
      if (tenant.newest != nullptr) out_.sample({{"tenant", tenant.name}}, value(tenant));
    });
  };
  out_.gauge("primerl_tenant_policy_version",
             "Newest version of the tenant's weights: the last step taken; 0 is what was loaded.");
  each_with_step([](const TenantPicture& tenant) { return as_number(tenant.newest->step); });
  out_.gauge("primerl_tenant_last_step_age_seconds", "Since the tenant's last step.");
  each_with_step([this](const TenantPicture& tenant) { return age(now_, tenant.step_at); });
  out_.gauge("primerl_tenant_alarm", "1 while the alarm of the tenant is raised.");
  each([this](const TenantPicture& tenant) {
    for (const AlarmKind kind : kAlarmKinds) {
      const auto& alarms = tenant.alarms;
      const bool is_raised = std::any_of(alarms.begin(), alarms.end(),
                                         [kind](const auto& alarm) { return alarm.kind == kind; });
      out_.sample({{"tenant", tenant.name}, {"alarm", to_string(kind)}}, is_raised ? 1.0 : 0.0);
    }
  });
}

/// A run that is served has them; a tenant of another run has no state.
void TenantMetrics::states() {
  std::map<std::string_view, uint64_t> counts;
  for (const auto* tenants : {&picture_.tenants, &picture_.left})
    for (const TenantPicture& tenant : *tenants)
      if (!tenant.state.empty()) ++counts[tenant.state];
  if (counts.empty()) return;
  out_.gauge("primerl_tenants", "Tenants of the served run in each state.");
  for (const auto& [state, count] : counts) out_.sample({{"state", state}}, as_number(count));
  out_.gauge("primerl_tenant_state", "1 for the state that the tenant of a slot is in.");
  for (const TenantPicture& tenant : picture_.tenants)
    if (!tenant.state.empty()) out_.sample({{"tenant", tenant.name}, {"state", tenant.state}}, 1.0);
}

/// The last line of metrics.jsonl of each tenant. Different metrics may become the same name; the
/// label distinguishes them.
void TenantMetrics::training() {
  struct Value {
    std::string_view tenant, metric;
    double value;
  };
  std::map<std::string, std::vector<Value>> families;
  for (const TenantPicture& tenant : picture_.tenants)
    if (tenant.newest != nullptr && !tenant.name.empty())
      for (const auto& [metric, value] : tenant.newest->values)
        if (!bucket_of_metric(metric))
          families[prometheus_name("primerl_training_", metric)].push_back(
              {tenant.name, metric, value});
  for (const auto& [name, values] : families) {
    out_.gauge(name, fmt::format("{} of the last step, as in metrics.jsonl.", values[0].metric));
    for (const Value& one : values)
      out_.sample({{"tenant", one.tenant}, {"metric", one.metric}}, one.value);
  }
}

}  // namespace

void write_tenant_metrics(PrometheusText& out, const RunSnapshot& picture, Time now) {
  TenantMetrics metrics(out, picture, now);
  metrics.tenants();
  metrics.training();
}

}  // namespace primerl
