/// Recovery: resumes an interrupted run from its record. `run --resume` uses it.
///
/// Every group repeats its recorded steps, from the first one or from its part of a cut
/// (run_cuts.h), as a replaying ActorGroup (actor_group.h). Each emission is compared with the
/// recorded one. At the end the group resumes: rollouts in flight, queues, timers and gates are as
/// they were. Answers of resources are read from the record, or computed again and compared; the
/// resources decide which (resuming_engine.h, resuming_learner.h). All of it is recorded again, so
/// the record of the new start is complete without the old one.
///
/// A step that had not ended when the run was interrupted is not in the record. Its input is, and
/// it is handled after the groups resume. record_prefix.h defines how far a record is followed, and
/// by which groups. In a run of several processes each follows its own record, with the recorded
/// messages of the others (stored_message.h).
///
/// Threads: as for ReplaySource; the observer's calls on the thread of their group.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/exec/replay_source.h"
#include "runtime/replay/record_prefix.h"
#include "runtime/replay/replay.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

class RecordedInputs;
class ReplayCursor;

class Recovery final : public ReplaySource, public DeliveryObserver, public ReplayedAnswers {
 public:
  /// `recorder` (may be null) receives every step, repeated or new. It must stay valid while the
  /// recovery exists. `process`: in a run of several processes, the one whose groups follow; none:
  /// all groups. `cuts`: of all processes that follow, or empty.
  Recovery(std::shared_ptr<const Plan> plan, RecordPrefix prefix, DeliveryObserver* recorder,
           ProcessId process = ProcessId::none(), RunCuts cuts = {});
  ~Recovery() override;

  // ReplaySource
  StepSource& step_source(GroupId group) override;
  std::optional<Error> fault(GroupId group) const override;
  Time started(GroupId group) const override;
  Time ended() const override { return prefix_.ended; }
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
  /// Engines of a recovery answer from the record, whichever start made it.
  std::optional<EngineResume> next_engine_resume(GroupId, int32_t) override { return std::nullopt; }
  bool is_parallel() const override { return true; }
  void diverged(GroupId group, std::string what) override;

  /// An engine of `group` continues in the current step; on_step() records it. On the group's
  /// thread.
  void engine_resumed(GroupId group, const EngineResume& resume);

  const RunCuts& cuts() const { return cuts_; }
  const Trace& trace() const { return *prefix_.trace; }
  bool is_live() const { return is_live_.load(std::memory_order_acquire); }
  uint64_t num_steps() const;              // of the record: steps of groups that follow it in this
                                           // process
  uint64_t num_messages_compared() const;  // once live

 private:
  bool is_here(GroupId group) const;
  Error text_of(const Divergence& divergence) const;

  const std::shared_ptr<const Plan> plan_;
  const RecordPrefix prefix_;
  const std::shared_ptr<const Wiring> wiring_;
  DeliveryObserver* const recorder_;
  const ProcessId process_;
  const RunCuts cuts_;
  std::unique_ptr<const RecordedInputs> inputs_;        // null: all groups run here
  std::vector<std::unique_ptr<ReplayCursor>> cursors_;  // index = GroupId; null: the group runs in
                                                        // another process
  // By GroupId, each used on its group's thread: notes of the current step.
  std::vector<std::vector<std::vector<std::byte>>> engine_resumes_;
  uint32_t incarnation_ = 1;
  std::vector<ProcessId> absent_;
  std::atomic<bool> is_live_{false};
};

}  // namespace primerl
