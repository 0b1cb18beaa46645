// Rollouts that their environment drives, on the virtual clock: scripted servers ask the scripted
// listener of the gateway. Whatever fails, every rollout ends exactly once, and the bounds of all
// edges hold.
//
// PRIMERL_SIM_SEEDS=5 is a shorter test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "actors/messages/rollout.h"
#include "graph/base/json.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/exec/virtual_executor.h"
#include "runtime/outside/scripted_clients.h"
#include "runtime/outside/scripted_outside.h"
#include "runtime/outside/scripted_runs.h"
#include "tests/sim/no_host.h"

namespace primerl::sim {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kGroup = 4, kBatch = 8, kSteps = 4;

const Catalog& the_catalog() {
  static const Catalog catalog = full_catalog();
  return catalog;
}

/// A short file: the gateway is implied.
CheckedGraph graph(const std::vector<std::string>& sets, const std::string& places = "") {
  const auto file = scratch_folder() / "runs.toml";
  std::ofstream(file) << fmt::format(
      "[tenant.main]\nenvironment = {{ name = \"verifiers\", id = \"x\", run_timeout = \"60s\" }}\n"
      "group_size = {}\nbatch_size = {}\nmax_steps = {}\nmax_off_policy_steps = 2\n"
      "turns_max = 4\nseq_len = 64\nsampling = {{ max_tokens = 6 }}\n"
      "filters = {{ zero_advantage = false }}\n"
      "[model.policy]\npath = \"{}/examples/reverse_text/base\"\n"
      "[resource.engine]\nbackend = \"scripted\"\n[resource.learner]\nbackend = \"scripted\"\n"
      "[node.rollout]\nmax_inflight = 16\n{}",
      kGroup, kBatch, kSteps, PRIMERL_SOURCE_DIR, places);
  Overrides overrides;
  overrides.sets = sets;
  overrides.cores = 2;
  return load_graph(file.string(), overrides, the_catalog());
}

/// Keeps the lines of rollouts.jsonl.
class LineHost final : public NoHost {
 public:
  Status append_line(std::string_view file, std::string_view line) override {
    if (file == "rollouts.jsonl") lines.emplace_back(line);
    return ok();
  }
  std::vector<std::string> lines;
};

struct RunsCase {
  uint64_t seed = 1;
  ScriptedRunsOptions options = {};
  uint64_t remakes_every = 0;  // events between two groups that are made anew from their state
  uint64_t deaths_every = 0;   // events between two deaths of an environment's process
  std::string mortal = {};     // the process that dies
};

struct RunsResult {
  RunOutcome outcome;
  std::string fault;  // of the test's own events
  std::vector<std::string> lines;
  std::map<std::string, int64_t> counters;
  int64_t num_of(const std::string& counter) const {
    const auto found = counters.find(counter);
    return found == counters.end() ? 0 : found->second;
  }
};

/// What else happens, after each event.
class RunsFate {
 public:
  RunsFate(const RunsCase& of, const Plan& plan)
      : case_(of), plan_(plan), random_(mix(of.seed, 5)) {
    for (uint32_t i = 0; i < plan.processes.size(); ++i)
      if (plan.processes[i].name.starts_with(of.mortal) && plan.processes[i].replica > 0)
        mortal_.push_back(ProcessId(i));
  }
  Status after_event(VirtualExecutor& executor) {
    ++num_events_;
    if (executor.status().is_draining) return ok();
    if (dead_ && num_events_ >= back_at_)
      RETURN_IF_ERROR(executor.restart_process(*std::exchange(dead_, std::nullopt)));
    if (case_.deaths_every > 0 && !dead_ && num_events_ % case_.deaths_every == 0) {
      dead_ = mortal_[random_.below(mortal_.size())];
      executor.kill(*dead_);
      back_at_ = num_events_ + 20;
    }
    if (case_.remakes_every == 0 || num_events_ % case_.remakes_every != 0) return ok();
    const GroupId group(static_cast<uint32_t>(random_.below(plan_.groups.size())));
    return executor.may_remake(group) ? executor.remake(group, nullptr) : ok();
  }

