#include "runtime/rehearsal/rehearsal_play.h"

#include <algorithm>

#include "graph/base/json.h"
#include "runtime/exec/virtual_executor.h"

namespace primerl {
namespace {

/// Steps cost milliseconds, so a working graph delivers messages, or computes, all the time.
constexpr Duration kQuietMax = Duration::seconds(5);
constexpr size_t kComplaintsMax = 3;

/// Discards everything that a run would write, and keeps its warnings, errors and failed rollouts.
class Listener final : public ProcessServices, public RunFiles, public StepHooks {
 public:
  Listener(RehearsalPlay& play, const Plan& plan) : play_(play) {
    for (const PlanGroup& group : plan.groups) {
      const auto computes = [&](int32_t index) {
        const auto* contract = plan.resources[static_cast<size_t>(index)].contract;
        return contract != nullptr && contract->computes;
      };
      computes_.push_back(std::any_of(group.resources.begin(), group.resources.end(), computes));
    }
  }

  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues&) override {
    play_.steps[tenant.index()] = std::max(play_.steps[tenant.index()], step);
  }
  void log(LogLevel level, std::string_view instance, std::string_view text) override {
    if (level < LogLevel::kWarning) return;
    ++num_troubles_;
    if (play_.complaints.size() < kComplaintsMax)
      play_.complaints.push_back(fmt::format("'{}' says: {}", instance, text));
  }
  const ResumePoint* resume_point(TenantSlot) const override { return nullptr; }

  Status append_line(std::string_view file, std::string_view line) override {
    if (file != "rollouts.jsonl") return ok();
    ASSIGN_OR_RETURN(const Json rollout, parse_json(line, "rollouts.jsonl"));
    ASSIGN_OR_RETURN(const std::string end, rollout.get_string("end"));
    if (end != "failed") return ok();
    ++num_troubles_;
    if (play_.rollout_fault.empty())
      if (const auto reason = rollout.get_string("reason"); reason.ok())
        play_.rollout_fault = *reason;
    return ok();
  }
  Result<std::filesystem::path> begin_checkpoint(TenantSlot, int64_t) override {
    return std::filesystem::path();
  }
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override { return ok(); }
  Result<std::filesystem::path> begin_client_folder(TenantSlot, std::string_view) override {
    return std::filesystem::path();
  }
  Status commit_client_folder(TenantSlot, std::string_view, bool) override { return ok(); }

  void after(const StepRecord& record) override {
    // An engine gets a work call only while it has something to compute: a long completion.
    const bool is_computing = record.kind == StepKind::kWork && computes_[record.group.index()];
    if (record.kind == StepKind::kMessage || is_computing) last_sign_ = record.ended;
  }

  /// Time of the last message, or of the last computation of an engine.
  Time last_sign() const { return last_sign_; }
  uint64_t num_complaints() const { return num_troubles_; }

 private:
  RehearsalPlay& play_;
  std::vector<bool> computes_;  // by group
  Time last_sign_;
  uint64_t num_troubles_ = 0;
};

/// A tenant configures how long to wait for slow rollouts, so that wait is no stall.
Duration quiet_max(const Plan& plan) {
  Duration longest = kQuietMax;
  for (const Tenant& tenant : plan.tenants)
    longest = std::max(longest, kQuietMax + Duration::milliseconds(tenant.straggler_wait_ms));
  return longest;
}

void end_play(const RunOutcome& outcome, RehearsalPlay& play) {
  if (outcome.end == RunEnd::kFinished && outcome.status.ok()) return;
  play.end =
      outcome.end == RunEnd::kStalled ? RehearsalPlay::End::kStill : RehearsalPlay::End::kFailed;
  play.stall = outcome.stall;
  if (!outcome.status.ok()) play.why = outcome.status.error().message();
}

}  // namespace

RehearsalPlay play_rehearsal(const RehearsalStage& stage, uint64_t work_max) {
  RehearsalPlay play;
  play.steps.resize(stage.plan->tenants.size());
  Listener listener(play, *stage.plan);
  const Duration quiet = quiet_max(*stage.plan);
  const uint64_t work_of_one = stage.plan->groups.size() + stage.plan->edges.size();
  const uint64_t events_max = std::max<uint64_t>(work_max / std::max<uint64_t>(work_of_one, 1), 1);
  VirtualExecutor executor(stage.plan, stage.factory, listener,
                           {.seed = static_cast<uint64_t>(stage.plan->settings.seed),
                            .step_hooks = &listener,
                            .events_max = events_max + 1,
                            .repeat_with = "primerl-graph check"});
  if (const Status started = executor.start(); !started.ok()) {
    play.end = RehearsalPlay::End::kFailed;
    play.why = started.error().message();
    return play;
  }
  std::optional<uint64_t> troubles_when_quiet;
  Time quiet_since;
  bool goes_on = true;
  while (goes_on && play.num_events < events_max) {
    goes_on = executor.advance();
    ++play.num_events;
    if (!troubles_when_quiet && executor.now() - listener.last_sign() > quiet) {
      // The next events show whether the graph only waited or is stuck.
      play.stall = executor.stall_report();
      play.ended = quiet_since = listener.last_sign();
      troubles_when_quiet = listener.num_complaints();
    }
    if (troubles_when_quiet && listener.num_complaints() > *troubles_when_quiet) {
      play.end = RehearsalPlay::End::kStill;
      return play;
    }
    // A learner or an engine computed for a long time, and then messages moved again.
    if (troubles_when_quiet && executor.now() - listener.last_sign() <= quiet &&
        listener.last_sign() > quiet_since)
      troubles_when_quiet.reset();
  }
  if (!troubles_when_quiet) play.ended = executor.now();
  play.is_draining = executor.status().is_draining;
  if (goes_on)
    play.end = troubles_when_quiet ? RehearsalPlay::End::kStill : RehearsalPlay::End::kCutShort;
  else
    end_play(executor.wait(), play);
  return play;
}

}  // namespace primerl
