// The seven actors together, unchanged, on the virtual executor with a scripted engine and learner:
// every order of events that a seed chooses, and every invariant of a run at its end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "actors/messages/policy.h"
#include "actors/messages/rollout.h"
#include "graph/plan.h"
#include "kernels/scripted/scripted_engine.h"
#include "kernels/scripted/scripted_learner.h"
#include "kernels/text/tokenizer.h"
#include "kernels/weights/memory_channel.h"
#include "runtime/bin/resource_catalog.h"
#include "runtime/exec/virtual_executor.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// The demo's graph on scripted resources; `tenant` lines are added to the tenant's table.
std::string graph_text(const std::string& tenant, const std::string& engine) {
  std::ifstream file(std::string(PRIMERL_SOURCE_DIR) + "/examples/reverse_text/graph.toml");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::string edges = text.substr(text.find("[edges]"));
  return fmt::format(R"(
[graph]
name = "flow"
seed = 5
[tenant.main]
environment = {{ name = "reverse_text" }}
group_size = 2
batch_size = 4
max_steps = 4
filters = {{ zero_advantage = false }}
{}
[model.policy]
path = "{}/examples/reverse_text/base"
[resource.weights]
kind = "weight_channel"
[resource.engine]
kind = "engine"
backend = "scripted"
vocab_size = 97
{}
[resource.learner]
kind = "learner"
backend = "scripted"
[node.env]
actor = "env"
per_tenant = true
[node.rollout]
actor = "rollout"
per_tenant = true
max_inflight = 8
[node.router]
actor = "router"
[node.prefill]
actor = "prefill"
[node.decode]
actor = "decode"
[node.trainer]
actor = "trainer"
[node.broadcaster]
actor = "broadcaster"
{}
)",
                     tenant, PRIMERL_SOURCE_DIR, engine, edges);
}

class SharedTokenizer final : public Tokenizer {
 public:
  explicit SharedTokenizer(std::shared_ptr<Tokenizer> shared) : shared_(std::move(shared)) {}
  Result<std::vector<int32_t>> encode(std::string_view text) const override {
    return shared_->encode(text);
  }
  Result<std::string> decode(const std::vector<int32_t>& ids, bool skip) const override {
    return shared_->decode(ids, skip);
  }
  int32_t vocab_size() const override { return shared_->vocab_size(); }
  const std::vector<int32_t>& eos_ids() const override { return shared_->eos_ids(); }
  int32_t pad_id() const override { return shared_->pad_id(); }

 private:
  std::shared_ptr<Tokenizer> shared_;
};

class SharedChannel final : public WeightChannel {
 public:
  Status publish(std::shared_ptr<const WeightSnapshot> snapshot) override {
    return channel_->publish(std::move(snapshot));
  }
  Result<std::shared_ptr<const WeightSnapshot>> fetch(PolicyVersion version) override {
    return channel_->fetch(version);
  }
  PolicyVersion newest() const override { return channel_->newest(); }

 private:
  std::shared_ptr<WeightChannel> channel_ = make_memory_channel();
};

Result<std::unique_ptr<Resource>> make_resource(const Plan& plan, int32_t index) {
  const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
  if (resource.kind == "weight_channel")
    return std::unique_ptr<Resource>(std::make_unique<SharedChannel>());
  if (resource.kind == "tokenizer") {
    ASSIGN_OR_RETURN(auto shared,
                     load_tokenizer(plan.models[static_cast<size_t>(resource.model)].path));
    return std::unique_ptr<Resource>(std::make_unique<SharedTokenizer>(std::move(shared)));
  }
  if (resource.kind == "engine") {
    ASSIGN_OR_RETURN(
        auto engine,
        make_scripted_engine(*static_cast<const ScriptedEngineOptions*>(resource.options.get())));
    return std::unique_ptr<Resource>(std::move(engine));
  }
  ASSIGN_OR_RETURN(
      auto learner,
      make_scripted_learner(*static_cast<const ScriptedLearnerOptions*>(resource.options.get())));
  return std::unique_ptr<Resource>(std::move(learner));
}

