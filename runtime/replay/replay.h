/// Replay: a recorded run played again by the real actors, every emission compared.
///
/// Each actor group is *real* or *taken from the record*. A real one is a replaying ActorGroup
/// (actor_group.h) that takes its recorded steps in their recorded order, each as soon as its
/// message is here; its emissions are compared with those delivered in the recorded run, by payload
/// check, and then sent to the other real groups. A group taken from the record does not exist: its
/// messages are read from the trace, where edges with record = "payload" keep them. So one class
/// replays the whole graph (all real), `--depth learner` (the engine's group from the record) and
/// one node alone.
///
/// A group that differs stops there and its emissions are dropped, so consequences of a difference
/// are never compared: every divergence found is a first cause. Replay continues until no group can
/// make progress. Then a wait for a message that nobody sends is a divergence too, unless another
/// divergence explains it.
///
/// Threads: groups that own resources have one thread each; the others share `num_threads`.
/// Exception: with `num_threads` = 1 and equal `threads` of all compute resources, all groups share
/// one thread, and steps are in recorded order between groups, too. The order of steps within a
/// group is the record's on any number of threads. HostServices are called from all threads.
///
/// Order: make() -> [advance()...] | run(), once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/executor.h"
#include "runtime/replay/run_cuts.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

enum class DivergenceKind {
  kEmission,   // a message has another content, tenant or origin
  kCount,      // more or fewer messages than recorded
  kOutcome,    // the handler failed but did not in the recorded run, or the reverse
  kCourse,     // the group could not take the recorded step (a timer that is not armed)
  kMissing,    // a message that the record delivers was never sent
  kUnreadable  // the record itself: a payload that is damaged or not stored
};
std::string_view to_string(DivergenceKind kind);

struct Divergence {
  DivergenceKind kind = DivergenceKind::kEmission;
  GroupId group;
  uint64_t step = 0;
  Time began;                        // of the step in the recorded run
  std::string what;                  // one sentence
  std::vector<std::string> details;  // "reward: recorded 0.5, now 0.75"; the input that caused it
};

struct ReplayOptions {
  std::vector<bool> is_real;  // index = GroupId; empty = all
  /// Also not real: they died in the recorded run and came back, so several messages to them have
  /// the same number; these are not compared. Index = GroupId; empty = none.
  std::vector<bool> is_absent;
  uint32_t num_threads = 1;
  /// Runs `group` up to this step and no further; the others as far as they can.
  std::optional<GroupId> stop_group;
  uint64_t stop_step = 0;
  Duration step_max = Duration::seconds(600);  // a handler that takes longer is reported
};

struct ReplayReport {
  std::vector<uint64_t> num_steps;      // matched, by group; 0 for groups taken from the record
  std::vector<Divergence> divergences;  // by recorded time: the first is the one to look at
  std::vector<std::string> notes;       // limits of the result: cut tails, groups that are not real
  /// What was computed on a device and compared within a tolerance; "": all was, to the bit.
  std::string near;
  uint64_t num_messages_compared = 0;
  bool is_identical() const { return divergences.empty(); }
  uint64_t total_steps() const;
};

/// A resource's answers in the recorded run, for resources played from the record.
class ReplayedAnswers {
 public:
  virtual ~ReplayedAnswers() = default;
  /// The next answer in the current step of `group`; null: none is left.
  virtual const std::vector<std::byte>* take(GroupId group) = 0;
  /// Groups with resources run on their own threads: one may wait for what another publishes.
  virtual bool is_parallel() const = 0;
  /// What a resource computed differs from the record: its group stops here. On the group's thread,
  /// within its step.
  virtual void diverged(GroupId group, std::string what) = 0;
};

class PublishedVersions;  // replayed_channel.h
class NearNumbers;        // tolerance.h

struct ReplaySetup {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Trace> trace;
  /// Makes resources of real groups; `answers` lives as long as the replay.
  std::function<Result<std::unique_ptr<Resource>>(const Plan&, int32_t, ReplayedAnswers& answers)>
      factory;
  HostServices* host_services = nullptr;  // outlives the replay
  /// Steps wait for the weights that they took, where these are computed again; null: none are.
  std::shared_ptr<const PublishedVersions> published;
  /// What was compared within a tolerance, for the report; null: all is compared to the bit.
  std::shared_ptr<NearNumbers> near;
  /// From which the groups follow the record; empty: from their first step. Resources that go on
  /// from one answer from the record (ReplayDepth::kControl).
  RunCuts cuts;
  /// Sees every step of the real groups before it is compared, on their threads; may be null.
  DeliveryObserver* watcher = nullptr;
  /// Called by run() with the state of options.stop_group after options.stop_step, if it got there,
  /// on its thread and while its resources exist. An error ends the replay. May be empty.
  std::function<Status(const GroupState& state)> at_stop = {};
  ReplayOptions options;
};

/// Whether a plan can play a trace: same groups, instances, links and message schemas. The error
/// names the first that differs. Options may differ, so that a replay can try other values.
Status check_fits(const Plan& plan, const TraceCatalog& catalog);

/// Extends a choice of groups. A group must be real, too, if its messages to a real group are not
/// all stored, or if it makes the weights of an engine that really generates (`generates`); absent
/// groups excepted. Returns the reasons, one per added group.
std::vector<std::string> close_over(const Plan& plan, const Trace& trace, bool generates,
                                    const std::vector<bool>& is_absent, std::vector<bool>& is_real);

/// Incarnation of the recorded processes, which their messages carry; 1 when there are no messages.
/// `is_absent`: by group, whose messages are ignored; empty = none.
uint32_t recorded_incarnation(const Trace& trace, const std::vector<bool>& is_absent);
/// The same of a record that is followed from `cuts`, which may be empty.
uint32_t incarnation_of(const Plan& plan, const Trace& trace, const std::vector<bool>& is_absent,
                        const RunCuts& cuts);

class Replay {
 public:
  static Result<std::unique_ptr<Replay>> make(ReplaySetup setup);
  virtual ~Replay() = default;

  /// Plays to the end. kDeadline when a handler takes longer than step_max: its thread is lost, so
  /// end the process.
  virtual Result<ReplayReport> run() = 0;

  /// With one thread: takes one step, in order of recorded time. False: no group can make progress;
  /// `report()` then has the reason.
  virtual Result<bool> advance() = 0;
  /// The step advance() will take, if any can be taken. Starts the groups, as advance() does.
  virtual std::optional<TraceStep> upcoming() = 0;
  virtual ReplayReport report() = 0;
  /// State (what contracts name) and queues of a group, for a person.
  virtual Json describe(GroupId group) const = 0;
};

}  // namespace primerl
