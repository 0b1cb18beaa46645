#include "runtime/control/resume_checks.h"

#include <algorithm>
#include <charconv>

#include "actors/common/task_mix.h"
#include "graph/base/counted.h"
#include "runtime/control/changed_values.h"
#include "runtime/monitor/metrics_log.h"
#include "runtime/store/step_lines.h"

namespace primerl {

Status check_recorded_steps(const Plan& plan, const ResumeChoice& choice) {
  if (!choice.has_other_options) return ok();
  ASSIGN_OR_RETURN(auto steps, newest_steps(choice.run_folder / "metrics.jsonl"));
  for (const auto& file : find_step_lines(choice.run_folder / "logs")) {
    ASSIGN_OR_RETURN(const auto later, newest_steps(file));
    for (const auto& [tenant, step] : later) steps[tenant] = std::max(steps[tenant], step);
  }
  for (size_t slot = 0; slot < plan.tenants.size(); ++slot) {
    const Tenant& tenant = plan.tenants[slot];
    // Later steps are not followed: the run takes them again.
    const auto last = choice.last_steps.find(tenant.name);
    const int64_t step = last == choice.last_steps.end()
                             ? steps[tenant.name]
                             : std::min(steps[tenant.name], last->second);
    if (step < tenant.max_steps) continue;
    Error fault = error(Code::kInvalid, "tenant '{}' has recorded {}, max_steps asks for {}",
                        tenant.name, counted(step, "step"), tenant.max_steps)
                      .note(fmt::format("continue with --max-steps {} or more", step + 1));
    if (slot >= choice.points.size() || choice.points[slot].step >= tenant.max_steps) return fault;
    return std::move(fault).note(
        fmt::format("or go back with --from-checkpoint, to what step {} had left behind",
                    choice.points[slot].step));
  }
  return ok();
}

Status check_environments(const Plan& plan, const ResumeChoice& choice) {
  for (size_t slot = 0; slot < choice.points.size() && slot < plan.tenants.size(); ++slot)
    if (choice.points[slot].manifest.is_object())
      RETURN_IF_ERROR(check_mix(plan.tenants[slot], choice.points[slot].manifest));
  return ok();
}

Status check_steps_left(const Plan& plan, const ResumeChoice& choice) {
  const auto is_done = [&choice](const Tenant& tenant) {
    return choice.points[tenant.slot.index()].step >= tenant.max_steps;
  };
  if (!std::ranges::all_of(plan.tenants, is_done)) return ok();
  const Tenant& first = plan.tenants.front();
  const int64_t step = choice.points[first.slot.index()].step;
  return error(Code::kInvalid, "tenant '{}' has already taken {} of {}", first.name, step,
               counted(first.max_steps, "step"))
      .note(fmt::format("continue with --max-steps {} or more", step + 1));
}

bool has_reached_max_steps(const std::string& recorded, const Plan& plan,
                           const std::map<std::string, int64_t>& last_steps) {
  const auto changed = changed_values(recorded, plan.resolved_toml);
  if (!changed.ok()) return true;
  return std::ranges::any_of(*changed, [&](const ChangedValue& value) {
    return std::ranges::any_of(last_steps, [&](const auto& last) {
      int64_t most = 0;
      const std::string& text = value.before;
      return value.key == fmt::format("tenant.{}.max_steps", last.first) &&
             std::from_chars(text.data(), text.data() + text.size(), most).ec == std::errc() &&
             last.second >= most;
    });
  });
}

}  // namespace primerl
