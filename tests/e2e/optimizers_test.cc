// The examples of docs/how-to/choose-an-optimizer.md, and optimizers in runs of the demo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kPage = "docs/how-to/choose-an-optimizer.md";
constexpr const char* kDemoGraph = "examples/reverse_text/graph.toml";

/// The first block of the page of a language.
std::string block_of_page(const std::string& language) {
  const std::string page = *read_text_file(source_path(kPage));
  const std::string open = "```" + language + "\n";
  const size_t begin = page.find(open) + open.size();
  return page.substr(begin, page.find("```", begin) - begin);
}

class OptimizersPage : public testing::Test {
 protected:
  fs::path run_folder() const { return scratch_.path() / "run"; }
  fs::path file(const std::string& name) const { return scratch_.path() / name; }
  ProgramEnd run(std::vector<std::string> more) const {
    more.insert(more.begin(), {"run", source_path(kDemoGraph), "--out", run_folder().string()});
    return run_graph_program(more);
  }

 private:
  ScratchFolder scratch_;
};

TEST_F(OptimizersPage, HasAGraphThatIsValid) {
  std::ofstream(file("overlay.toml")) << block_of_page("toml");
  const auto end = run_graph_program({"check", source_path("examples/two_tenants/graph.toml"),
                                      "--overlay", file("overlay.toml").string()});
  EXPECT_EQ(end.code, 0) << end.err;
}

TEST_F(OptimizersPage, HasACommandThatTrainsWithMuonAndItsRunResumesOnlySo) {
  std::istringstream command(block_of_page("sh"));
  std::vector<std::string> words{std::istream_iterator<std::string>(command), {}};
  ASSERT_GE(words.size(), 3U);
  ASSERT_EQ(words[0] + " " + words[1] + " " + words[2],
            std::string("primerl-graph run ") + kDemoGraph);
  words.erase(words.begin(), words.begin() + 3);
  const auto steps = std::ranges::find(words, "20");
  ASSERT_NE(steps, words.end());
  *steps = "2";
  const auto end = run(words);
  ASSERT_EQ(end.code, 0) << end.err;
  const auto state = json_file(run_folder() / "checkpoints/step_2/learner/state.json");
  EXPECT_EQ(*state.get_string("kind"), "muon");
  const auto more =
      run_graph_program({"run", "--resume", run_folder().string(), "--max-steps", "3"});
  EXPECT_EQ(more.code, 0) << more.err;
  const auto other = run_graph_program({"run", "--resume", run_folder().string(), "--max-steps",
                                        "4", "--set", "resource.learner.optimizer.kind=adamw"});
  EXPECT_NE(other.code, 0);
  EXPECT_THAT(other.err, HasSubstr("optimizer 'muon' wrote it, this one is 'adamw'"));
  EXPECT_THAT(other.err, HasSubstr("can be resumed as before"));
  const auto same =
      run_graph_program({"run", "--resume", run_folder().string(), "--max-steps", "4"});
  EXPECT_EQ(same.code, 0) << "the refused kind is not kept: " << same.err;
}

TEST_F(OptimizersPage, NamesWhatCheckRefusesWithItsPosition) {
  const auto refusal = [&](const std::string& text) {
    std::ofstream(file("overlay.toml")) << text;
    const auto end = run_graph_program(
        {"check", source_path(kDemoGraph), "--overlay", file("overlay.toml").string()});
    EXPECT_EQ(end.code, 2) << text;
    return end.err;
  };
  EXPECT_THAT(refusal("[resource.learner.optimizer]\nmomentum = 0.5\n"),
              HasSubstr("overlay.toml:2:12: error[G085]: resource 'learner' refuses its options: "
                        "'optimizer.momentum' is not an option of 'adamw'"));
  EXPECT_THAT(refusal("[tenant.main]\noptimizer = { kind = \"sgd\", beta2 = 0.9 }\n"),
              HasSubstr("overlay.toml:2:37: error[G085]: tenant 'main' refuses its options: "
                        "'optimizer.beta2' is not an option of 'sgd'"));
  EXPECT_THAT(refusal("[tenant.main.schedule]\nkind = \"wsd\"\ndecay_steps = 201\n"),
              HasSubstr("decay_steps 201 together exceed max_steps 200"));
  EXPECT_THAT(refusal("[resource.learner.optimizer]\nmoments_on = \"host\"\n"),
              HasSubstr("overlay.toml:2:14: error[G085]"));
}

}  // namespace
}  // namespace primerl
