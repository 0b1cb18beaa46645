/// The demo's graph (examples/reverse_text/graph.toml) on the virtual executor: scripted engine and
/// learner, a small tenant, one kind of fault, everything checked after every step.
///
/// The graph is the file's, changed only by `--set`. The environment of Env is a stand-in whose
/// rewards follow from the action's text, because random letters are never a word backwards.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/executor.h"
#include "runtime/exec/process_cut.h"
#include "runtime/exec/replay_source.h"
#include "runtime/exec/virtual_executor.h"

namespace primerl::sim {

enum class Fault {
  kNone,
  kEnvironmentError,  // every seventh call of the environment fails
  kEnvironmentHang,   // up to three calls outlast environment_timeout
  kRefusedPrompt,     // the engine refuses every ninth prompt
  kNanReward,         // every eleventh reward is NaN
  kFilteredGroups,    // a third of the tasks give all members the same reward
  kStragglers,        // a tenth of the completions are ten times as long
  kHostile,           // environments with all forbidden behaviour: see side_by_side_test.cc
};
/// The faults of the thousand seeds.
inline constexpr Fault kFaults[] = {
    Fault::kNone,      Fault::kEnvironmentError, Fault::kEnvironmentHang, Fault::kRefusedPrompt,
    Fault::kNanReward, Fault::kFilteredGroups,   Fault::kStragglers};
std::string_view to_string(Fault fault);

// The small tenant of every run that sets no other sizes.
inline constexpr int64_t kGroupSize = 4;
inline constexpr int64_t kBatchSize = 8;
inline constexpr int64_t kMaxSteps = 4;

struct DemoCase {
  uint64_t seed = 1;
  int64_t max_off_policy_steps = 2;
  Fault fault = Fault::kNone;
  std::string without_edge = {};  // the graph without it: "trainer.ended -> rollout.ended"
  int64_t checkpoint_every = 0;
  int64_t group_size = kGroupSize;
  int64_t batch_size = kBatchSize;
  int64_t max_steps = kMaxSteps;
  Duration environment_takes = {};  // time of each call
  /// Events between two commands of a person who pauses the engines or ends a pause; 0 = none.
  uint64_t holds_every = 0;
  std::vector<std::string> sets = {};  // more `--set`s, after those of the case
};

/// Observers of a run, and changes to a plain run. All must stay valid during the run.
struct DemoHooks {
  DeliveryObserver* observer = nullptr;  // sees every step: a recorder
  ResourceFactory factory;               // null = the program's resources
  ReplaySource* step_source = nullptr;   // the run resumes
  /// The folder for the checkpoint of a step; null = one folder that is used for all.
  std::function<std::filesystem::path(int64_t step)> checkpoint_folder;
  std::function<void(int64_t step)> on_checkpoint;     // called after its commit; may be null
  CutSink* cuts = nullptr;                             // receives the cuts that after_event orders
  std::function<void(std::string_view line)> on_line;  // called for each line of rollouts.jsonl
                                                       // before it is stored
  /// False for a run that continues from a cut: the judge has not seen its earlier steps.
  bool is_judged = true;
  /// Called after every event; null = no call. An error is a violation.
  std::function<Status(VirtualExecutor& executor)> after_event;
};

struct DemoResult {
  RunOutcome outcome;
  std::vector<std::string> rollouts;    // rollouts.jsonl, one item per line
  std::vector<std::string> violations;  // broken invariants, in order; empty = the run is right
  uint64_t trace_hash = 0;
  uint64_t num_steps = 0;
  Duration took;  // on the virtual clock
  int64_t num_abandoned = 0;
  int64_t num_pauses = 0, num_leases_ended = 0;   // of all engines
  std::vector<std::pair<std::string, int>> ends;  // by name: "trained" -> number
  int num_of(std::string_view end) const;
};

DemoResult run_demo(const DemoCase& demo, const DemoHooks& hooks = {});
/// The plan that run_demo() runs; null if the graph is not valid.
std::shared_ptr<const Plan> demo_plan(const DemoCase& demo);
/// A folder of this process in memory, if possible; removed at its end.
const std::filesystem::path& scratch_folder();
/// A command that sets PRIMERL_SEED and names the test, so that a person can repeat one case.
std::string repeat_command(const DemoCase& demo);

}  // namespace primerl::sim