/// What a run leaves behind, in memory.
class Remembered final : public Surroundings, public RunFiles {
 public:
  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot, int64_t step, const MetricValues& values) override {
    steps.push_back(step);
    for (const auto& [name, value] : values)
      if (name == "off_policy/max") off_policy_max = std::max(off_policy_max, value);
  }
  void log(LogLevel level, std::string_view instance, std::string_view text) override {
    if (level >= LogLevel::kWarning) complaints += fmt::format("{}: {}\n", instance, text);
  }
  const ResumePoint* resume_point(TenantSlot) const override { return nullptr; }
  Status append_line(std::string_view, std::string_view line) override {
    lines.emplace_back(line);
    return ok();
  }
  Result<std::filesystem::path> begin_checkpoint(TenantSlot, int64_t step) override {
    const auto folder = std::filesystem::path(::testing::TempDir()) / "flow_test" /
                        ::testing::UnitTest::GetInstance()->current_test_info()->name() /
                        fmt::format("step_{}", step);
    std::filesystem::create_directories(folder);
    return folder;
  }
  Status commit_checkpoint(TenantSlot, int64_t step, const Json&) override {
    checkpoints.push_back(step);
    return ok();
  }

  std::vector<int64_t> steps;
  double off_policy_max = 0;
  std::string complaints;
  std::vector<std::string> lines;
  std::vector<int64_t> checkpoints;
};

/// Follows the conversations: every request one answer, every group one end, versions never back.
class Witness final : public VirtualWorld {
 public:
  void after(const StepRecord& record) override {
    for (const Envelope& emission : record.emissions) see(emission);
  }
  void see(const Envelope& emission) {
    const Payload& payload = emission.payload;
    if (payload.type == &message_type<GenerateRequest>()) {
      // The router passes requests on; the rollout's own is the first sight.
      ++asked[payload.as<GenerateRequest>().request];
    } else if (payload.type == &message_type<Completion>()) {
      ++answered[payload.as<Completion>().request];
    } else if (payload.type == &message_type<TrajectoryGroup>()) {
      ++delivered[payload.as<TrajectoryGroup>().ordinal];
    } else if (payload.type == &message_type<GroupEnded>()) {
      ++ended[payload.as<GroupEnded>().ordinal];
    } else if (payload.type == &message_type<PolicyLive>()) {
      EXPECT_GT(payload.as<PolicyLive>().version, live);
      live = payload.as<PolicyLive>().version;
    }
  }
  void expect_balanced() const {
    for (const auto& [request, count] : answered) EXPECT_EQ(count, 1) << "request " << request;
    EXPECT_EQ(asked.size(), answered.size());
    for (const auto& [ordinal, count] : delivered) EXPECT_EQ(count, 1) << "group " << ordinal;
    EXPECT_EQ(delivered, ended);
  }
  std::map<uint64_t, int> asked, answered, delivered, ended;
  PolicyVersion live;
};

struct Ran {
  RunOutcome outcome;
  Remembered remembered;
  std::map<std::string, int> ends;
};

std::unique_ptr<Ran> run(const std::string& text, uint64_t seed) {
  auto ran = std::make_unique<Ran>();
  auto checked = load_graph_text(text, "flow.toml", PRIMERL_SOURCE_DIR, {}, full_catalog());
  EXPECT_NE(checked.plan, nullptr) << render(checked.diagnostics, checked.sources);
  if (checked.plan == nullptr) return ran;
  Witness witness;
  VirtualExecutor executor(checked.plan, make_resource, ran->remembered,
                           {.seed = seed,
                            .world = &witness,
                            .events_max = 3'000'000,
                            .repeat_with = fmt::format("seed {}", seed)});
  const Status started = executor.start();
  EXPECT_TRUE(started.ok()) << (started.ok() ? "" : started.error().text());
  ran->outcome = executor.wait();
  witness.expect_balanced();
  std::map<std::string, int> rollouts;
  for (const auto& line : ran->remembered.lines) {
    const Json json = *parse_json(line, "rollouts.jsonl");
    ++rollouts[*json.get_string("rollout")];
    ++ran->ends[*json.get_string("end")];
  }
  for (const auto& [name, count] : rollouts) EXPECT_EQ(count, 1) << name << " ended twice";
  for (const auto& edge : ran->outcome.ledger) EXPECT_TRUE(edge.balances());
  return ran;
}

