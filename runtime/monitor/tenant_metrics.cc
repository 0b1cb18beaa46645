#include "runtime/monitor/tenant_metrics.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "graph/base/histogram.h"

namespace primerl {
namespace {

class TenantMetrics {
 public:
  TenantMetrics(PrometheusText& out, const RunSnapshot& picture, Time now)
      : out_(out), picture_(picture), now_(now), is_labelled_(labelled_tenants(picture)) {}
  void tenants();
  void states();
  void shares();
  void training();

 private:
  template <class Use>
  void each(const Use& use) const {
    for (size_t slot = 0; slot < picture_.tenants.size(); ++slot)
      if (is_labelled_[slot]) use(picture_.tenants[slot]);
  }

  PrometheusText& out_;
  const RunSnapshot& picture_;
  const Time now_;
  const std::vector<bool> is_labelled_;  // by slot
};

/// Tenants that have left are only counted.
void TenantMetrics::tenants() {
  states();
  shares();
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
  each([this](const TenantPicture& tenant) {
    if (!tenant.state.empty()) out_.sample({{"tenant", tenant.name}, {"state", tenant.state}}, 1.0);
  });
}

/// The sum over the label is that of all tenants.
void TenantMetrics::shares() {
  struct Family {
    std::string_view name, help;
    std::function<std::optional<double>(const TenantPicture&)> value;
  };
  const Family families[] = {
      {"primerl_tenant_tokens_per_second",
       "Tokens that engines computed for the tenant in the last minute, a second.",
       [](const TenantPicture& tenant) { return std::optional(tenant.served.tokens_per_second); }},
      {"primerl_tenant_engine_share_ratio",
       "The tenant's part of them; none were computed: no sample.",
       [](const TenantPicture& tenant) { return tenant.served.engine; }},
      {"primerl_tenant_learner_share_ratio", "The tenant's part of the tokens that were trained.",
       [](const TenantPicture& tenant) { return tenant.served.learner; }},
      {"primerl_tenant_promised_share_ratio", "The part that the tenant gets while all need it.",
       [](const TenantPicture& tenant) { return std::optional(tenant.share); }}};
  for (const Family& family : families) {
    out_.gauge(family.name, family.help);
    std::optional<double> others;
    for (size_t slot = 0; slot < picture_.tenants.size(); ++slot) {
      const TenantPicture& tenant = picture_.tenants[slot];
      const auto value = tenant.name.empty() ? std::nullopt : family.value(tenant);
      if (!value) continue;
      if (is_labelled_[slot])
        out_.sample({{"tenant", tenant.name}}, *value);
      else
        others = others.value_or(0) + *value;
    }
    if (others) out_.sample({{"tenant", kOtherTenants}}, *others);
  }
}

/// The last line of metrics.jsonl of each tenant. Different metrics may become the same name; the
/// label distinguishes them.
void TenantMetrics::training() {
  struct Value {
    std::string_view tenant, metric;
    double value;
  };
  std::map<std::string, std::vector<Value>> families;
  each([&families](const TenantPicture& tenant) {
    if (tenant.newest == nullptr) return;
    for (const auto& [metric, value] : tenant.newest->values)
      if (!bucket_of_metric(metric))
        families[prometheus_name("primerl_training_", metric)].push_back(
            {tenant.name, metric, value});
  });
  for (const auto& [name, values] : families) {
    out_.gauge(name, fmt::format("{} of the last step, as in metrics.jsonl.", values[0].metric));
    for (const Value& one : values)
      out_.sample({{"tenant", one.tenant}, {"metric", one.metric}}, one.value);
  }
}

}  // namespace

std::vector<bool> labelled_tenants(const RunSnapshot& picture) {
  std::vector<size_t> slots;
  for (size_t slot = 0; slot < picture.tenants.size(); ++slot)
    if (!picture.tenants[slot].name.empty()) slots.push_back(slot);
  std::ranges::stable_sort(slots, std::greater<>(), [&](size_t slot) {
    return picture.tenants[slot].served.tokens_per_second;
  });
  std::vector<bool> is_labelled(picture.tenants.size());
  for (size_t i = 0; i < std::min(slots.size(), kTenantLabelsMax); ++i)
    is_labelled[slots[i]] = true;
  return is_labelled;
}

void write_tenant_metrics(PrometheusText& out, const RunSnapshot& picture, Time now) {
  TenantMetrics metrics(out, picture, now);
  metrics.tenants();
  metrics.training();
}

}  // namespace primerl
