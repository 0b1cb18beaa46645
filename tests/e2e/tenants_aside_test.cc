// One of two tenants cannot continue: it is set aside, and the other makes its steps. The run can
// be replayed and resumed.
#include "tests/e2e/two_tenants.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kSetAside = "tenant 'reverse' was set aside: ";

TEST_F(TwoTenants, OneThatFailsIsSetAsideAndTheOtherTakesItsSteps) {
  for (const bool is_apart : {false, true}) {
    SCOPED_TRACE(is_apart ? "three processes" : "one process");
    const fs::path run = folder(is_apart ? "apart" : "run");
    const auto end = run_graph_program(words(is_apart ? apart() : source_path(kExample), run,
                                             reverse_fails({"--max-steps", "4"})));
    EXPECT_EQ(end.code, 1) << end.err;
    EXPECT_THAT(end.err, HasSubstr(kSetAside));
    EXPECT_THAT(end.err, HasSubstr("groups in a row ended without being trained on"));
    EXPECT_THAT(end.err, HasSubstr("the others continue"));
    EXPECT_THAT(end.err, HasSubstr("rollouts.jsonl says why each one did"));
    EXPECT_TRUE(steps(run, "reverse").empty());
    EXPECT_EQ(steps(run, "copy").size(), 4U);
    EXPECT_TRUE(fs::exists(run / "checkpoints/copy/step_4"));
    const auto replayed = run_graph_program({"replay", run.string()});
    EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
  }
}

/// A shared actor reports that it cannot serve one tenant. That tenant is set aside, in one process
/// and in three, and in a replay too. `ps` names it while the run continues.
TEST_F(TwoTenants, ATenantThatASharedActorCannotServeIsSetAside) {
  for (const bool is_apart : {false, true}) {
    SCOPED_TRACE(is_apart ? "three processes" : "one process");
    const fs::path run = folder(is_apart ? "apart" : "run");
    auto words_of_run =
        words(with_picky(is_apart), run, {"--no-rehearsal", "--max-steps", "100000"});
    words_of_run.insert(words_of_run.begin(), "primerl-graph");
    Program going(words_of_run);
    ASSERT_TRUE(
        going.wait_until_said("is set aside, the others continue: 'picky': this tenant's groups"));
    std::string shown;
    const std::string all_of_the_learner = "     100%       50%\n";  // and half was promised
    ASSERT_TRUE(waits_for("tenant that has all of the learner", going, [&] {
      shown = run_graph_program({"ps", run.string()}).out;
      return shown.find(all_of_the_learner) != std::string::npos;
    })) << shown;
    EXPECT_THAT(shown, HasSubstr("\nreverse  set aside"));
    EXPECT_THAT(
        shown,
        HasSubstr("tenant 'reverse' is set aside: 'picky': this tenant's groups are refused"));
    EXPECT_THAT(shown, HasSubstr("\ncopy     training "));
    EXPECT_THAT(shown, HasSubstr("decode/s  train/s  engine  learner  promised\n"));
    ::kill(going.pid(), SIGINT);
    const auto end = going.wait();
    EXPECT_EQ(end.code, 1) << end.err;
    EXPECT_THAT(
        end.err,
        HasSubstr("tenant 'reverse' was set aside: 'picky': this tenant's groups are refused"));
    EXPECT_TRUE(steps(run, "reverse").empty());
    EXPECT_FALSE(steps(run, "copy").empty());
    const auto replayed = run_graph_program({"replay", run.string()});
    EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
  }
}

/// If no engine can apply the weights of a tenant, that tenant is set aside. The other makes its
/// steps, and a replay repeats it.
TEST_F(TwoTenants, ATenantWhoseWeightsEveryEngineRefusesIsSetAside) {
  for (const bool is_apart : {false, true}) {
    SCOPED_TRACE(is_apart ? "three processes" : "one process");
    const fs::path run = folder(is_apart ? "apart" : "run");
    const auto end = run_graph_program(
        words(with_boaster(is_apart), run, {"--no-rehearsal", "--max-steps", "5"}));
    EXPECT_EQ(end.code, 1) << end.err;
    EXPECT_THAT(end.err, HasSubstr(kSetAside));
    EXPECT_THAT(end.err, HasSubstr("no engine could apply version 1002"));
    EXPECT_LT(steps(run, "reverse").size(), 5U);
    EXPECT_EQ(steps(run, "copy").size(), 5U);
    const auto replayed = run_graph_program({"replay", run.string()});
    EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
  }
}

