// Rewards of a judge on the virtual clock: scripted engines answer with random letters and digits,
// refuse and fail, and die with their process. Every rollout ends once, and the run ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/virtual_executor.h"
#include "tests/sim/no_host.h"

namespace primerl::sim {
namespace {

constexpr uint64_t kSeeds = 40;

struct JudgedCase {
  uint64_t seed = 1;
  int num_judges = 1;
  std::string options = "unparsed = \"zero\"";  // of each judge
  std::vector<std::string> sets = {};
  uint64_t death_every = 0;  // in events; the process of the judge's engine dies
};

struct JudgedResult {
  RunOutcome outcome;
  std::map<std::string, int> ends;     // rollouts by end
  std::map<std::string, int> reasons;  // of failed ones, up to the first digit
  int num_repeated = 0;                // rollouts that ended twice
};

class RolloutCounter final : public NoHost {
 public:
  explicit RolloutCounter(JudgedResult& result) : result_(result) {}
  Status append_line(std::string_view file, std::string_view text) override {
    if (file != "rollouts.jsonl") return ok();
    ASSIGN_OR_RETURN(const Json line, parse_json(text, "rollouts.jsonl"));
    ASSIGN_OR_RETURN(const std::string name, line.get_string("rollout"));
    ASSIGN_OR_RETURN(const std::string end, line.get_string("end"));
    result_.num_repeated += names_.insert(name).second ? 0 : 1;
    ++result_.ends[end];
    if (end != "failed") return ok();
    ASSIGN_OR_RETURN(std::string reason, line.get_string("reason"));
    ++result_.reasons[reason.substr(0, reason.find_first_of("0123456789"))];
    return ok();
  }

 private:
  JudgedResult& result_;
  std::set<std::string> names_;
};

std::string graph_of(const JudgedCase& judged) {
  std::string text =
      read_text_file(std::string(PRIMERL_SOURCE_DIR) + "/examples/reverse_text/graph.toml", 1 << 20)
          .value();
  std::string rewards;
  for (int i = 0; i < judged.num_judges; ++i)
    rewards += fmt::format(
        "  {{ name = \"judge\", rubric = \"r\", prompt = \"{{answer}}\", best = 1e6, {} }},\n",
        judged.options);
  const std::string tenant = "[tenant.main]";
  text.insert(text.find('\n', text.find(tenant)) + 1, "reward = [\n" + rewards + "]\n");
  return text +
         "\n[place]\ndriver = { nodes = [\"env\", \"rollout\", \"router\", \"prefill\", "
         "\"decode\", \"trainer\", \"broadcaster\", \"judge\", \"judge_router\"] }\n"
         "judging = { nodes = [\"judge_prefill\", \"judge_decode\"], replicas = 2 }\n";
}

std::shared_ptr<Plan> plan_of(const JudgedCase& judged) {
  const auto file = scratch_folder() / "judged.toml";
  std::ofstream(file) << graph_of(judged);
  Overrides overrides;
  overrides.sets = {
      fmt::format("model.policy.path=\"{}/examples/reverse_text/base\"", PRIMERL_SOURCE_DIR),
      "resource.engine.backend=\"scripted\"",
      "resource.judge.backend=\"scripted\"",
      "resource.learner.backend=\"scripted\"",
      "tenant.main.group_size=4",
      "tenant.main.batch_size=8",
      "tenant.main.max_steps=4",
      "tenant.main.filters={ zero_advantage = false }",
      "node.rollout.max_inflight=16"};
  overrides.sets.insert(overrides.sets.end(), judged.sets.begin(), judged.sets.end());
  overrides.cores = 2;
  const CheckedGraph graph = load_graph(file.string(), overrides, full_catalog());
  if (graph.plan == nullptr) {
    for (const auto& found : graph.diagnostics.all()) ADD_FAILURE() << found.message;
    return nullptr;
  }
  auto plan = std::make_shared<Plan>(*graph.plan);
  plan->settings.seed = static_cast<int64_t>(judged.seed);
  return plan;
}

ProcessId process_named(const Plan& plan, const std::string& name) {
  for (uint32_t i = 0; i < plan.processes.size(); ++i)
    if (plan.processes[i].name == name) return ProcessId(i);
  ADD_FAILURE() << "no process " << name;
  return {};
}

JudgedResult run_judged(const JudgedCase& judged) {
  JudgedResult result;
  const auto plan = plan_of(judged);
  if (plan == nullptr) return result;
  RolloutCounter services(result);
  VirtualExecutor executor(plan, resource_factory(), services,
                           {.seed = judged.seed, .events_max = 2'000'000, .repeat_with = {}});
  EXPECT_TRUE(executor.start().ok());
  const ProcessId dying = process_named(*plan, "judging#1");
  uint64_t num_events = 0;
  bool is_dead = false;
  while (executor.advance()) {
    if (judged.death_every == 0 || ++num_events % judged.death_every != 0) continue;
    if (is_dead)
      EXPECT_TRUE(executor.restart_process(dying).ok());
    else
      executor.kill(dying);
    is_dead = !is_dead;
  }
  result.outcome = executor.wait();
  return result;
}

void expect_ends_once(const JudgedResult& result, uint64_t seed) {
  EXPECT_EQ(result.outcome.end, RunEnd::kFinished) << "seed " << seed;
  EXPECT_TRUE(result.outcome.status.ok()) << "seed " << seed;
  EXPECT_EQ(result.num_repeated, 0) << "seed " << seed;
  EXPECT_GE(result.ends.contains("trained") ? result.ends.at("trained") : 0, 4 * 4)
      << "seed " << seed;
}

TEST(JudgedRun, EveryRolloutEndsOnceWithOneJudgeAndWithThree) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed)
    expect_ends_once(run_judged({.seed = seed, .num_judges = seed % 2 == 0 ? 1 : 3}), seed);
}

TEST(JudgedRun, AnswersWithoutANumberFailTheirRollouts) {
  int num_failed = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const auto result = run_judged({.seed = seed, .options = "unparsed = \"fail\""});
    EXPECT_EQ(result.num_repeated, 0);
    for (const auto& [reason, count] : result.reasons)
      if (reason.starts_with("the environment: the judge: ")) num_failed += count;
  }
  EXPECT_GT(num_failed, 0);
}

TEST(JudgedRun, ARefusedQuestionFailsItsRolloutAlone) {
  int num_refused = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto result = run_judged({.seed = seed, .sets = {"resource.judge.refuse_every=9"}});
    expect_ends_once(result, seed);
    for (const auto& [reason, count] : result.reasons) num_refused += count;
  }
  EXPECT_GT(num_refused, 0);
}

TEST(JudgedRun, ASlowJudgeFailsRolloutsAtItsDeadline) {
  int num_late = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const auto result = run_judged({.seed = seed,
                                    .num_judges = 2,
                                    .options = "unparsed = \"zero\", timeout = \"3ms\"",
                                    .sets = {"resource.judge.max_running=1"}});
    EXPECT_EQ(result.num_repeated, 0) << "seed " << seed;
    for (const auto& [reason, count] : result.reasons)
      if (reason.starts_with("the environment: the judge: no score within ")) num_late += count;
  }
  EXPECT_GT(num_late, 0);
}

TEST(JudgedRun, AnEngineOfTheJudgeThatDiesIsAskedAgain) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed)
    expect_ends_once(run_judged({.seed = seed, .num_judges = 2, .death_every = 150 + seed * 13}),
                     seed);
}

}  // namespace
}  // namespace primerl::sim
