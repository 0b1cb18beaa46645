/// Replay: a recorded run played again by the real actors, every emission compared.
///
/// Each actor group is *real* or *taken from the record*. A real one is a replaying ActorGroup
/// (actor_group.h) that takes its recorded steps in their recorded order, each as soon as its
/// message is here; what it emits is compared with what was delivered in the recorded run, by
/// payload check, then goes on to the other real groups. A group taken from the record does not
/// exist: its messages are read from the trace, where edges with record = "payload" keep them. So
/// one class serves the whole graph (all real), `--depth learner` (the engine's group from the
/// record) and one node alone.
///
/// A group that differs stops there and its emissions are lost, so nothing that follows from a
/// difference is ever compared: every divergence found is a first cause. Replay goes on until
/// nothing can move, then waits for messages that nobody sends are divergences too, unless another
/// one explains them.
///
/// Threads: groups that own resources have one each (with one thread in all they share it, when
/// their resources have equal `threads`, and then steps follow the recorded time between groups
/// too); the others share `num_threads`. The order of steps within a group is the record's on any
/// number of threads. Surroundings are called from all of them.
///
/// Order: make() -> [advance()...] | run(), once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/executor.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

enum class DivergenceKind {
  kEmission,   // a message has another content, tenant or origin
  kCount,      // more or fewer messages than recorded
  kOutcome,    // the handler failed and did not then, or the other way round
  kCourse,     // the group could not do what the record says (a timer that is not armed)
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
  std::vector<std::string> details;  // "reward: recorded 0.5, now 0.75"; the input that led to it
};

struct ReplayOptions {
  std::vector<bool> is_real;  // index = GroupId; empty = all
  /// Not real either: they died in the recorded run and came back, so that a number names several
  /// messages to them, which are not compared. Index = GroupId; empty = none.
  std::vector<bool> is_absent;
  uint32_t num_threads = 1;
  /// Runs `group` up to this step and not beyond; the others as far as they get.
  std::optional<GroupId> stop_group;
  uint64_t stop_step = 0;
  Duration step_max = Duration::seconds(600);  // a handler that takes longer is reported
};

struct ReplayReport {
  std::vector<uint64_t> num_steps;      // matched, by group; 0 for groups taken from the record
  std::vector<Divergence> divergences;  // by recorded time: the first is the one to look at
  std::vector<std::string> notes;       // what limits what was shown: cut tails, groups not real
  uint64_t num_messages_compared = 0;
  bool is_identical() const { return divergences.empty(); }
  uint64_t total_steps() const;
};

/// What a resource of a group said in the recorded run, for resources played from the record.
class ReplayedAnswers {
 public:
  virtual ~ReplayedAnswers() = default;
  /// The next answer of the step that `group` is in; null: none is left.
  virtual const std::vector<std::byte>* take(GroupId group) = 0;
  /// Groups with resources run on threads of their own: one may wait for what another publishes.
  virtual bool is_parallel() const = 0;
};

struct ReplaySetup {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Trace> trace;
  /// Makes resources of real groups; `answers` lives as long as the replay.
  std::function<Result<std::unique_ptr<Resource>>(const Plan&, int32_t, ReplayedAnswers& answers)>
      factory;
  Surroundings* surroundings = nullptr;  // outlives the replay
  /// Sees every step of the real groups before it is compared, on their threads; may be null.
  DeliveryObserver* watcher = nullptr;
  ReplayOptions options;
};

/// Whether a trace can be played by a plan: same groups, instances, links and message schemas. The
/// error names the first that differs. Options may differ: that is what a replay can explore.
Status check_fits(const Plan& plan, const TraceCatalog& catalog);

/// Completes a choice of groups: one whose messages are not all stored (towards a real group), or
/// makes the weights of an engine that generates for real (`generates`), must be real too, but
/// those that are absent. Returns why, group by group.
std::vector<std::string> close_over(const Plan& plan, const Trace& trace, bool generates,
                                    const std::vector<bool>& is_absent, std::vector<bool>& is_real);

/// Incarnation of the processes that recorded: what their messages carry, 1 when there are none.
/// `is_absent`: by group, whose messages do not count; empty = none.
uint32_t recorded_incarnation(const Trace& trace, const std::vector<bool>& is_absent);

class Replay {
 public:
  static Result<std::unique_ptr<Replay>> make(ReplaySetup setup);
  virtual ~Replay() = default;

  /// Plays to the end. kDeadline when a handler takes longer than step_max: its thread is lost,
  /// end the process.
  virtual Result<ReplayReport> run() = 0;

  /// With one thread: one step, in order of recorded time. False: nothing can move. `report()` then
  /// says why.
  virtual Result<bool> advance() = 0;
  /// The step advance() will take, if any can be taken. Starts the groups, as advance() does.
  virtual std::optional<TraceStep> upcoming() = 0;
  virtual ReplayReport report() = 0;
  /// State (Actor::snapshot()) and queues of a group, for a person.
  virtual Json describe(GroupId group) const = 0;
};

}  // namespace primerl
