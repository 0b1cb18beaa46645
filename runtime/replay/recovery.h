/// Recovery: a run that a crash cut off, taken up again from its record. `run --resume` uses it.
///
/// Every host takes its recorded steps once more (a guided Host, host.h), each emission compared
/// with what was recorded, and goes live at the end: rollouts in flight, queues, timers and gates
/// stand as they stood. What resources said is taken from the record, or made again and compared:
/// that is for whoever makes them (recovered_engine.h, recovered_learner.h). All of it is recorded
/// anew, so that the record of the new start is whole by itself.
///
/// A step that had not ended when the run was cut is not in the record: its input is, and is
/// handled live. What cannot be taken up is refused by check(), with the reason.
///
/// Of a run of several processes each follows by itself, with what the others had sent it
/// (stored_message.h). A process of engines that died in the record and came back, or whose record
/// is not whole, is absent: it follows nothing and is new when the others go live, as if it had
/// died at that moment. What it had in hand is asked for again, as after any death of an engine.
///
/// Threads: as RunGuide says; the observer's calls on the thread of their host.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/exec/run_guide.h"
#include "runtime/replay/replay.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

class RecordedInputs;
class ReplayCursor;

/// A process that does not follow, and the newest incarnation of it that the record has heard of.
struct AbsentProcess {
  ProcessId process;
  uint32_t epoch = 0;
};

/// Their hosts: index = HostId. The trace fits the plan.
std::vector<bool> absent_hosts(const Plan& plan, const Trace& trace);

class Recovery final : public RunGuide, public DeliveryObserver, public RecordedAnswers {
 public:
  /// Whether a record can be taken up by a plan: whole from step 1 on, no excerpt, of the same
  /// nodes, edges and schemas, and cut off rather than ended. The error says what stands against
  /// it.
  static Status check(const Plan& plan, const Trace& trace);
  /// Of a record that check() has nothing against.
  static std::vector<AbsentProcess> absent_processes(const Plan& plan, const Trace& trace);

  /// `recorder` (may be null) is told of every step, repeated and new; it outlives the recovery.
  /// Of a run of several processes each follows what its own hosts did: `process`; none: all hosts.
  static Result<std::unique_ptr<Recovery>> make(std::shared_ptr<const Plan> plan,
                                                std::shared_ptr<const Trace> trace,
                                                DeliveryObserver* recorder,
                                                ProcessId process = ProcessId::none());
  ~Recovery() override;

  // RunGuide
  StepGuide& guide(HostId host) override;
  std::optional<Error> fault(HostId host) const override;
  Time started(HostId host) const override;
  Time ended() const override { return ended_; }
  uint32_t epoch() const override { return epoch_; }
  void go_live() override;
  Error stuck() const override;
  std::span<const ProcessId> absent() const override { return absent_; }
  // DeliveryObserver
  void on_start(HostId host, Time now) override;
  void on_step(const StepRecord& record) override;
  bool wants_emissions(LinkId link) const override;
  // RecordedAnswers
  const std::vector<std::byte>* take(HostId host) override;
  bool is_parallel() const override { return true; }

  const Trace& trace() const { return *trace_; }
  bool is_live() const { return is_live_.load(std::memory_order_acquire); }
  /// A resource came to another result than recorded: the host it belongs to stops here. On the
  /// host's thread, within its step.
  void diverged(HostId host, std::string what);
  uint64_t num_steps() const;              // of the record, by the hosts that follow it here
  uint64_t num_messages_compared() const;  // once live

 private:
  Recovery(std::shared_ptr<const Plan> plan, std::shared_ptr<const Trace> trace,
           DeliveryObserver* recorder, ProcessId process);
  bool is_here(HostId host) const;
  Error text_of(const Divergence& divergence) const;

  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<const Trace> trace_;
  const std::shared_ptr<const Wiring> wiring_;
  DeliveryObserver* const recorder_;
  const ProcessId process_;
  std::unique_ptr<const RecordedInputs> inputs_;        // null: all hosts are here
  std::vector<std::unique_ptr<ReplayCursor>> cursors_;  // index = HostId; null: not here
  Time ended_;
  uint32_t epoch_ = 1;
  std::vector<ProcessId> absent_;
  std::atomic<bool> is_live_{false};
};

}  // namespace primerl
