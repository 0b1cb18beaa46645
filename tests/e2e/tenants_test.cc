// Two tenants on one model as a user runs them: examples/two_tenants with its real model.
#include "tests/e2e/two_tenants.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(TwoTenants, TrainSideBySideAndEachHasItsOwnPartOfTheRecord) {
  const fs::path run = folder("run");
  const auto end = run_graph_program(words(source_path(kExample), run, {"--max-steps", "5"}));
  ASSERT_EQ(end.code, 0) << end.err;
  for (const auto& tenant : kTenants) {
    EXPECT_EQ(steps(run, tenant).size(), 5U) << tenant;
    EXPECT_FALSE(trained(run / "rollouts" / (tenant + ".jsonl")).empty()) << tenant;
    const Json adapter =
        json_file(run / "checkpoints" / tenant / "step_5" / "weights" / "adapter_config.json");
    EXPECT_EQ(*adapter.get_int("r"), tenant == "reverse" ? 8 : 16);
  }
  // The adapter applied to its model, and merged into it, give the same text.
  const std::string base = source_path("examples/reverse_text/model");
  const std::string adapter = (run / "checkpoints/reverse/step_5/weights").string();
  const std::string merged = folder("merged").string();
  const std::vector<std::string> merge = {"merge", "--model", base,        "--adapter",
                                          adapter, "--out",   merged + "/"};
  const auto made = run_graph_program(merge);
  ASSERT_EQ(made.code, 0) << made.err;
  const auto again = run_graph_program(merge);
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("is there already"));
  const auto generate = [&](const std::string& model, std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--model", model, "--prompt", "12+34", "--temperature",
                               "0", "--max-tokens", "12"});
    const auto said = run_graph_program(more);
    EXPECT_EQ(said.code, 0) << said.err;
    return said.out;
  };
  EXPECT_EQ(generate(merged, {}), generate(base, {"--adapter", adapter}));
  const auto whole = run_graph_program({"replay", run.string()});
  EXPECT_EQ(whole.code, 0) << whole.out << whole.err;
  for (const auto& tenant : kTenants) {
    const auto hers = run_graph_program({"replay", run.string(), "--tenant", tenant});
    EXPECT_EQ(hers.code, 0) << hers.out << hers.err;
    EXPECT_THAT(hers.out, HasSubstr("identical"));
    EXPECT_THAT(hers.out, HasSubstr(fmt::format("tenant '{}' alone", tenant)));
  }
  // An unknown tenant gives the same exit code in every command.
  using Words = std::vector<std::string>;
  for (Words command : {Words{"replay"}, {"trace", "ls"}, {"trace", "stat"}, {"trace", "export"}}) {
    command.insert(command.end(), {run.string(), "--tenant", "nobody"});
    const auto unknown = run_graph_program(command);
    EXPECT_EQ(unknown.code, 3) << command.front() << unknown.out;
    EXPECT_THAT(unknown.err, HasSubstr("no tenant 'nobody' in "));
    EXPECT_THAT(unknown.err, HasSubstr("its tenants: copy and reverse"));
  }
  expect_that_the_trace_has_each(run);
}

/// Free slots have no actors and no files; the run folder is laid out for several tenants.
/// The example with its own numbers: both rewards rise, so a user sees two tenants learn.
TEST_F(TwoTenants, BothLearn) {
  const fs::path run = folder("run");
  const auto end =
      run_graph_program(words(source_path(kExample), run, {"--set", "trace.level=\"off\""}));
  ASSERT_EQ(end.code, 0) << end.err;
  for (const auto& tenant : kTenants) {
    std::vector<Json> lines;
    for (const Json& line : steps_of(run))
      if (*line.get_string("tenant") == tenant) lines.push_back(line);
    ASSERT_EQ(lines.size(), 100U);
    const auto mean_of = [&](size_t begin) {
      double sum = 0;
      for (size_t i = begin; i < begin + 10; ++i)
        sum += lines[i].get_double("reward/all/mean").value();
      return sum / 10;
    };
    EXPECT_GT(mean_of(90), mean_of(0) + 0.08) << tenant;
  }
}

