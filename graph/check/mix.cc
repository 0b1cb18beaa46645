// Several environments of one tenant: what each sees of the tenant, and what the tenant has of all
// (docs/design/environments.md).
#include <algorithm>
#include <utility>

#include "graph/check/names.h"
#include "graph/check/rules.h"
#include "graph/tenant_outside.h"

namespace primerl {
namespace {

/// A name that a metric may have between two slashes.
bool is_label(const std::string& label) {
  return !label.empty() && std::ranges::all_of(label, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

void check_label(const DraftTenant& drafted, size_t index, Draft& draft) {
  const DraftTenant& part = drafted.mix[index];
  const std::string& label = part.tenant.label;
  if (label.empty()) return;  // it has no environment, which is reported
  const auto refuse = [&](std::string_view what) -> Diagnostic& {
    return draft.diagnostics.error("G085", value_span(*part.spec, "name"),
                                   "environments[{}] of tenant '{}' is called '{}', {}", index,
                                   drafted.spec->name, label, what);
  };
  const bool is_repeated =
      std::any_of(drafted.mix.begin(), drafted.mix.begin() + static_cast<std::ptrdiff_t>(index),
                  [&](const DraftTenant& other) { return other.tenant.label == label; });
  if (is_repeated)
    refuse("as another one").suggest("write name = \"...\" in one of them");
  else if (label == "all" || label == "trained")  // reward/all/mean, reward/trained/mean
    refuse("the word of metrics for all environments").suggest("write another name");
  else if (!is_label(label))
    refuse("which metrics cannot have").note("valid: letters, digits, '_', '-' and '.'");
}

void check_length(const DraftTenant& drafted, const DraftTenant& part, Draft& draft) {
  const Entry* written = nested_entry(*part.spec, "seq_len");
  if (written == nullptr || part.tenant.seq_len <= drafted.tenant.seq_len) return;
  draft.diagnostics
      .error("G085", written->value.span,
             "'seq_len' {} of environment '{}' is more than that of tenant '{}', {}",
             part.tenant.seq_len, part.tenant.label, drafted.spec->name, drafted.tenant.seq_len)
      .suggest(
          fmt::format("write {} or less, or raise seq_len of the tenant", drafted.tenant.seq_len));
}

/// A run of a driven environment ends after the environment's own limit. The plan has the default,
/// so that its resolved text is read without this warning.
void check_run_time(DraftTenant& part, Draft& draft) {
  if (!drives_rollouts(part.tenant)) return;
  const Duration unused = Tenant().rollout_timeout;
  const Entry* written = nested_entry(*part.spec, "rollout_timeout");
  if (written != nullptr && part.tenant.rollout_timeout != unused)
    draft.diagnostics
        .warning("G090", written->value.span,
                 "'rollout_timeout' of environment '{}' has no effect: it plays whole rollouts, "
                 "with a limit of its own",
                 part.tenant.label)
        .suggest("write run_timeout in its 'environment', and remove the key");
  part.tenant.rollout_timeout = unused;
}

}  // namespace

void for_each_environment(const DraftTenant& tenant,
                          const std::function<void(const DraftTenant& in_environment)>& use) {
  if (tenant.mix.empty()) return use(tenant);
  for (const DraftTenant& part : tenant.mix) use(part);
}

Tenant DraftTenant::value(TenantSlot slot) const {
  Tenant whole = tenant;
  whole.slot = slot;
  for (const DraftTenant& part : mix) {
    auto made = std::make_shared<Tenant>(tenant);
    made->slot = slot;
    const Tenant& own = part.tenant;
    made->label = own.label;
    made->weight = own.weight;
    made->environment = own.environment;
    made->rewards = own.rewards;
    made->sampling = own.sampling;
    made->filters = own.filters;
    made->eval = own.eval;
    made->advantage = own.advantage;
    made->curriculum = own.curriculum;
    made->seq_len = std::min(own.seq_len, tenant.seq_len);
    made->turns_max = own.turns_max;
    made->rollout_timeout = own.rollout_timeout;
    made->environment_timeout = own.environment_timeout;
    whole.mix.push_back(std::move(made));
  }
  return whole;
}

void fold_mix(DraftTenant& drafted, Draft& draft) {
  if (drafted.mix.empty()) return;
  Tenant& all = drafted.tenant;
  all.environment = drafted.mix.front().tenant.environment;
  all.rewards.clear();
  all.turns_max = all.sampling.max_tokens = all.eval.samples = 1;
  const Duration own_timeout = std::exchange(all.rollout_timeout, Duration());
  all.environment_timeout = Duration();
  for (size_t i = 0; i < drafted.mix.size(); ++i) {
    check_label(drafted, i, draft);
    check_length(drafted, drafted.mix[i], draft);
    check_run_time(drafted.mix[i], draft);
    Tenant& own = drafted.mix[i].tenant;
    for (TenantReward& reward : own.rewards)
      reward.label = fmt::format("{}/{}", own.label, reward.label);
    all.rewards.insert(all.rewards.end(), own.rewards.begin(), own.rewards.end());
    all.turns_max = std::max(all.turns_max, own.turns_max);
    all.sampling.max_tokens = std::max(all.sampling.max_tokens, own.sampling.max_tokens);
    all.eval.samples = std::max(all.eval.samples, own.eval.samples);
    if (!drives_rollouts(own))
      all.rollout_timeout = std::max(all.rollout_timeout, own.rollout_timeout);
    all.environment_timeout = std::max(all.environment_timeout, own.environment_timeout);
    if (all.sampling.stop.empty()) all.sampling.stop = own.sampling.stop;
  }
  if (all.rollout_timeout == Duration()) all.rollout_timeout = own_timeout;  // all are driven
}

}  // namespace primerl
