/// Recovery: resumes a run that a crash cut off, from its record. `run --resume` uses it.
///
/// Every group repeats its recorded steps, from the first one or from its part of a cut
/// (run_cuts.h), as a replaying ActorGroup (actor_group.h), each emission
/// compared with what was recorded, and resumes at the end: rollouts in flight, queues, timers and
/// gates are as they were. Answers of resources are taken from the record, or computed again and
/// compared: this is up to the resources (resuming_engine.h, resuming_learner.h). All of it is
/// recorded again, so that the record of the new start is complete without the old one.
///
/// A step that had not ended when the run was cut is not in the record: its input is, and is
/// handled after the groups resume. check() refuses a record that cannot be resumed, with the
/// reason.
///
/// In a run of several processes each follows its own record, with what the others had sent it
/// (stored_message.h). A process of engines that died in the record and came back, or whose record
/// is not complete, is absent: it follows no record and starts fresh when the others resume, as if
/// it had died at that moment. Its unfinished requests are sent again, as after any death of an
/// engine.
///
/// Threads: as ReplaySource says; the observer's calls on the thread of their group.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/exec/replay_source.h"
#include "runtime/replay/replay.h"
#include "runtime/replay/run_cuts.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

class RecordedInputs;
class ReplayCursor;

/// A process that does not follow, and its newest incarnation in the record.
struct AbsentProcess {
  ProcessId process;
  uint32_t incarnation = 0;
};

/// The groups of absent processes: index = GroupId. The trace must fit the plan.
std::vector<bool> absent_groups(const Plan& plan, const Trace& trace, const RunCuts& cuts = {});

class Recovery final : public ReplaySource, public DeliveryObserver, public ReplayedAnswers {
 public:
  /// Whether a plan can resume a record: complete from step 1, or from `cuts`, on, no excerpt, of
  /// the same nodes, edges and schemas, and cut off rather than ended. The error has the reason.
  static Status check(const Plan& plan, const Trace& trace, const RunCuts& cuts = {});
  /// For a record that check() accepts.
  static std::vector<AbsentProcess> absent_processes(const Plan& plan, const Trace& trace,
                                                     const RunCuts& cuts = {});

  /// `recorder` (may be null) is told of every step, repeated and new; it outlives the recovery.
  /// `process`: in a run of several processes, the one whose groups follow; none: all groups.
  /// `cuts`: of all processes that follow, or empty.
  static Result<std::unique_ptr<Recovery>> make(std::shared_ptr<const Plan> plan,
                                                std::shared_ptr<const Trace> trace,
                                                DeliveryObserver* recorder,
                                                ProcessId process = ProcessId::none(),
                                                RunCuts cuts = {});
  ~Recovery() override;

  // ReplaySource
  StepSource& step_source(GroupId group) override;
  std::optional<Error> fault(GroupId group) const override;
  Time started(GroupId group) const override;
  Time ended() const override { return ended_; }
  uint32_t incarnation() const override { return incarnation_; }
  void resume() override;
  Error stuck() const override;
  std::span<const ProcessId> absent() const override { return absent_; }
  const GroupState* state_of(GroupId group) const override { return cuts_.state_of(group); }
  std::vector<SavedMessage> in_transit_to(GroupId group) const override {
    return cuts_.in_transit_to(*wiring_, group);
  }
  // DeliveryObserver
  void on_start(GroupId group, Time now) override;
  void on_step(const StepRecord& record) override;
  bool wants_emissions(LinkId link) const override;
  // ReplayedAnswers
  const std::vector<std::byte>* take(GroupId group) override;
  bool is_parallel() const override { return true; }

  const Trace& trace() const { return *trace_; }
  bool is_live() const { return is_live_.load(std::memory_order_acquire); }
  /// The result of a resource differs from the record: its group stops here. On the group's thread,
  /// within its step.
  void diverged(GroupId group, std::string what);
  uint64_t num_steps() const;              // of the record, by the groups that follow it here
  uint64_t num_messages_compared() const;  // once live

 private:
  Recovery(std::shared_ptr<const Plan> plan, std::shared_ptr<const Trace> trace,
           DeliveryObserver* recorder, ProcessId process, RunCuts cuts);
  bool is_here(GroupId group) const;
  Error text_of(const Divergence& divergence) const;

  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<const Trace> trace_;
  const std::shared_ptr<const Wiring> wiring_;
  DeliveryObserver* const recorder_;
  const ProcessId process_;
  const RunCuts cuts_;
  std::unique_ptr<const RecordedInputs> inputs_;        // null: all groups run here
  std::vector<std::unique_ptr<ReplayCursor>> cursors_;  // index = GroupId; null: runs elsewhere
  Time ended_;
  uint32_t incarnation_ = 1;
  std::vector<ProcessId> absent_;
  std::atomic<bool> is_live_{false};
};

}  // namespace primerl