TEST_F(TwoTenants, OneInAGraphWithFreeSlotsTrainsAsItWouldAlone) {
  const std::vector<std::string> exact = {"--max-steps", "3",
                                          "--set",       "resource.learner.threads=1",
                                          "--set",       "resource.engine.threads=1",
                                          "--set",       "tenant.reverse.max_off_policy_steps=0"};
  const fs::path run = folder("hosted");
  std::vector<std::string> hosted = words(alone("reverse"), run, exact);
  hosted.insert(hosted.end(), {"--set", "graph.tenant_limits={ tenants_max = 4, rank = 16 }"});
  const auto end = run_graph_program(hosted);
  ASSERT_EQ(end.code, 0) << end.err;
  for (const char* left : {"checkpoints", "rollouts"}) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(run / left))
      names.push_back(entry.path().stem().string());
    EXPECT_THAT(names, ElementsAre("reverse")) << left;
  }
  const auto found = run_graph_program({"rollouts", run.string()});
  EXPECT_EQ(found.code, 0) << found.err;
  const auto replayed = run_graph_program({"replay", run.string(), "--tenant", "reverse"});
  EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
  expect_as_alone(run, "reverse", words(alone("reverse"), folder("reverse"), exact));
}

/// Another learning rate changes the tenant's own steps and is reported; the replay of the other
/// tenant matches the record.
TEST_F(TwoTenants, AReplayOfOneComputesOnlyItsOwnSteps) {
  const fs::path run = folder("run");
  ASSERT_EQ(run_graph_program(words(source_path(kExample), run, {"--max-steps", "3"})).code, 0);
  const std::string change = "tenant.copy.optimizer.lr=0.004";
  const auto hers =
      run_graph_program({"replay", run.string(), "--tenant", "copy", "--set", change});
  EXPECT_EQ(hers.code, 4) << hers.out << hers.err;
  EXPECT_THAT(hers.out, HasSubstr("learning_rate: recorded 0.002, now 0.004"));
  const auto other =
      run_graph_program({"replay", run.string(), "--tenant", "reverse", "--set", change});
  EXPECT_EQ(other.code, 0) << other.out << other.err;
}

TEST_F(TwoTenants, OnPolicyEachTrainsAsItWouldAlone) {
  const std::vector<std::string> exact = {"--max-steps", "3",
                                          "--set",       "resource.learner.threads=1",
                                          "--set",       "resource.engine.threads=1"};
  const auto on_policy = [&](std::vector<std::string> tenants) {
    auto more = exact;
    for (const auto& tenant : tenants)
      more.insert(more.end(), {"--set", fmt::format("tenant.{}.max_off_policy_steps=0", tenant)});
    return more;
  };
  const fs::path both = folder("both");
  const auto end = run_graph_program(words(source_path(kExample), both, on_policy(kTenants)));
  ASSERT_EQ(end.code, 0) << end.err;
  for (const auto& tenant : kTenants)
    expect_as_alone(both, tenant, words(alone(tenant), folder(tenant), on_policy({tenant})));
}

/// A loss and dropout per tenant, one slot for two adapters, and PEFT folders for the engine: each
/// trains the same as alone, and a replay repeats it bit for bit.
TEST_F(TwoTenants, WithWhatEachWroteAndOneSlotForBothEachTrainsAsItWouldAlone) {
  const auto with = [&](const std::vector<std::string>& tenants, std::vector<std::string> more) {
    more.insert(more.end(), {"--max-steps", "3", "--set", "resource.learner.threads=1", "--set",
                             "resource.engine.threads=1"});
    for (const auto& tenant : tenants)
      for (const std::string& set :
           {std::string("max_off_policy_steps=0"),
            std::string(tenant == "reverse" ? "loss={kl_weight=0.2,clip_low=0.05}"
                                            : "loss={advantage_weight=2.0}"),
            std::string(tenant == "reverse" ? "adapter.dropout=0.1" : "adapter.rslora=true")})
        more.insert(more.end(), {"--set", fmt::format("tenant.{}.{}", tenant, set)});
    return more;
  };
  const fs::path both = folder("both");
  const auto end =
      run_graph_program(words(source_path(kExample), both,
                              with(kTenants, {"--set", "resource.engine.adapter_slots=1", "--set",
                                              "resource.weights.backend=\"files\""})));
  ASSERT_EQ(end.code, 0) << end.err;
  for (const auto& tenant : kTenants)
    expect_as_alone(both, tenant, words(alone(tenant), folder(tenant), with({tenant}, {})));
  EXPECT_TRUE(fs::exists(both / "weights/weights/version_3-tenant_1/adapter_config.json"));
  const auto again = run_graph_program({"replay", both.string()});
  EXPECT_EQ(again.code, 0) << again.out << again.err;
}

