// Weights over the connections between processes: to the end, after the death of an engine, and
// after the death of the trainer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class SplitStreamRun : public testing::Test {
 protected:
  std::vector<std::string> words(const std::string& graph,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> all{"run",   source_path(graph),
                                 "--out", folder_.string(),
                                 "--set", "resource.weights.backend=stream"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<std::string> endless(const std::string& graph = "tests/cli/graphs/split.toml") const {
    auto all = words(graph, {"--max-steps", "1000000000"});
    all.insert(all.begin(), "primerl-graph");
    return all;
  }
  std::vector<std::string> variables() const {
    return {"XDG_RUNTIME_DIR=" + scratch_.path().string()};
  }
  /// One process in the output of `ps`; null when it is not listed.
  Json process(const std::string& name) const {
    const auto said = run_graph_program({"ps", folder_.string(), "--json"}, variables());
    const auto status = parse_json(said.out, "ps");
    if (!status.ok() || status->find("processes") == nullptr) return {};
    for (const Json& one : status->find("processes")->as_array())
      if (*one.get_string("name") == name) return one;
    return {};
  }
  /// The policy version in its engine; -1 when unknown.
  static int64_t version_of(const Json& process) {
    const Json* engines = process.is_object() ? process.find("engines") : nullptr;
    if (engines == nullptr || engines->as_array().size() != 1) return -1;
    return *engines->as_array()[0].get_int("policy_version");
  }
  static uint64_t stream_bytes_to(const Json& process, const std::string& peer) {
    if (!process.is_object() || process.find("links") == nullptr) return 0;
    for (const Json& link : process.find("links")->as_array())
      if (*link.get_string("peer") == peer)
        return static_cast<uint64_t>(*link.get_int("sent_stream_bytes"));
    return 0;
  }

  const ScratchFolder scratch_;
  const fs::path folder_ = scratch_.path() / "run";
};

TEST_F(SplitStreamRun, GoesToItsEndWithTheWeightsOfTheTrainer) {
  const auto end = run_graph_program(words("tests/cli/graphs/split.toml", {}), variables());
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 8);
  int64_t newest = 0;
  for (const Json& rollout : lines_of(folder_ / "rollouts.jsonl"))
    for (const Json& span : rollout.find("versions")->as_array())
      newest = std::max(newest, *span.get_int("version"));
  EXPECT_GT(newest, 0) << "no engine had weights of the trainer";
  expect_replays(folder_);
  EXPECT_FALSE(fs::exists(folder_ / "weights"));
}

TEST_F(SplitStreamRun, TravelsByTcpBesideTheEdges) {
  const auto end = run_graph_program(words("tests/cli/graphs/split_tcp.toml", {}), variables());
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 8);
}

TEST_F(SplitStreamRun, AnEngineThatDiesComesBackWithTheNewestVersion) {
  Program run(endless(), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const auto workers = workers_of(run);
  ASSERT_EQ(workers.size(), 4u);
  int64_t before = -1;
  ASSERT_TRUE(waits_for("version of the second engine", run,
                        [&] { return (before = version_of(process("inference#1"))) >= 1; }));
  ::kill(workers[2], SIGKILL);
  ASSERT_TRUE(run.wait_until_said("it is restarted as incarnation 2"));
  // Its version is newer than any version before the death.
  ASSERT_TRUE(waits_for("newer version in the second incarnation", run, [&] {
    const Json again = process("inference#1");
    return again.is_object() && *again.get_int("incarnation") == 2 && version_of(again) > before;
  }));
  // Each heartbeat of the trainer is up to a second old.
  for (const char* engine : {"inference#0", "inference#1"})
    ASSERT_TRUE(waits_for(fmt::format("bytes of weights to {}", engine), run,
                          [&] { return stream_bytes_to(process("training"), engine) > 0; }));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  EXPECT_EQ(end.code, 130) << end.err;
  expect_steps_and_rollouts_once(folder_);
}

TEST_F(SplitStreamRun, ATrainerThatDiesIsTakenUpFromTheRecords) {
  Program run(endless(), variables());
  ASSERT_TRUE(run.wait_until_said("reward"));
  const auto workers = workers_of(run);
  ASSERT_EQ(workers.size(), 4u);
  ::kill(workers[3], SIGKILL);
  ASSERT_TRUE(run.wait_until_said("messages as recorded; the run is live"));
  const size_t then = num_lines(folder_ / "metrics.jsonl");
  ASSERT_TRUE(has_lines(run, folder_, then + 2));
  ::kill(run.pid(), SIGINT);
  const auto end = run.wait();
  ASSERT_EQ(end.code, 130) << end.err;
  expect_steps_and_rollouts_once(folder_);
  expect_replays(folder_);
}

#if PRIMERL_HAS_TORCH
TEST_F(SplitStreamRun, ADeviceThatIsNotThereIsNamedBeforeAnythingIsStarted) {
  const auto end = run_graph_program(
      words("examples/split/graph.toml",
            {"--set", "place.inference.device=cuda:0", "--set", "resource.engine.numerics=fast"}),
      variables());
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("resource 'engine' of process 'inference#0' is placed on "
                                 "'cuda:0', which "));
  EXPECT_FALSE(fs::exists(folder_));
}

/// Real computation: the engines generate with exactly the learner's weights, bit for bit.
TEST_F(SplitStreamRun, TheExampleReplaysToTheLastBit) {
  const auto end =
      run_graph_program(words("examples/split/graph.toml", {"--max-steps", "5"}), variables());
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(expect_steps_and_rollouts_once(folder_), 5);
  const auto replay = run_graph_program({"replay", folder_.string(), "--depth", "full"});
  EXPECT_EQ(replay.code, 0) << replay.out << replay.err;
  EXPECT_THAT(replay.out, HasSubstr("identical"));
}
#endif

}  // namespace
}  // namespace primerl
