// Runs docs/how-to/find-why-my-reward-collapsed.md, command by command, on a run of the demo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kPage = "docs/how-to/find-why-my-reward-collapsed.md";

/// The command blocks of the page, in order.
std::vector<std::string> commands_of_page() {
  std::vector<std::string> blocks;
  std::ifstream in(source_path(kPage));
  bool is_inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line == "```sh") {
      is_inside = true;
      blocks.emplace_back();
    } else if (line.starts_with("```")) {
      is_inside = false;
    } else if (is_inside) {
      blocks.back() += line + "\n";
    }
  }
  return blocks;
}

/// Runs the page's commands one after another in its own folder. The commands read step names from
/// the output of earlier commands.
class Reader {
 public:
  Reader() : commands_(commands_of_page()) {
    fs::create_directory_symlink(source_path("examples"), scratch_.path() / "examples");
  }

  /// Runs the page's next block of commands, which must contain `part`.
  ProgramEnd type_next(const std::string& part) {
    if (next_ == commands_.size()) {
      ADD_FAILURE() << "the page ends before '" << part << "'";
      return {};
    }
    const std::string& command = commands_[next_++];
    EXPECT_THAT(command, HasSubstr(part));
    write_text(scratch_.path() / "command.sh",
               "set -euo pipefail\nexport PATH=\"" PRIMERL_BINARY_DIR "/bin:$PATH\"\n" + command);
    return Program({"/bin/bash", "command.sh"}, {}, scratch_.path().string()).wait();
  }
  bool is_at_end() const { return next_ == commands_.size(); }

 private:
  ScratchFolder scratch_;
  const std::vector<std::string> commands_;
  size_t next_ = 0;
};

std::string first_match(const std::string& text, const char* pattern) {
  std::smatch match;
  const bool is_found = std::regex_search(text, match, std::regex(pattern));
  EXPECT_TRUE(is_found) << "no /" << pattern << "/ in:\n" << text;
  return is_found ? match[1].str() : "";
}

TEST(RewardCollapse, IsFoundByTheStepsOfThePage) {
  Reader reader;
  const auto run = reader.type_next("primerl-graph run");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(reader.type_next("grep").out, HasSubstr("\"step\":30"));

  const auto found = reader.type_next("primerl-graph bisect");
  ASSERT_EQ(found.code, 0) << found.out << found.err;
  // 120 tasks make 15 batches of 8 groups; a few groups may come later or be filtered.
  const int step = std::stoi(first_match(found.out, "of training step ([0-9]+) = 0\\.[01]"));
  EXPECT_GT(step, 12);
  EXPECT_LT(step, 22);

  const auto causes = reader.type_next("primerl-graph trace why");
  ASSERT_EQ(causes.code, 0) << causes.err;
  EXPECT_THAT(causes.out, HasSubstr("TrajectoryGroup  [answers]"));
  EXPECT_THAT(causes.out, HasSubstr("  action <- rollout"));
  const auto judged = reader.type_next("primerl-graph trace cat");
  EXPECT_THAT(judged.out, HasSubstr("(Observation)"));
  EXPECT_THAT(judged.out, HasSubstr("\"reward\": "));

  const auto again = reader.type_next("primerl-graph replay");
  EXPECT_EQ(again.code, 0) << again.out << again.err;
  EXPECT_TRUE(again.out.ends_with("\nidentical\n")) << again.out;

  const auto changed = reader.type_next("primerl-graph replay");
  ASSERT_EQ(changed.code, 4) << changed.out << changed.err;
  EXPECT_THAT(changed.out, HasSubstr("'env.observation -> rollout.observation' has another"));
  const std::string was = first_match(changed.out, "reward: recorded ([0-9.]+), now");
  const std::string now = first_match(changed.out, "reward: recorded [0-9.]+, now ([0-9.]+)");
  EXPECT_NE(was, now);

  const int trajectory = std::stoi(
      first_match(reader.type_next("primerl-graph trace cat").out, "\"trajectory\": ([0-9]+)"));
  const int group_size = 8, ordinal = trajectory / group_size;
  EXPECT_GE(ordinal, 120) << "the tasks before have the right key";
  EXPECT_LT(ordinal, 150) << "most answers are judged differently by the two keys";
  const std::string line = reader.type_next("grep").out;
  EXPECT_THAT(line, HasSubstr(fmt::format("main-{}-0-{}", ordinal, trajectory % group_size)));
  EXPECT_THAT(line, HasSubstr("\"completion\":"));
  EXPECT_TRUE(reader.is_at_end()) << "the page has commands that nothing tests";
}

}  // namespace
}  // namespace primerl