/// Each continues from its own newest checkpoint; later steps of both are repeated from the record.
TEST_F(TwoTenants, ContinueWhereTheKilledRunStopped) {
  const fs::path run = folder("run");
  auto words_of_run =
      words(source_path(kExample), run,
            {"--max-steps", "100000", "--set", "graph.restarts_max=0", "--set",
             "tenant.reverse.checkpoint_every=4", "--set", "tenant.copy.checkpoint_every=5"});
  words_of_run.insert(words_of_run.begin(), "primerl-graph");
  Program killed(words_of_run);
  ASSERT_TRUE(has_lines(killed, run, 26));
  ::kill(worker_of(killed), SIGKILL);
  ASSERT_EQ(killed.wait().code, 1);
  int64_t last = 0;
  for (const Json& line : lines_of(run / "metrics.jsonl"))
    last = std::max(last, *line.get_int("step"));
  const std::string most = std::to_string(last + 3);
  const auto end = run_graph_program({"run", "--resume", run.string(), "--max-steps", most});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(end.err.find("resuming from the checkpoint only"), std::string::npos) << end.err;
  for (const auto& tenant : kTenants) {
    int64_t step = 0;
    for (const Json& line : steps_of(run)) {
      if (*line.get_string("tenant") != tenant) continue;
      EXPECT_EQ(*line.get_int("step"), ++step) << tenant;
    }
    EXPECT_EQ(step, last + 3) << tenant;
    std::set<std::string> seen;
    for (const Json& line : lines_of(run / "rollouts" / (tenant + ".jsonl")))
      EXPECT_TRUE(seen.insert(*line.get_string("rollout")).second) << line.dump();
  }
}

/// The step of a tenant without a checkpoint is made again, with its adapter; one that has not
/// taken the step begins from its newest checkpoint.
TEST_F(TwoTenants, AForkBeginsEachAtTheStepOrAtItsNewestCheckpointBefore) {
  const fs::path run = folder("run"), full = folder("full");
  std::vector<std::string> every = {"--set", "tenant.reverse.max_steps=6", "--set",
                                    "tenant.copy.max_steps=3"};
  for (const auto& tenant : kTenants) {
    every.insert(every.end(), {"--set", fmt::format("tenant.{}.checkpoint_every=1", tenant),
                               "--set", fmt::format("tenant.{}.keep_last=0", tenant)});
  }
  const auto first = run_graph_program(words(source_path(kExample), full, every));
  ASSERT_EQ(first.code, 0) << first.err;
  fs::copy(full, run, fs::copy_options::recursive);
  for (const auto& tenant : kTenants)
    for (const char* step : {"step_2", "step_4"})
      fs::remove_all(run / "checkpoints" / tenant / step);
  const auto fork = [&](const std::string& step, const fs::path& to) {
    return run_graph_program({"run", "--fork", run.string() + "@step=" + step, "--out", to.string(),
                              "--max-steps", "5"});
  };
  const auto steps_taken = [](const fs::path& of, const std::string& tenant) {
    std::vector<int64_t> taken;
    for (const Json& line : steps_of(of))
      if (*line.get_string("tenant") == tenant) taken.push_back(*line.get_int("step"));
    return taken;
  };
  const auto expect_same = [&](const fs::path& made, const std::string& tenant,
                               const std::string& step) {
    const fs::path below = fs::path("checkpoints") / tenant / step;
    for (const char* file : {"manifest.json", "weights/adapter_model.safetensors",
                             "learner/optimizer.safetensors", "learner/state.json"})
      EXPECT_TRUE(bytes(made / below / file) == bytes(full / below / file))
          << tenant << " " << file;
  };
  const auto both = fork("2", folder("both"));
  ASSERT_EQ(both.code, 0) << both.err;
  for (const auto& tenant : kTenants) {
    EXPECT_THAT(both.err, HasSubstr(fmt::format("re-making the checkpoint of step 2 of tenant "
                                                "'{}' from step 1: 1 step",
                                                tenant)));
    EXPECT_THAT(steps_taken(folder("both"), tenant), ElementsAre(3, 4, 5));
    expect_same(folder("both"), tenant, "step_2");
  }
  const auto before = fork("4", folder("before"));
  ASSERT_EQ(before.code, 0) << before.err;
  EXPECT_THAT(before.err, HasSubstr("tenant 'copy' has taken 3 steps: it begins from its "
                                    "checkpoint of step 3"));
  EXPECT_THAT(steps_taken(folder("before"), "reverse"), ElementsAre(5));
  EXPECT_THAT(steps_taken(folder("before"), "copy"), ElementsAre(4, 5));
  expect_same(folder("before"), "reverse", "step_4");
  const auto none = fork("7", folder("none"));
  EXPECT_EQ(none.code, 2) << none.err;
  EXPECT_THAT(none.err, HasSubstr("which has taken 6 steps"));
  const auto replayed = run_graph_program({"replay", folder("before").string()});
  EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
}

