// Evaluations: rollouts of given rows that the trainer never gets, and the end of a run after the
// last one.
#include <algorithm>

#include "actors/common/task_mix.h"
#include "actors/rollout/rollout.h"

namespace primerl {
namespace {

constexpr std::string_view kEvaluationsFile = "evaluations.jsonl";

}  // namespace

void Rollout::advance_evaluation() {
  if (is_draining_) return;
  // Without training the first task shows that the graph has started; there is no version.
  const bool is_ready = options_.evaluates_only ? held_task_.has_value() : !live_.is_none();
  if (!is_ready) return;
  if (options_.evaluates_only && !evaluations_.begun()) evaluations_.make_due();
  evaluations_.begin_if_due(live_);
  open_row();
}

/// One row per handler: its first action, and later the requests of its rollouts, are all that the
/// handler sends.
void Rollout::open_row() {
  const int64_t num_rows = tenant().eval.rows;
  if (!evaluations_.has_row_to_open(num_rows)) return;
  if (is_driven_ && base_url_.empty()) return;
  if (inflight() + tenant().eval.samples > gate_limits().max_inflight) return;
  if (num_asked_ > 0 || num_acted_ > 0) {
    services().set_timer("reissue", Duration());
    return;
  }
  Evaluation& running = *evaluations_.running();
  const uint64_t ordinal =
      evaluation_ordinal(running.version, static_cast<uint64_t>(running.num_opened++),
                         static_cast<uint64_t>(num_rows));
  Group& group = groups_[ordinal];
  group.ordinal = ordinal;
  group.source.environment = evaluation_row_of(tenant(), ordinal).environment;
  make_members(group, tenant_of(group).eval.samples);
  for (Member& member : group.members) member.state = Member::State::kActing;
  services().count("evaluation_rows_opened", 1);
  // The first rollout asks the environment for the task of all.
  send_action({ordinal, 0});
  if (evaluations_.has_row_to_open(num_rows)) services().set_timer("reissue", Duration());
}

void Rollout::end_row_if_done(uint64_t ordinal) {
  Group& group = groups_.at(ordinal);
  const Member& first = group.members.front();
  // The environment gave no task.
  if (group.prompt_tokens.empty() && group.data.empty() && first.state == Member::State::kDone)
    for (size_t i = 1; i < group.members.size(); ++i)
      if (group.members[i].state != Member::State::kDone)
        fail({ordinal, i}, first.trajectory.fault);
  if (group.num_running() > 0) return;
  CHECK(evaluations_.running() != nullptr, "a row ended, but no evaluation runs");
  evaluations_.of_environment(group.source.environment).add(group, tenant_of(group).eval);
  services().count("evaluation_rows_ended", 1);
  for (size_t i = 0; i < group.members.size(); ++i)
    write_end(group, i, {RolloutEnd::kEvaluated, 0, 0, ""});
  groups_.erase(ordinal);
  if (evaluations_.num_ended() == tenant().eval.rows) end_evaluation();
}

void Rollout::end_evaluation() {
  const PolicyVersion version = evaluations_.running()->version;
  MetricValues metrics;
  for (uint32_t i = 0; i < tenant().num_environments(); ++i) {
    const Tenant& part = tenant().in_environment(i);
    const Evaluation evaluation = evaluations_.of_environment(i);
    if (evaluation.num_scored == 0)
      services().log(
          LogLevel::kWarning,
          fmt::format("the evaluation of version {}{} has no result: all {} rollouts "
                      "failed",
                      version, part.label.empty() ? "" : fmt::format(" in '{}'", part.label),
                      evaluation.num_failed));
    write_line(kEvaluationsFile, evaluation_line(evaluation, part));
    for (auto& value : evaluation_metrics(evaluation, part)) metrics.push_back(std::move(value));
  }
  evaluations_.end();
  services().count("evaluations", 1);
  services().publish_metrics(tenant_, std::max<int64_t>(version.value, 0), metrics);
}

bool Rollout::is_training_over() const {
  if (options_.evaluates_only) return evaluations_.begun().has_value();
  if (made_.is_none()) return false;
  if (is_ending_) return true;
  if (made_.value >= tenant().max_steps) return true;
  if (!held_task_ || !is_end_of_tasks(*held_task_)) return false;
  int64_t num_delivered = 0;
  for (const auto& [ordinal, group] : groups_) {
    if (is_evaluation(ordinal)) continue;
    if (!group.is_delivered) return false;
    ++num_delivered;
  }
  return num_delivered < tenant().groups_per_batch();
}

void Rollout::end_run_if_over() {
  if (is_draining_ || !is_training_over()) return;
  const bool is_at_end = !options_.evaluates_only && tenant().eval.runs_at_end();
  is_ending_ = is_at_end;
  if (is_at_end && !std::exchange(has_ended_, true)) {
    // The trainer accepts no more groups.
    drop_open("the last step is done");
    if (live_ < made_) services().set_timer("last_version", tenant().rollout_timeout);
  }
  if (is_at_end && evaluations_.begun().value_or(PolicyVersion()) < made_) {
    if (live_ >= made_ && evaluations_.is_idle()) {
      evaluations_.make_due();
      services().set_timer("reissue", Duration());
    }
    return;
  }
  if (!evaluations_.is_idle()) return;
  // After max_steps the trainer ends the run, unless it waits for the last evaluation.
  const bool ends_here = options_.evaluates_only || is_at_end || made_.value < tenant().max_steps;
  if (ends_here) services().finish(tenant_);  // a repeated call changes nothing
}

Status Rollout::on_last_version() {
  if (live_ < made_ && !is_draining_) {
    services().log(LogLevel::kWarning,
                   fmt::format("version {} was not live within {}, so it is not evaluated", made_,
                               to_string(tenant().rollout_timeout)));
    services().finish(tenant_);
  }
  return finish_handler();
}

}  // namespace primerl
