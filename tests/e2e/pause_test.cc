// A person pauses and unpauses a running run: no rollout is lost, the record has it, and an invalid
// request is refused with a reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PausedRun : public ::testing::Test {
 protected:
  std::vector<std::string> words(const std::string& graph,
                                 std::vector<std::string> more = {}) const {
    std::vector<std::string> all{"primerl-graph", "run", source_path(graph), "--out",
                                 folder_.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> endless(const std::string& graph,
                                   std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--max-steps", "1000000000"});
    return words(graph, more);
  }
  std::vector<std::string> variables() const {
    return {"XDG_RUNTIME_DIR=" + scratch_.path().string()};
  }
  ProgramEnd say(std::vector<std::string> words) const {
    words.insert(words.begin() + 1, folder_.string());
    return run_graph_program(std::move(words), variables());
  }
  std::string table() const { return say({"ps"}).out; }
  void expect_table_says(const std::string& text) const {
    EXPECT_TRUE(wait_until([&] { return table().find(text) != std::string::npos; })) << text;
  }
  /// No line is written while it is paused.
  size_t num_rollouts() const { return num_lines(folder_ / "rollouts.jsonl"); }
  void expect_it_goes_on() const {
    const size_t before = num_rollouts();
    EXPECT_TRUE(wait_until([&] { return num_rollouts() >= before + 100; }));
  }
  /// Ctrl-C; nothing failed and the newest record is complete.
  void end_well(Program& run) const {
    ::kill(run.pid(), SIGINT);
    const auto end = run.wait();
    EXPECT_EQ(end.code, 130) << end.err;
    for (const Json& line : lines_of(folder_ / "rollouts.jsonl"))
      EXPECT_NE(*line.get_string("end"), "failed") << line.dump();
    expect_replays(folder_);
  }

  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path() / "run";
};

const std::string kScripted = "tests/cli/graphs/scripted.toml";
const std::string kSplit = "tests/cli/graphs/split.toml";

void expect_paused(const ProgramEnd& said, const std::string& engines) {
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr(engines));
}

