/// The demo's graph (examples/reverse_text/graph.toml) on the virtual executor: scripted engine and
/// learner, a small tenant, one kind of fault, everything checked after every step.
///
/// The graph is the file's, changed only by `--set`. Only the environment behind Env is a stand-in:
/// its rewards depend on the action's text, because random letters never spell a word backwards.
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
  kFilteredGroups,    // for a third of the tasks all rollouts get the same reward
  kStragglers,        // a tenth of the completions are ten times as long
  kHostile,           // environments break every rule: see side_by_side_test.cc
};
/// The faults of the thousand seeds.
inline constexpr Fault kFaults[] = {
    Fault::kNone,      Fault::kEnvironmentError, Fault::kEnvironmentHang, Fault::kRefusedPrompt,
    Fault::kNanReward, Fault::kFilteredGroups,   Fault::kStragglers};
std::string_view to_string(Fault fault);

// The small tenant of every run, unless a test changes it.
inline constexpr int64_t kGroupSize = 4;
inline constexpr int64_t kBatchSize = 8;
inline constexpr int64_t kMaxSteps = 4;

struct DemoCase {
  uint64_t seed = 1;
  int64_t max_off_policy_steps = 2;
  Fault fault = Fault::kNone;
  bool without_ended = false;  // the graph without `trainer.ended -> rollout.ended`
  int64_t checkpoint_every = 0;
  int64_t group_size = kGroupSize;
  int64_t batch_size = kBatchSize;
  int64_t max_steps = kMaxSteps;
  Duration environment_takes = {};  // duration of each call
  /// Events between two commands of a person who pauses and unpauses the engines; 0: no such
  /// person.
  uint64_t holds_every = 0;
  std::vector<std::string> sets = {};  // further `--set`s, after those of the case
};

/// Observers, and changes to a plain run. Everything must stay valid during the run.
struct DemoHooks {
  DeliveryObserver* observer = nullptr;  // sees every step: a recorder
  ResourceFactory factory;               // null = the program's
  ReplaySource* step_source = nullptr;   // for a resumed run
  /// Folder for the checkpoint of a step; null: one folder that each checkpoint fills again.
  std::function<std::filesystem::path(int64_t step)> checkpoint_folder;
  std::function<void(int64_t step)> on_checkpoint;     // committed; may be null
  CutSink* cuts = nullptr;                             // receives the cuts that after_event orders
  std::function<void(std::string_view line)> on_line;  // called for each line of rollouts.jsonl
                                                       // before it is kept
  /// False for a run that resumes from a cut, because the judge has not seen the earlier steps.
  bool is_judged = true;
  /// Called after every event; may be null. An error is a violation.
  std::function<Status(VirtualExecutor& executor)> after_event;
};

struct DemoResult {
  RunOutcome outcome;
  std::vector<std::string> rollouts;    // rollouts.jsonl, line by line
  std::vector<std::string> violations;  // broken rules, in order; empty: the run is correct
  uint64_t trace_hash = 0;
  uint64_t num_steps = 0;
  Duration took;  // on the virtual clock
  int64_t num_abandoned = 0;
  int64_t num_pauses = 0, num_leases_ended = 0;   // sums over all engines
  std::vector<std::pair<std::string, int>> ends;  // "trained" -> how many, by name
  int num_of(std::string_view end) const;
};

DemoResult run_demo(const DemoCase& demo, const DemoHooks& hooks = {});
/// The plan that run_demo() runs; null when the graph is not valid.
std::shared_ptr<const Plan> demo_plan(const DemoCase& demo);
/// A folder of this process, in memory if possible; removed when the process ends.
const std::filesystem::path& scratch_folder();
/// A command that repeats one case: it sets PRIMERL_SEED and names the test.
std::string repeat_command(const DemoCase& demo);

}  // namespace primerl::sim