/// A tenant without a checkpoint and without a record begins with its first step.
TEST_F(TwoTenants, AForkWithoutARecordNamesEachTenantsPlace) {
  const fs::path run = folder("run");
  const auto first = run_graph_program(
      words(source_path(kExample), run,
            {"--max-steps", "4", "--set", "tenant.reverse.checkpoint_every=4", "--set",
             "tenant.copy.checkpoint_every=3", "--set", "trace.level=\"off\""}));
  ASSERT_EQ(first.code, 0) << first.err;
  const auto fork = [&](const std::string& step, const fs::path& to) {
    return run_graph_program({"run", "--fork", run.string() + "@step=" + step, "--out", to.string(),
                              "--max-steps", "4"});
  };
  const auto fresh = fork("3", folder("fresh"));
  ASSERT_EQ(fresh.code, 0) << fresh.err;
  EXPECT_THAT(fresh.err, HasSubstr("tenant 'reverse' has no checkpoint of step 3, and it cannot be "
                                   "made again"));
  EXPECT_THAT(fresh.err, HasSubstr("it starts from its own beginning, with a fresh adapter"));
  EXPECT_EQ(steps(folder("fresh"), "reverse").size(), 4U);
  EXPECT_EQ(steps(folder("fresh"), "copy").size(), 1U);
  const auto none = fork("2", folder("none"));
  EXPECT_EQ(none.code, 2) << none.err;
  EXPECT_THAT(none.err, HasSubstr("tenant 'reverse' can be forked at its checkpoints: steps 4"));
  EXPECT_THAT(none.err, HasSubstr("tenant 'copy' can be forked at its checkpoints: steps 3"));
}

/// A tenant without steps left waits for no other tenant and delays none.
TEST_F(TwoTenants, AFinishedTenantLetsTheOtherContinueFromItsCheckpoint) {
  const fs::path run = folder("run");
  const auto first = run_graph_program(
      words(source_path(kExample), run,
            {"--set", "tenant.reverse.max_steps=2", "--set", "tenant.copy.max_steps=4"}));
  ASSERT_EQ(first.code, 0) << first.err;
  const auto end = run_graph_program(
      {"run", "--resume", run.string(), "--from-checkpoint", "--set", "tenant.copy.max_steps=6"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(steps(run, "reverse").size(), 2U);
  EXPECT_EQ(steps(run, "copy").size(), 6U);
}

/// A finished tenant leaves the engine to the others.
TEST_F(TwoTenants, OneThatIsDoneGeneratesNoMore) {
  const fs::path run = folder("run");
  const auto end = run_graph_program(
      words(source_path(kExample), run,
            {"--set", "tenant.reverse.max_steps=1", "--set", "tenant.copy.max_steps=12", "--set",
             "tenant.reverse.filters={ zero_advantage = false }"}));
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(steps(run, "copy").size(), 12U);
  // A batch of 64, and rollouts in flight while it trained: at most the live limit.
  EXPECT_LE(lines_of(run / "rollouts" / "reverse.jsonl").size(), 64U * 5U);
}

}  // namespace
}  // namespace primerl