/// A run that follows its record knows which tenant was set aside, and why.
TEST_F(TwoTenants, ATenantThatWasSetAsideStaysSoWhenTheRunIsResumed) {
  for (const bool is_apart : {false, true}) {
    SCOPED_TRACE(is_apart ? "three processes" : "one process");
    const fs::path run = folder(is_apart ? "apart" : "run");
    auto words_of_run =
        words(is_apart ? apart() : source_path(kExample), run,
              reverse_fails({"--max-steps", "100000", "--set", "graph.restarts_max=0", "--set",
                             "tenant.copy.checkpoint_every=5"}));
    words_of_run.insert(words_of_run.begin(), "primerl-graph");
    Program killed(words_of_run);
    ASSERT_TRUE(has_lines(killed, run, 12));
    ::kill(worker_of(killed), SIGKILL);
    ASSERT_EQ(killed.wait().code, 1);
    const auto last = static_cast<int64_t>(steps(run, "copy").size());
    const auto end = run_graph_program({"run", "--resume", run.string(), "--no-rehearsal",
                                        "--max-steps", std::to_string(last + 3)});
    EXPECT_EQ(end.code, 1) << end.err;
    EXPECT_THAT(end.err, HasSubstr(kSetAside));
    EXPECT_EQ(end.err.find("resuming from the checkpoint only"), std::string::npos) << end.err;
    EXPECT_EQ(steps(run, "copy").size(), static_cast<size_t>(last + 3));
  }
}

/// With --from-checkpoint each tenant begins from its own newest checkpoint, and a tenant without
/// one from its first step.
TEST_F(TwoTenants, ATenantWithoutACheckpointStartsFromItsFirstStep) {
  const fs::path run = folder("run");
  const auto first =
      run_graph_program(words(source_path(kExample), run, reverse_fails({"--max-steps", "4"})));
  ASSERT_EQ(first.code, 1) << first.err;
  ASSERT_TRUE(steps(run, "reverse").empty());
  ASSERT_FALSE(fs::exists(run / "checkpoints/reverse/step_4"));
  // Lines of steps that no checkpoint has, as if the tenant had been set aside after them.
  std::ofstream(run / "metrics.jsonl", std::ios::app)
      << R"({"step":1,"time":1.0,"tenant":"reverse","progress/samples":64})"
      << "\n"
      << R"({"step":2,"time":2.0,"tenant":"reverse","progress/samples":64})"
      << "\n";
  const auto end = run_graph_program(
      {"run", "--resume", run.string(), "--from-checkpoint", "--no-rehearsal", "--max-steps", "6",
       "--set", "tenant.reverse.sampling.max_tokens=16", "--set",
       "tenant.reverse.sampling.ignore_eos=false", "--set",
       "tenant.reverse.filters.truncated=false", "--set", "node.trainer.lost_batches_max=100"});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("tenant 'reverse' has no complete checkpoint: it starts from step "
                                 "1 with a fresh adapter"));
  EXPECT_THAT(end.err, HasSubstr("resuming after step 4 from "));
  EXPECT_EQ(end.err.find("after step 0"), std::string::npos) << end.err;
  std::map<std::string, std::vector<int64_t>> taken;
  for (const Json& line : steps_of(run))  // other lines say that many groups were filtered
    taken[*line.get_string("tenant")].push_back(*line.get_int("step"));
  EXPECT_THAT(taken["reverse"], ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(taken["copy"], ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_TRUE(fs::exists(run / "checkpoints/reverse/step_6"));
  const auto replayed = run_graph_program({"replay", run.string()});
  EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
}

}  // namespace
}  // namespace primerl
