// Rules about the rows of a tenant's data set: evaluations and epochs.
#include <algorithm>
#include <optional>

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
  return fmt::format("environment '{}' of tenant '{}'", tenant.environment_label(), tenant.name);
}

/// Whether the graph may say how many tasks an environment outside has.
bool can_name_tasks(const Tenant& tenant) {
  const EnvironmentContract* environment = tenant.environment.contract;
  return environment != nullptr && environment->options.find("num_tasks") != nullptr;
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

/// `epochs` times `num_rows` rows; one group has `rows_per_group` of them. Returns the
/// number of whole groups, or 0 after an error.
int64_t count_epochs(Draft& draft, DraftTenant& drafted, int64_t num_rows, int64_t rows_per_group) {
  Tenant& tenant = drafted.tenant;
  if (num_rows == 0) {
    report(draft, drafted, "epochs",
           fmt::format("'epochs' is {}, but {} has no rows to count", tenant.epochs,
                       quoted_environment(tenant)))
        .suggest(can_name_tasks(tenant)
                     ? "write num_tasks = N in its environment, the tasks of one epoch, or leave "
                       "it out and write max_steps"
                     : "leave it out, and write max_steps");
    return 0;
  }
  if (tenant.batch_size % tenant.group_size != 0) return 0;  // another rule says so
  // The product of two numbers that may be large.
  const int64_t num_given =
      tenant.epochs > kTasksMax / num_rows ? kTasksMax : tenant.epochs * num_rows;
  const int64_t num_groups = num_given / rows_per_group;
  const int64_t num_steps = num_groups / tenant.groups_per_batch();
  if (num_steps == 0) {
    report(draft, drafted, "epochs",
           fmt::format("{} of {} rows are {} {}, fewer than the {} of one batch", tenant.epochs,
                       num_rows, num_given, rows_per_group == 1 ? "tasks" : "examples",
                       tenant.groups_per_batch() * rows_per_group))
        .suggest("write more epochs, or a smaller batch_size");
    return 0;
  }
  const bool is_written = drafted.spec->table->find("max_steps") != nullptr;
  tenant.max_steps = is_written ? std::min(tenant.max_steps, num_steps) : num_steps;
  return num_groups;
}

/// The rows of the tenant's environment; none if they cannot be read, which another rule reports.
std::optional<EnvironmentContract::Rows> rows_of(const Tenant& tenant) {
  const EnvironmentContract* environment = tenant.environment.contract;
  if (environment == nullptr || !environment->rows) return EnvironmentContract::Rows();
  const auto counted = environment->rows(tenant.environment.options.get());
  if (!counted.ok()) return std::nullopt;
  return *counted;
}

/// In supervised training an epoch has each example of the node's file once, or each row of the
/// environment.
void count_examples(Draft& draft, DraftTenant& drafted, const DraftNode& node) {
  const auto own = node.contract->num_examples(node.options.get());
  if (!own.ok()) return;  // its own rule reports the file
  int64_t num_rows = *own;
  if (num_rows == 0) {
    const auto rows = rows_of(drafted.tenant);
    if (!rows) return;
    num_rows = rows->num_training;
  }
  drafted.tenant.groups_max = count_epochs(draft, drafted, num_rows, drafted.tenant.group_size);
}

/// The rows of all environments of a tenant, one environment after the other.
void count_mix(Draft& draft, DraftTenant& drafted, bool evaluates) {
  if (drafted.tenant.epochs > 0)
    report(draft, drafted, "epochs",
           fmt::format("tenant '{}' has several environments, so passes over the rows of one say "
                       "nothing of the others",
                       drafted.tenant.name))
        .suggest("leave it out, and write max_steps");
  if (!evaluates) return;
  drafted.tenant.eval.rows = 0;
  for (DraftTenant& part : drafted.mix) {
    part.tenant.inflight_max = drafted.tenant.inflight_max;
    part.tenant.eval.interval = drafted.tenant.eval.interval;
    const auto rows = rows_of(part.tenant);
    if (!rows || part.tenant.environment.contract == nullptr) continue;
    count_evaluation(draft, part, rows->num_evaluation);
    drafted.tenant.eval.rows += part.tenant.eval.rows;
  }
}

}  // namespace

void count_rows(Draft& draft) {
  const bool evaluates_only = std::ranges::any_of(draft.nodes, [](const DraftNode& node) {
    const OptionField* field =
        node.contract != nullptr ? node.contract->options.find("evaluates_only") : nullptr;
    return field != nullptr && field->print(node.options.get()) == "true";
  });
  const auto gives_examples = std::ranges::find_if(draft.nodes, [](const DraftNode& node) {
    return node.contract != nullptr && node.contract->num_examples && node.options != nullptr;
  });
  for (DraftTenant& drafted : draft.tenants) {
    Tenant& tenant = drafted.tenant;
    if (gives_examples != draft.nodes.end()) {
      const auto own = gives_examples->contract->num_examples(gives_examples->options.get());
      if (!drafted.mix.empty() && own.ok() && *own == 0)
        report(draft, drafted, "environments",
               fmt::format("tenant '{}' has several environments, but its examples are those of "
                           "one",
                           tenant.name))
            .suggest("write one environment, or name a file of examples in the data node");
      tenant.eval.is_of_answers = tenant.eval.is_on();
      if (tenant.epochs > 0) count_examples(draft, drafted, *gives_examples);
      continue;
    }
    const bool evaluates = tenant.eval.is_on() || evaluates_only;
    if (!drafted.mix.empty()) {
      count_mix(draft, drafted, evaluates);
      continue;
    }
    if (tenant.environment.contract == nullptr || (!evaluates && tenant.epochs == 0)) continue;
    const auto rows = rows_of(tenant);
    if (!rows) continue;
    if (evaluates) count_evaluation(draft, drafted, rows->num_evaluation);
    if (tenant.epochs > 0 && !evaluates_only)
      tenant.tasks_max = count_epochs(draft, drafted, rows->num_training, 1);
  }
}

}  // namespace primerl