TEST_F(PausedRun, StandsStillForItsOwnersAndReplaysWithTheSamePauses) {
  Program run(endless(kScripted), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  expect_paused(say({"pause", "--owner", "anna", "--lease", "1h"}),
                "paused for 1h by 'anna': decode");
  expect_paused(say({"pause", "--owner", "bert"}), "paused for 10m by 'bert': decode");
  expect_paused(say({"pause", "--owner", "bert"}), "paused for 10m by 'bert': decode");
  expect_table_says("paused engines: ");
  EXPECT_THAT(table(), AllOf(HasSubstr("paused by 'anna' for another "),
                             HasSubstr("paused by 'bert' for another ")));
  const auto status = say({"ps", "--json"});
  EXPECT_THAT(status.out, HasSubstr("\"held_engines\""));
  const size_t before = num_rollouts();
  expect_paused(say({"unpause", "--owner", "anna"}), "unpaused by 'anna': decode");
  EXPECT_THAT(table(), AllOf(Not(HasSubstr("'anna'")), HasSubstr("'bert'")));
  EXPECT_EQ(num_rollouts(), before) << "bert holds it";
  const auto stranger = say({"unpause"});
  expect_paused(stranger, "'operator' has paused nothing: decode");
  EXPECT_THAT(stranger.out, AllOf(HasSubstr("still paused by 'bert': unpause with --owner"),
                                  Not(HasSubstr("unpaused by"))));
  EXPECT_EQ(num_rollouts(), before) << "bert holds it still";
  expect_paused(say({"unpause", "--owner", "bert"}), "unpaused by 'bert': decode");
  expect_paused(say({"unpause", "--owner", "bert"}), "'bert' has paused nothing: decode");
  expect_it_goes_on();
  EXPECT_THAT(table(), Not(HasSubstr("paused by")));
  end_well(run);
  expect_steps_and_rollouts_once(folder_);
  const auto steps = run_graph_program(
      {"trace", "ls", folder_.string(), "--node", "decode", "--limit", "1000000"});
  const size_t found = steps.out.find(" command ");
  ASSERT_NE(found, std::string::npos);
  const size_t line = steps.out.rfind('\n', found) + 1;
  const size_t name = steps.out.find("decode:", line);
  const std::string step = steps.out.substr(name, steps.out.find(' ', name) - name);
  const auto shown = run_graph_program({"trace", "cat", folder_.string(), step});
  EXPECT_THAT(shown.out, AllOf(HasSubstr("EngineHold"), HasSubstr("anna"))) << step;
}

/// A pause may be longer than stall_after, and ends with its lease.
TEST_F(PausedRun, IsNoStallAndEndsWithItsLease) {
  Program run(endless(kScripted, {"--set", "graph.stall_after=\"2s\""}), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  expect_paused(say({"pause", "--lease", "3s"}), "paused for 3s by 'operator': decode");
  ASSERT_TRUE(
      run.wait_until_said("the lease of 'operator' has ended: it no longer pauses the engine"));
  expect_it_goes_on();
  end_well(run);
}

TEST_F(PausedRun, ADrainLetsItGo) {
  Program run(endless(kScripted), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  expect_paused(say({"pause", "--lease", "1h"}), "paused");
  end_well(run);
}

TEST_F(PausedRun, OfSeveralProcessesStandsStillInAllOfThem) {
  Program run(endless(kSplit), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  expect_paused(say({"pause"}), "decode#0, decode#1");
  expect_table_says("paused engines: ");
  expect_paused(say({"unpause"}), "decode#0, decode#1");
  expect_it_goes_on();
  end_well(run);
}

/// A restarted process has a fresh engine: it gets the pause, and its end.
TEST_F(PausedRun, AProcessThatIsStartedAgainStandsStillToo) {
  Program run(endless(kSplit), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  expect_paused(say({"pause"}), "decode#0, decode#1");
  const pid_t worker = worker_named(run, "inference#1");
  ASSERT_GT(worker, 0);
  ::kill(worker, SIGKILL);
  ASSERT_TRUE(run.wait_until_said("it is restarted as incarnation 2"));
  // Both engines again, one of them new.
  EXPECT_TRUE(wait_until([this] {
    const auto status = parse_json(say({"ps", "--json"}).out, "ps --json");
    const Json* held = status.ok() ? status->find("held_engines") : nullptr;
    return held != nullptr && held->as_array().size() == 2;
  }));
  expect_paused(say({"unpause"}), "decode#0, decode#1");
  expect_it_goes_on();
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
}

/// The pause is part of the record that the next start follows, and so is the unpause. Its owner is
/// known again, although this start did not receive the request.
class KilledAndTakenUp : public PausedRun, public ::testing::WithParamInterface<std::string> {};

TEST_P(KilledAndTakenUp, StandsStillForTheOwnersFromBefore) {
  {
    Program run(endless(GetParam(), {"--set", "graph.restarts_max=0"}), variables());
    ASSERT_TRUE(run.wait_until_said("reward"));
    expect_paused(say({"pause", "--owner", "anna", "--lease", "1h"}), "decode");
    expect_paused(say({"pause", "--owner", "bert", "--lease", "1h"}), "decode");
    ::kill(run.pid(), SIGKILL);
    (void)run.wait();
  }
  const auto gone = say({"pause"});
  EXPECT_EQ(gone.code, 1);
  EXPECT_THAT(gone.err, AllOf(HasSubstr("is not running: its primerl-graph process ended"),
                              HasSubstr("run --resume")));
  Program again({"primerl-graph", "run", "--resume", folder_.string()}, variables());
  ASSERT_TRUE(again.wait_until_said("the run is live"));
  expect_table_says("paused engines: ");
  expect_table_says("paused by 'anna' for another ");
  expect_table_says("paused by 'bert' for another ");
  const size_t before = num_rollouts();
  expect_paused(say({"unpause"}), "'operator' has paused nothing: decode");
  expect_paused(say({"unpause", "--owner", "anna"}), "unpaused by 'anna': decode");
  EXPECT_THAT(table(), AllOf(Not(HasSubstr("'anna'")), HasSubstr("'bert'")));
  EXPECT_EQ(num_rollouts(), before) << "bert holds it";
  expect_paused(say({"unpause", "--owner", "bert"}), "unpaused by 'bert': decode");
  expect_it_goes_on();
  EXPECT_THAT(table(), Not(HasSubstr("paused by")));
  end_well(again);
  expect_steps_and_rollouts_once(folder_);
}

INSTANTIATE_TEST_SUITE_P(Pause, KilledAndTakenUp, ::testing::Values(kScripted, kSplit),
                         [](const auto& graph) {
                           return graph.param == kSplit ? "OfSeveralProcesses" : "OfOneProcess";
                         });

TEST_F(PausedRun, RefusesTheSeventeenthOwnerByTheNamesOfTheOthers) {
  Program run(endless(kScripted), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  for (int i = 0; i < 16; ++i)
    expect_paused(say({"pause", "--owner", fmt::format("owner{:02}", i)}), "decode");
  const auto refused = say({"pause", "--owner", "one more"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err,
              AllOf(HasSubstr("16 owners have paused it already"), HasSubstr("owner00, owner01")));
  expect_paused(say({"pause", "--owner", "owner15"}), "decode");
  EXPECT_TRUE(run.is_running());
  end_well(run);
}

/// The tenants share the engine, so it is paused for both or for neither. With one tenant it
/// belongs to that tenant.
TEST_F(PausedRun, OfSeveralTenantsSaysWhoSharesTheEngine) {
  const std::vector<std::string> scripted{"--no-rehearsal",
                                          "--set",
                                          "resource.engine.backend=\"scripted\"",
                                          "--set",
                                          "resource.learner.backend=\"scripted\"",
                                          "--set",
                                          "tenant.reverse.filters={ zero_advantage = false }",
                                          "--set",
                                          "tenant.copy.filters={ zero_advantage = false }"};
  Program run(endless("examples/two_tenants/graph.toml", scripted), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const auto shared = say({"pause", "--tenant", "reverse"});
  EXPECT_EQ(shared.code, 3);
  EXPECT_THAT(shared.err, HasSubstr("tenant 'reverse' has no engine of its own: decode serves all "
                                    "tenants (copy, reverse); without --tenant it stands "
                                    "still for all of them"));
  const auto unknown = say({"pause", "--tenant", "revers"});
  EXPECT_EQ(unknown.code, 3);
  EXPECT_THAT(unknown.err,
              HasSubstr("no tenant 'revers' in this run\n   its tenants: copy and reverse"));
  EXPECT_THAT(table(), Not(HasSubstr("paused by")));
  expect_paused(say({"pause"}), "paused for 10m by 'operator': decode");
  expect_table_says("paused engines: ");
  EXPECT_THAT(table(), HasSubstr("paused by 'operator' for another "));
  expect_paused(say({"unpause"}), "unpaused by 'operator': decode");
  EXPECT_TRUE(run.is_running());
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  expect_replays(folder_);
}

TEST_F(PausedRun, OfOneTenantEveryEngineIsThatTenants) {
  Program run(endless(kScripted), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  expect_paused(say({"pause", "--tenant", "main"}), "paused for 10m by 'operator': decode");
  expect_paused(say({"unpause", "--tenant", "main"}), "unpaused by 'operator': decode");
  end_well(run);
}

TEST_F(PausedRun, SaysWhatIsWrongWithAQuestion) {
  const auto nowhere = say({"pause"});
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("no run folder"));
  const auto long_lease = say({"pause", "--lease", "61m"});
  EXPECT_EQ(long_lease.code, 3);
  EXPECT_THAT(long_lease.err, HasSubstr("a lease is above 0 and at most 3600 s"));
  EXPECT_EQ(say({"pause", "--lease", "0s"}).code, 3);
  EXPECT_EQ(say({"pause", "--lease", "-1s"}).code, 3);
  const auto odd_lease = say({"pause", "--lease", "600"});
  EXPECT_EQ(odd_lease.code, 3);
  EXPECT_THAT(odd_lease.err, HasSubstr("--lease"));
  const auto long_name = say({"unpause", "--owner", std::string(65, 'a')});
  EXPECT_EQ(long_name.code, 3);
  EXPECT_THAT(long_name.err, HasSubstr("1 to 64 bytes are valid"));
  EXPECT_EQ(say({"pause", "--owner", ""}).code, 3);
  Program run(words(kScripted, {"--max-steps", "3"}), variables());
  EXPECT_EQ(run.wait().code, 0);
  const auto ended = say({"unpause"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("has ended (finished"), HasSubstr("its engines are gone")));
}

}  // namespace
}  // namespace primerl