 private:
  const RunsCase case_;
  const Plan& plan_;
  RandomStream random_;
  std::vector<ProcessId> mortal_;
  std::optional<ProcessId> dead_;
  uint64_t num_events_ = 0, back_at_ = 0;
};

RunsResult play(const CheckedGraph& checked, const RunsCase& of) {
  RunsResult result;
  if (checked.plan == nullptr) {
    for (const auto& found : checked.diagnostics.all())
      result.fault += fmt::format("{}: {}\n", found.code, found.message);
    return result;
  }
  auto plan = std::make_shared<Plan>(*checked.plan);
  plan->settings.seed = static_cast<int64_t>(of.seed);
  const auto requests = std::make_shared<ScriptedRequests>();
  const ResourceFactory others = resource_factory();
  const ResourceFactory factory = [&](const Plan& all,
                                      int32_t index) -> Result<std::shared_ptr<Resource>> {
    const PlanResource& resource = all.resources[static_cast<size_t>(index)];
    if (resource.kind != Outside::kResourceKind) return others(all, index);
    if (resource.backend == "http")
      return std::shared_ptr<Resource>(
          make_scripted_clients({.num_requests = 0}, nullptr, requests));
    return std::shared_ptr<Resource>(
        make_scripted_runs(*static_cast<const OutsideSpec*>(resource.options.get()),
                           make_scripted_outside({}), requests, of.options));
  };
  LineHost host;
  VirtualExecutor executor(plan, factory, host,
                           {.seed = of.seed, .events_max = 400'000, .repeat_with = {}});
  if (const Status started = executor.start(); !started.ok()) {
    result.fault = started.error().text();
    return result;
  }
  RunsFate fate(of, *plan);
  while (executor.advance()) {
    const Status lived = fate.after_event(executor);
    if (lived.ok()) continue;
    result.fault = lived.error().text();
    return result;
  }
  result.outcome = executor.wait();
  for (const auto& [name, count] : executor.counters())
    result.counters[name.substr(name.rfind('.') + 1)] += count;
  result.lines = std::move(host.lines);
  return result;
}

/// The run finished, and each rollout of each group that opened ended once.
void expect_right(const RunsResult& result) {
  ASSERT_THAT(result.fault, IsEmpty());
  EXPECT_EQ(result.outcome.end, RunEnd::kFinished)
      << (result.outcome.status.ok() ? "" : result.outcome.status.error().text())
      << (result.outcome.end == RunEnd::kStalled ? result.outcome.stall.text() : "");
  std::map<std::string, int> ends;
  std::map<std::string, int> by_name;
  for (const std::string& text : result.lines) {
    const Json line = parse_json(text, "rollouts.jsonl").value();
    ++by_name[*line.get_string("rollout")];
    ++ends[*line.get_string("end")];
  }
  for (const auto& [name, count] : by_name) EXPECT_EQ(count, 1) << name;
  const int64_t opened = result.num_of("groups_opened") * kGroup;
  const int64_t rows = result.num_of("evaluation_rows_opened") * 2;
  EXPECT_EQ(std::ssize(result.lines), opened + rows);
  EXPECT_GE(ends["trained"], 2 * kSteps) << "a group needs two survivors";
}

uint64_t num_seeds(uint64_t most) {
  const char* few = std::getenv("PRIMERL_SIM_SEEDS");
  return few == nullptr ? most : std::min<uint64_t>(most, std::strtoull(few, nullptr, 10));
}

TEST(DrivenRuns, TrainWhatTheGatewayMade) {
  const auto checked = graph({});
  int64_t num_unmatched = 0, num_begun = 0;
  for (uint64_t seed = 1; seed <= num_seeds(12); ++seed) {
    SCOPED_TRACE(seed);
    const RunsResult result = play(checked, {.seed = seed});
    expect_right(result);
    EXPECT_EQ(result.num_of("turns_dropped"), 0);
    num_unmatched += result.num_of("turns_unmatched");
    num_begun += result.num_of("samples_begun");
  }
  EXPECT_GT(num_unmatched, 0) << "retries and rewritten answers";
  EXPECT_GT(num_begun, 0) << "two agents";
}

TEST(DrivenRuns, EndOnceWhateverTheirServersDo) {
  const auto checked = graph({"tenant.main.environment.run_timeout=\"2s\""});
  RunsCase faulty;
  faulty.options = {.fault_every = 9, .lose_every = 7, .hang_every = 13, .wrong_every = 11};
  int64_t num_repeated = 0;
  for (faulty.seed = 1; faulty.seed <= num_seeds(12); ++faulty.seed) {
    SCOPED_TRACE(faulty.seed);
    const RunsResult result = play(checked, faulty);
    expect_right(result);
    num_repeated += result.num_of("runs_repeated");
  }
  EXPECT_GT(num_repeated, 0);
}

TEST(DrivenRuns, GroupsThatAreScoredTogetherTrain) {
  const auto checked = graph({});
  RunsCase together;
  together.options = {.lose_every = 9, .scores_groups = true};
  for (together.seed = 1; together.seed <= num_seeds(6); ++together.seed) {
    SCOPED_TRACE(together.seed);
    expect_right(play(checked, together));
  }
}

TEST(DrivenRuns, EnginesAndRequestsMayFail) {
  const auto checked = graph({"resource.engine.refuse_every=9", "node.gateway.max_inflight=3"});
  for (uint64_t seed = 1; seed <= num_seeds(6); ++seed) {
    SCOPED_TRACE(seed);
    expect_right(play(checked, {.seed = seed}));
  }
}

TEST(DrivenRuns, RowsAreEvaluatedByRuns) {
  const auto checked = graph({"tenant.main.eval={ interval = 2, rows = 2, samples = 2 }"});
  const RunsResult result = play(checked, {.seed = 3});
  expect_right(result);
  EXPECT_GT(result.num_of("evaluations"), 0);
}

TEST(DrivenRuns, ActorsThatAreMadeAnewContinue) {
  const auto checked = graph({});
  RunsCase remade;
  remade.remakes_every = 7;
  remade.options = {.fault_every = 9, .lose_every = 7};
  for (remade.seed = 1; remade.seed <= num_seeds(6); ++remade.seed) {
    SCOPED_TRACE(remade.seed);
    expect_right(play(checked, remade));
  }
}

TEST(DrivenRuns, RunsOfALostEnvironmentBeginAgain) {
  const auto checked =
      graph({"resource.weights.backend=\"auto\""},
            "[place]\ndriver = { nodes = [\"rollout\", \"router\", \"prefill\", \"decode\", "
            "\"trainer\", \"broadcaster\", \"gateway\"] }\n"
            "judges = { nodes = [\"env\"], replicas = 3 }\n");
  RunsCase deadly;
  deadly.mortal = "judges";
  deadly.deaths_every = 150;
  int64_t num_repeated = 0;
  for (deadly.seed = 1; deadly.seed <= num_seeds(8); ++deadly.seed) {
    SCOPED_TRACE(deadly.seed);
    const RunsResult result = play(checked, deadly);
    expect_right(result);
    num_repeated += result.num_of("runs_repeated");
  }
  EXPECT_GT(num_repeated, 0);
}

}  // namespace
}  // namespace primerl::sim
