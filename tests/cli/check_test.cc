// `primerl-graph check` on model folders that no run could use: told before anything starts, with
// the place in the graph that names the folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/cli/program.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

/// The demo with a model folder of its own, whole at first.
class AModelFolder : public testing::Test {
 protected:
  AModelFolder() {
    fs::copy(source_path("examples/reverse_text"), folder_.path(),
             fs::copy_options::recursive);
    bytes_ = *read_text_file(weights());
  }
  fs::path model(const std::string& file) const { return folder_.path() / "model" / file; }
  fs::path weights() const { return model("model.safetensors"); }
  fs::path index() const { return model("model.safetensors.index.json"); }
  ProgramEnd check(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"check", graph()});
    return run_graph_program(more);
  }
  std::string graph() const { return (folder_.path() / "graph.toml").string(); }
  /// With the line and column of [model.policy] path.
  void expect_refused(const std::string& why) const {
    const auto end = check();
    EXPECT_EQ(end.code, 2) << end.out;
    EXPECT_THAT(end.err, StartsWith(graph() + ":18:8: error[G044]: model 'policy' cannot be "
                                              "used: "));
    EXPECT_THAT(end.err, HasSubstr(why));
    EXPECT_THAT(end.err, HasSubstr("   18 | path = \"model\""));
    EXPECT_THAT(end.err, HasSubstr("\n1 error\n")) << "told once, though two resources name it";
  }

  ScratchFolder folder_;
  std::string bytes_;
};

TEST_F(AModelFolder, ThatIsWholeIsWell) {
  const auto end = check();
  EXPECT_EQ(end.code, 0) << end.err;
}

TEST_F(AModelFolder, WithoutWeightsIsRefused) {
  fs::remove(weights());
  expect_refused("no weights in '" + (folder_.path() / "model").string() + "'");
  // Nothing is computed with it.
  const auto scripted = check({"--set", "resource.engine.backend=scripted", "--set",
                               "resource.learner.backend=scripted"});
  EXPECT_EQ(scripted.code, 0) << scripted.err;
}

TEST_F(AModelFolder, WithoutWeightsIsWellForMachinesThatHaveThem) {
  fs::remove(weights());
  std::ofstream(graph(), std::ios::app) << R"(
[place]
far = { host = "gpu1", nodes = ["prefill", "decode", "trainer", "broadcaster"] }
near = { nodes = ["rollout", "env", "router"] }
)";
  const auto end = check();
  EXPECT_EQ(end.code, 0) << end.err;
}

TEST_F(AModelFolder, WithHalfAHeaderIsRefused) {
  write_text(weights(), bytes_.substr(0, 100));
  expect_refused("model.safetensors: the header of 6000 bytes ends beyond the file of 100");
}

TEST_F(AModelFolder, WithoutItsLastBytesIsRefused) {
  write_text(weights(), bytes_.substr(0, bytes_.size() - 1));
  expect_refused("model.safetensors: ");
}

TEST_F(AModelFolder, WithAnIndexThatIsNoneIsRefused) {
  fs::remove(weights());
  write_text(index(), "{\"weight_map\": ");
  expect_refused("model.safetensors.index.json:1:");
}

TEST_F(AModelFolder, ThatLacksAShardIsRefused) {
  fs::remove(weights());
  write_text(index(), R"({"weight_map": {"model.norm.weight": "model-1.safetensors"}})");
  expect_refused("model-1.safetensors is missing, but ");
}

/// Nobody writes to it: whoever opened it would wait for ever.
TEST_F(AModelFolder, WithAPipeForAFileIsRefused) {
  fs::remove(weights());
  ASSERT_EQ(::mkfifo(weights().c_str(), 0600), 0);
  expect_refused("model.safetensors' is a pipe, not a regular file");
  fs::remove(model("config.json"));
  ASSERT_EQ(::mkfifo(model("config.json").c_str(), 0600), 0);
  expect_refused("config.json' is a pipe, not a regular file");
}

}  // namespace
}  // namespace primerl
