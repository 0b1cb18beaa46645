// Rules about the rows of a tenant's data set: evaluations and epochs.
#include <algorithm>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

/// A greedy evaluation is 0 and the smallest sampling temperature 0.001, as in `sampling`.
constexpr double kTemperatureMin = 0.001, kTemperatureMax = 100;
/// Fewer than the ordinals of evaluations (actors/messages/rollout.h) begin at.
constexpr int64_t kTasksMax = 1'000'000'000'000;

Diagnostic& report(Draft& draft, const DraftTenant& tenant, std::string_view key,
                   std::string message) {
  return draft.diagnostics.error("G075", nested_span(*tenant.spec, key), "{}", message);
}

std::string quoted_environment(const Tenant& tenant) {
  return fmt::format("environment '{}' of tenant '{}'", tenant.environment.name, tenant.name);
}

void check_eval_sampling(Draft& draft, const DraftTenant& drafted) {
  const TenantEval& eval = drafted.tenant.eval;
  const bool is_own = eval.temperature != -1 && eval.temperature != 0;
  if (is_own && (eval.temperature < kTemperatureMin || eval.temperature > kTemperatureMax))
    draft.diagnostics
        .error("G023", nested_span(*drafted.spec, "eval.temperature"),
               "'eval.temperature' of tenant '{}' is {}, not -1, 0 or from 0.001 to 100",
               drafted.tenant.name, eval.temperature)
        .suggest("write 0 for greedy sampling, or leave it out for that of `sampling`");
  if (eval.top_p != -1 && eval.top_p <= 0)
    draft.diagnostics
        .error("G023", nested_span(*drafted.spec, "eval.top_p"),
               "'eval.top_p' of tenant '{}' is {}, not -1 or above 0 and at most 1",
               drafted.tenant.name, eval.top_p)
        .suggest("write 1.0 to keep all tokens, or leave it out for that of `sampling`");
}

void count_evaluation(Draft& draft, DraftTenant& drafted, int64_t num_rows) {
  Tenant& tenant = drafted.tenant;
  TenantEval& eval = tenant.eval;
  check_eval_sampling(draft, drafted);
  if (eval.rows == 0 && num_rows == 0)
    report(draft, drafted, "eval.rows",
           fmt::format("{} has no rows, so an evaluation would have no end",
                       quoted_environment(tenant)))
        .suggest("write rows = N in its eval table");
  if (num_rows > 0 && eval.rows > num_rows)
    report(draft, drafted, "eval.rows",
           fmt::format("'eval.rows' is {}, but {} has {} to evaluate", eval.rows,
                       quoted_environment(tenant), num_rows))
        .suggest(fmt::format("write rows = {} or less; 0 is all of them", num_rows));
  if (eval.rows == 0) eval.rows = num_rows;
  if (eval.samples > tenant.inflight_max)
    report(draft, drafted, "eval.samples",
           fmt::format("'eval.samples' {} of tenant '{}' is more than the {} rollouts that may be "
                       "in flight",
                       eval.samples, tenant.name, tenant.inflight_max))
        .note("the rollouts of a row start together")
        .suggest(
            fmt::format("write samples = {} or less, or raise max_inflight", tenant.inflight_max));
}

void count_epochs(Draft& draft, DraftTenant& drafted, int64_t num_rows) {
  Tenant& tenant = drafted.tenant;
  if (num_rows == 0) {
    report(draft, drafted, "epochs",
           fmt::format("'epochs' is {}, but {} has no rows to count", tenant.epochs,
                       quoted_environment(tenant)))
        .suggest("leave it out, and write max_steps");
    return;
  }
  if (tenant.batch_size % tenant.group_size != 0) return;  // another rule says so
  // The product of two numbers that may be large.
  const int64_t tasks_max =
      tenant.epochs > kTasksMax / num_rows ? kTasksMax : tenant.epochs * num_rows;
  const int64_t num_steps = tasks_max / tenant.groups_per_batch();
  if (num_steps == 0) {
    report(draft, drafted, "epochs",
           fmt::format("{} of {} rows are {} tasks, fewer than the {} of one batch", tenant.epochs,
                       num_rows, tasks_max, tenant.groups_per_batch()))
        .suggest("write more epochs, or a smaller batch_size");
    return;
  }
  tenant.tasks_max = tasks_max;
  const bool is_written = drafted.spec->table->find("max_steps") != nullptr;
  tenant.max_steps = is_written ? std::min(tenant.max_steps, num_steps) : num_steps;
}

}  // namespace

void count_rows(Draft& draft) {
  const bool evaluates_only = std::ranges::any_of(draft.nodes, [](const DraftNode& node) {
    const OptionField* field =
        node.contract != nullptr ? node.contract->options.find("evaluates_only") : nullptr;
    return field != nullptr && field->print(node.options.get()) == "true";
  });
  for (DraftTenant& drafted : draft.tenants) {
    Tenant& tenant = drafted.tenant;
    const bool evaluates = tenant.eval.is_on() || evaluates_only;
    const EnvironmentContract* environment = tenant.environment.contract;
    if (environment == nullptr || (!evaluates && tenant.epochs == 0)) continue;
    EnvironmentContract::Rows rows;
    if (environment->rows) {
      const auto counted = environment->rows(tenant.environment.options.get());
      if (!counted.ok()) continue;  // its own rule reports the file
      rows = *counted;
    }
    if (evaluates) count_evaluation(draft, drafted, rows.num_evaluation);
    if (tenant.epochs > 0 && !evaluates_only) count_epochs(draft, drafted, rows.num_training);
  }
}

}  // namespace primerl
