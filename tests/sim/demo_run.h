/// The demo's graph (examples/reverse_text/graph.toml) on the virtual executor: scripted engine and
/// learner, a small tenant, one kind of fault, everything checked after every step.
///
/// The graph is the file's, changed by `--set` alone; only the environment behind Env is a
/// stand-in, whose rewards follow from the action's text, since random letters are never a word
/// backwards.
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
  kNanReward,         // every eleventh reward is no number
  kFilteredGroups,    // a third of the tasks give everyone the same reward
  kStragglers,        // a tenth of the completions are ten times as long
  kHostile,           // environments do all that they must not: see side_by_side_test.cc
};
/// Those of the thousand seeds.
inline constexpr Fault kFaults[] = {
    Fault::kNone,      Fault::kEnvironmentError, Fault::kEnvironmentHang, Fault::kRefusedPrompt,
    Fault::kNanReward, Fault::kFilteredGroups,   Fault::kStragglers};
std::string_view to_string(Fault fault);

// The small tenant of every run that says nothing else.
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
  Duration environment_takes = {};  // of each call
  /// Events between two commands of a person who holds the engines or lets them go; 0 = nobody.
  uint64_t holds_every = 0;
  std::vector<std::string> sets = {};  // further `--set`s, after those of the case
};

/// Who looks on, and what is other than in a plain run. Everything outlives the run.
struct DemoHooks {
  DeliveryObserver* observer = nullptr;  // sees every step: a recorder
  ResourceFactory factory;               // null = the program's
  ReplaySource* step_source = nullptr;   // the run resumes
  /// Where the checkpoint of a step goes; null = one folder that every one fills anew.
  std::function<std::filesystem::path(int64_t step)> checkpoint_folder;
  std::function<void(int64_t step)> on_checkpoint;     // committed; may be null
  CutSink* cuts = nullptr;                             // of cuts that after_event orders
  std::function<void(std::string_view line)> on_line;  // of rollouts.jsonl, before it is kept
  /// Of a run that goes on from a cut: whoever looks on has not seen what came before.
  bool is_judged = true;
  /// Called after every event; null = nobody looks. An error is a violation.
  std::function<Status(VirtualExecutor& executor)> after_event;
};

struct DemoResult {
  RunOutcome outcome;
  std::vector<std::string> rollouts;    // rollouts.jsonl, line by line
  std::vector<std::string> violations;  // of the invariants, in order; empty = the run is right
  uint64_t trace_hash = 0;
  uint64_t num_steps = 0;
  Duration took;  // on the virtual clock
  int64_t num_abandoned = 0;
  int64_t num_pauses = 0, num_leases_ended = 0;   // of all engines
  std::vector<std::pair<std::string, int>> ends;  // "trained" -> how many, by name
  int num_of(std::string_view end) const;
};

DemoResult run_demo(const DemoCase& demo, const DemoHooks& hooks = {});
/// The plan that run_demo() runs; null when the graph is not valid.
std::shared_ptr<const Plan> demo_plan(const DemoCase& demo);
/// A folder in memory, where there is one, of this process alone; removed at its end.
const std::filesystem::path& scratch_folder();
/// Sets PRIMERL_SEED and names the test: what a person pastes to see one case again.
std::string repeat_command(const DemoCase& demo);

}  // namespace primerl::sim
