// A teacher on the virtual clock: scripted engines refuse, fail, are slow and die with their
// process. Every rollout ends once, only rollouts with log-probabilities train, and the run ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "actors/messages/rollout.h"
#include "graph/base/json.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/virtual_executor.h"
#include "tests/sim/no_host.h"

namespace primerl::sim {
namespace {

constexpr uint64_t kTaughtSeeds = 30;

struct TaughtCase {
  uint64_t seed = 1;
  std::vector<std::string> sets = {};
  uint64_t death_every = 0;  // in events; a process of the teacher's engine dies
};

struct TaughtResult {
  RunOutcome outcome;
  std::map<std::string, int> ends;  // rollouts by end
  std::set<std::string> reasons;    // of failed ones
  int num_repeated = 0;             // rollouts that ended twice
};

class TaughtRollouts final : public NoHost {
 public:
  explicit TaughtRollouts(TaughtResult& result) : result_(result) {}
  Status append_line(std::string_view file, std::string_view text) override {
    if (file != "rollouts.jsonl") return ok();
    ASSIGN_OR_RETURN(const Json line, parse_json(text, "rollouts.jsonl"));
    ASSIGN_OR_RETURN(const std::string name, line.get_string("rollout"));
    ASSIGN_OR_RETURN(const std::string end, line.get_string("end"));
    result_.num_repeated += names_.insert(name).second ? 0 : 1;
    ++result_.ends[end];
    if (end != "failed") return ok();
    ASSIGN_OR_RETURN(const std::string reason, line.get_string("reason"));
    result_.reasons.insert(reason);
    return ok();
  }

 private:
  TaughtResult& result_;
  std::set<std::string> names_;
};

std::shared_ptr<Plan> taught_plan(const TaughtCase& taught) {
  const std::string model =
      fmt::format("path = \"{}/examples/reverse_text/base\"\n", PRIMERL_SOURCE_DIR);
  const std::string text =
      "[tenant.main]\nenvironment = { name = \"reverse_text\" }\nteacher = { model = \"big\" }\n"
      "loss = { kind = \"ref_kl\" }\ngroup_size = 4\nbatch_size = 8\nmax_steps = 4\n"
      "[model.policy]\n" +
      model + "[model.big]\n" + model +
      "[resource.engine]\nbackend = \"scripted\"\n[resource.teacher]\nbackend = \"scripted\"\n"
      "[resource.learner]\nbackend = \"scripted\"\n[node.rollout]\nmax_inflight = 16\n"
      "[place]\ndriver = { nodes = [\"env\", \"rollout\", \"router\", \"prefill\", \"decode\", "
      "\"trainer\", \"broadcaster\", \"teacher\", \"teacher_router\"] }\n"
      "teaching = { nodes = [\"teacher_prefill\", \"teacher_decode\"], replicas = 2 }\n";
  Overrides overrides;
  overrides.sets = taught.sets;
  overrides.cores = 2;
  const CheckedGraph graph =
      load_graph_text(text, "taught.toml", PRIMERL_SOURCE_DIR, overrides, full_catalog());
  if (graph.plan == nullptr) {
    for (const auto& found : graph.diagnostics.all()) ADD_FAILURE() << found.message;
    return nullptr;
  }
  auto plan = std::make_shared<Plan>(*graph.plan);
  plan->settings.seed = static_cast<int64_t>(taught.seed);
  return plan;
}

TaughtResult run_taught(const TaughtCase& taught) {
  TaughtResult result;
  const auto plan = taught_plan(taught);
  if (plan == nullptr) return result;
  TaughtRollouts services(result);
  VirtualExecutor executor(plan, resource_factory(), services,
                           {.seed = taught.seed, .events_max = 2'000'000, .repeat_with = {}});
  EXPECT_TRUE(executor.start().ok());
  ProcessId dying;
  for (uint32_t i = 0; i < plan->processes.size(); ++i)
    if (plan->processes[i].name == "teaching#1") dying = ProcessId(i);
  uint64_t num_events = 0;
  bool is_dead = false;
  while (executor.advance()) {
    if (taught.death_every == 0 || ++num_events % taught.death_every != 0) continue;
    if (is_dead)
      EXPECT_TRUE(executor.restart_process(dying).ok());
    else
      executor.kill(dying);
    is_dead = !is_dead;
  }
  result.outcome = executor.wait();
  return result;
}

void expect_taught_once(const TaughtResult& result, uint64_t seed) {
  EXPECT_EQ(result.outcome.end, RunEnd::kFinished) << "seed " << seed;
  EXPECT_TRUE(result.outcome.status.ok()) << "seed " << seed;
  EXPECT_EQ(result.num_repeated, 0) << "seed " << seed;
  EXPECT_GE(result.ends.contains("trained") ? result.ends.at("trained") : 0, 4 * 4)
      << "seed " << seed;
  for (size_t i = 0; i < result.outcome.ledger.size(); ++i)
    EXPECT_TRUE(result.outcome.ledger[i].balances()) << "seed " << seed << ", edge " << i;
}

TEST(TaughtRun, EveryRolloutEndsOnce) {
  for (uint64_t seed = 1; seed <= kTaughtSeeds; ++seed) {
    const auto result = run_taught({.seed = seed});
    expect_taught_once(result, seed);
    EXPECT_TRUE(result.reasons.empty()) << *result.reasons.begin();
  }
}

TEST(TaughtRun, ARefusedSampleFailsItsRolloutAlone) {
  size_t num_refused = 0;
  for (uint64_t seed = 1; seed <= kTaughtSeeds; ++seed) {
    const auto result = run_taught({.seed = seed, .sets = {"resource.teacher.refuse_every=9"}});
    expect_taught_once(result, seed);
    for (const std::string& reason : result.reasons) {
      EXPECT_TRUE(reason.starts_with("the teacher: refused")) << reason;
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 0U);
}

TEST(TaughtRun, ASlowTeacherFailsRolloutsAtItsDeadline) {
  size_t num_late = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const auto result =
        run_taught({.seed = seed,
                    .sets = {"tenant.main.teacher={ model = \"big\", timeout = \"3ms\" }",
                             "resource.teacher.max_running=1"}});
    EXPECT_EQ(result.num_repeated, 0) << "seed " << seed;
    for (const std::string& reason : result.reasons)
      num_late += reason.starts_with("the teacher: no log-probabilities within ") ? 1 : 0;
  }
  EXPECT_GT(num_late, 0U);
}

TEST(TaughtRun, AnEngineOfTheTeacherThatDiesIsAskedAgain) {
  for (uint64_t seed = 1; seed <= kTaughtSeeds; ++seed)
    expect_taught_once(run_taught({.seed = seed, .death_every = 150 + seed * 13}), seed);
}

TEST(TaughtRun, NarrowBoundsOnlyMakeItSlower) {
  for (uint64_t seed = 1; seed <= 10; ++seed)
    expect_taught_once(
        run_taught(
            {.seed = seed, .sets = {"node.teacher.groups_max=1", "node.teacher.requests_max=1"}}),
        seed);
}

}  // namespace
}  // namespace primerl::sim
