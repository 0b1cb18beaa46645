/// Replay: repeats a recorded run with the real actors and compares every emission.
///
/// Each actor group is *real* or *taken from the record*. A real group is a replaying ActorGroup
/// (actor_group.h). It makes its recorded steps in their recorded order, each as soon as its
/// message has arrived. Its emissions are compared with those delivered in the recorded run, by
/// payload check, and then sent to the other real groups. A group taken from the record is not
/// created: its messages are read from the trace, where edges with record = "payload" keep them. So
/// one class replays the whole graph (all real), `--depth learner` (the engine's group from the
/// record) and a single node.
///
/// A group that differs stops there and its emissions are dropped. So consequences of a difference
/// are never compared: every divergence that is found is a first cause. Replay continues until no
/// group can make progress. Then a wait for a message that no group will send is a divergence too,
/// unless another divergence explains it.
///
/// Threads: groups that own resources have one thread each; the others share `num_threads`.
/// Exception: with `num_threads` = 1 and equal `threads` of all compute resources, all groups share
/// one thread, and the order of steps between groups is the recorded one too. The order of steps
/// within a group is the record's on any number of threads. ProcessServices are called from all
/// threads.
///
/// Order: make() -> [advance()...] | run(), once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/executor.h"
#include "runtime/replay/engine_resume.h"
#include "runtime/replay/run_cuts.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

enum class DivergenceKind {
  kEmission,   // a message has another content, tenant or origin
  kCount,      // more or fewer messages than recorded
  kOutcome,    // the handler failed now but not in the recorded run, or the reverse
  kCourse,     // the group cannot make the recorded step (a timer that is not set)
  kMissing,    // a recorded message was never sent
  kUnreadable  // the record itself is faulty: a payload is damaged or not stored
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
  /// Groups that are not real because they died in the recorded run and were restarted. Several
  /// messages to them have the same number, so these are not compared. Index = GroupId; empty =
  /// none.
  std::vector<bool> is_absent;
  uint32_t num_threads = 1;
  /// Runs `group` up to this step and no further; the others run as far as they can.
  std::optional<GroupId> stop_group;
  uint64_t stop_step = 0;
  /// By GroupId: the step after which a group is played no further, because the tenant that is
  /// played left its slot there. Empty: every group plays its whole record.
  std::vector<uint64_t> last_steps = {};
  Duration step_max = Duration::seconds(600);  // a handler that takes longer is reported
};

struct ReplayReport {
  std::vector<uint64_t> num_steps;      // matching steps, by group; 0 for groups taken from the
                                        // record
  std::vector<Divergence> divergences;  // by recorded time; look at the first one
  std::vector<std::string> notes;       // limits of the result: truncated tails, groups that are
                                        // not real
  /// Text about numbers that were computed on a device and compared within a tolerance. "": all
  /// were compared bit for bit.
  std::string near;
  uint64_t num_messages_compared = 0;
  bool is_identical() const { return divergences.empty(); }
  uint64_t total_steps() const;
};

/// A resource's answers in the recorded run, for resources that answer from the record.
class ReplayedAnswers {
 public:
  virtual ~ReplayedAnswers() = default;
  /// The next answer in the current step of `group`; null: no more.
  virtual const std::vector<std::byte>* take(GroupId group) = 0;
  /// The note that the recorded run made an engine (its resource) anew in the current step; each is
  /// returned once.
  virtual std::optional<EngineResume> next_engine_resume(GroupId group, int32_t resource) = 0;
  /// Groups with resources run on their own threads, so one may wait for weights that another
  /// publishes.
  virtual bool is_parallel() const = 0;
  /// A resource computed something different from the record: its group stops here. Called on the
  /// group's thread, within its step.
  virtual void diverged(GroupId group, std::string what) = 0;
};

class PublishedVersions;  // replayed_channel.h
class ToleranceCounts;    // tolerance.h

struct ReplaySetup {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Trace> trace;
  /// Makes the resources of real groups; `answers` stays valid as long as the replay.
  std::function<Result<std::shared_ptr<Resource>>(const Plan&, int32_t, ReplayedAnswers& answers)>
      factory;
  TenantMaker make_tenant = {};                 // see GroupSetup
  TenantResources tenant_resources = {};        // see GroupSetup
  ProcessServices* process_services = nullptr;  // must stay valid while the replay exists
  /// If weights are computed again, a step waits until the weights that it fetched were published.
  /// Null: no weights are computed.
  std::shared_ptr<const PublishedVersions> published;
  /// Counts the numbers compared within a tolerance, for the report; null: all are compared bit for
  /// bit.
  std::shared_ptr<ToleranceCounts> near;
  /// Cuts from which the groups follow the record; empty: from their first step. A resource that
  /// continues from a cut answers from the record (ReplayDepth::kControl).
  RunCuts cuts;
  /// Receives every step of the real groups before it is compared, on their threads; may be null.
  DeliveryObserver* watcher = nullptr;
  /// Called by run() with the state of options.stop_group after options.stop_step, if it got there,
  /// on its thread and while its resources exist. An error ends the replay. May be empty.
  std::function<Status(const GroupState& state)> at_stop = {};
  ReplayOptions options;
};

/// Whether a plan can replay a trace: same groups, instances, links and message schemas. The error
/// names the first difference. Options may differ, so that a replay can try other values.
Status check_fits(const Plan& plan, const TraceCatalog& catalog);

/// Extends a choice of groups. A group must be real, too, if its messages to a real group are not
/// all stored, or if it makes the weights of an engine that really generates (`generates`). Absent
/// groups are exempt. Returns the reasons, one per added group.
std::vector<std::string> close_over(const Plan& plan, const Trace& trace, bool generates,
                                    const std::vector<bool>& is_absent, std::vector<bool>& is_real);

/// Incarnation of the recorded processes, which their messages carry; 1 without messages.
/// `is_absent`: by group; messages of absent groups are ignored; empty: none.
uint32_t recorded_incarnation(const Trace& trace, const std::vector<bool>& is_absent);
/// Their incarnation in a record that is followed from `cuts`, which may be empty.
uint32_t incarnation_of(const Plan& plan, const Trace& trace, const std::vector<bool>& is_absent,
                        const RunCuts& cuts);

class Replay {
 public:
  static Result<std::unique_ptr<Replay>> make(ReplaySetup setup);
  virtual ~Replay() = default;

  /// Replays to the end. kDeadline when a handler takes longer than step_max: its thread is lost,
  /// so end the process.
  virtual Result<ReplayReport> run() = 0;

  /// With one thread: makes one step, in order of recorded time. False: no group can make progress;
  /// `report()` then has the reason.
  virtual Result<bool> advance() = 0;
  /// The step that advance() will make, if any. Starts the groups, as advance() does.
  virtual std::optional<TraceStep> upcoming() = 0;
  virtual ReplayReport report() = 0;
  /// State (the fields named by contracts) and queues of a group, for a person.
  virtual Json describe(GroupId group) const = 0;
};

}  // namespace primerl