void expect_clean_end(const Ran& ran, const std::string& what) {
  EXPECT_EQ(ran.outcome.end, RunEnd::kFinished)
      << what << ": " << (ran.outcome.status.ok() ? "" : ran.outcome.status.error().text()) << "\n"
      << ran.outcome.stall.text() << ran.remembered.complaints;
  EXPECT_THAT(ran.remembered.steps, SizeIs(4)) << what;
  EXPECT_EQ(ran.remembered.checkpoints, std::vector<int64_t>{4}) << what;
}

struct Flow : ::testing::TestWithParam<int64_t> {
  std::string limit() const { return fmt::format("max_off_policy_steps = {}\n", GetParam()); }
};

TEST_P(Flow, EveryOrderOfEventsEndsWell) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const auto ran = run(graph_text(limit(), ""), seed);
    expect_clean_end(*ran, fmt::format("seed {}", seed));
    EXPECT_EQ(ran->ends["trained"], 16);
    EXPECT_EQ(ran->ends["failed"], 0);
    EXPECT_LE(ran->remembered.off_policy_max, static_cast<double>(GetParam()));
    if (HasFailure()) return;
  }
}

TEST_P(Flow, StragglersAndRefusalsCostOnlyTheirRollouts) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto ran = run(graph_text(limit() + "sampling = { max_tokens = 200 }\n",
                                    "tail_fraction = 0.2\ntail_factor = 12\nrefuse_every = 7"),
                         seed);
    expect_clean_end(*ran, fmt::format("seed {}", seed));
    EXPECT_GT(ran->ends["failed"], 0);
    EXPECT_LE(ran->remembered.off_policy_max, static_cast<double>(GetParam()));
    if (HasFailure()) return;
  }
}

TEST_P(Flow, FilteredGroupsAreReplaced) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    std::string text = graph_text(limit(), "");
    text.replace(text.find("zero_advantage = false"), 22, "zero_advantage = true");
    const auto ran = run(text, seed);
    expect_clean_end(*ran, fmt::format("seed {}", seed));
    EXPECT_GT(ran->ends["filtered"], 0);
    if (HasFailure()) return;
  }
}

TEST_P(Flow, EqualSeedsLeaveEqualBytes) {
  const std::string text = graph_text(limit(), "");
  EXPECT_EQ(run(text, 3)->remembered.lines, run(text, 3)->remembered.lines);
}

INSTANTIATE_TEST_SUITE_P(OffPolicySteps, Flow, ::testing::Values(0, 1, 2));

TEST(FlowControl, WithoutTheEndsOfGroupsTheRunStandsStill) {
  std::string text = graph_text("max_off_policy_steps = 0\n", "refuse_every = 2");
  const auto edge = text.find("\"trainer.ended");
  text.erase(edge, text.find('\n', edge) - edge);
  auto checked = load_graph_text(text, "flow.toml", PRIMERL_SOURCE_DIR, {}, full_catalog());
  if (checked.plan == nullptr) {
    EXPECT_THAT(render(checked.diagnostics, checked.sources), HasSubstr("ended"));
    return;
  }
  Remembered remembered;
  VirtualExecutor executor(
      checked.plan, make_resource, remembered,
      {.seed = 1, .world = nullptr, .events_max = 3'000'000, .repeat_with = "this test"});
  ASSERT_TRUE(executor.start().ok());
  EXPECT_NE(executor.wait().end, RunEnd::kFinished);
}

}  // namespace
}  // namespace primerl
