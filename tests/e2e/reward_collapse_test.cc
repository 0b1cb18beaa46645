// docs/how-to/find-why-my-reward-collapsed.md, command by command, on a run of the demo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/e2e/run_files.h"

namespace primerl {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kPage = "docs/how-to/find-why-my-reward-collapsed.md";

/// The blocks of commands of the page, in order.
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

/// A reader at a desk: types the page's commands, with the names that this run printed.
class Reader {
 public:
  Reader() : commands_(commands_of_page()) {
    fs::create_directory_symlink(source_path("examples"), scratch_.path() / "examples");
  }
  /// Steps are numbered as a run's threads came to them: `name` of the page is `here` in this run.
  void learn(const std::string& name, const std::string& here) { names_.emplace_back(name, here); }

  /// The next command; it must begin with `beginning`.
  ProgramEnd type_next(const std::string& beginning) {
    if (next_ == commands_.size()) {
      ADD_FAILURE() << "the page ends before '" << beginning << "'";
      return {};
    }
    std::string command = commands_[next_++];
    EXPECT_TRUE(command.starts_with(beginning)) << command;
    for (const auto& [name, here] : names_)
      if (const auto at = command.find(name); at != std::string::npos)
        command.replace(at, name.size(), here);
    write_text(scratch_.path() / "command.sh",
               "set -euo pipefail\nexport PATH=\"" PRIMERL_BINARY_DIR "/bin:$PATH\"\n" + command);
    return Program({"/bin/bash", "command.sh"}, {}, scratch_.path().string()).wait();
  }
  bool is_at_end() const { return next_ == commands_.size(); }

 private:
  ScratchFolder scratch_;
  const std::vector<std::string> commands_;
  size_t next_ = 0;
  std::vector<std::pair<std::string, std::string>> names_;
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
  reader.learn("trainer:164", first_match(found.out, "^(trainer:[0-9]+): reward/all/mean"));
  // 120 tasks make 15 batches of 8 groups; a few of them may come later or be filtered.
  const int step = std::stoi(first_match(found.out, "of training step ([0-9]+) = 0\\.[01]"));
  EXPECT_GT(step, 12);
  EXPECT_LT(step, 22);

  const auto causes = reader.type_next("primerl-graph trace why");
  ASSERT_EQ(causes.code, 0) << causes.err;
  EXPECT_THAT(causes.out, HasSubstr("TrajectoryGroup  [answers]"));
  reader.learn("env.main:1209", first_match(causes.out, "(env\\.main:[0-9]+)  action <- rollout"));
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
  reader.learn("env.main:1156", first_match(changed.out, "(env\\.main:[0-9]+): emission"));

  const int trajectory = std::stoi(
      first_match(reader.type_next("primerl-graph trace cat").out, "\"trajectory\": ([0-9]+)"));
  const int group_size = 8, ordinal = trajectory / group_size;
  EXPECT_GE(ordinal, 120) << "the tasks before have the right key";
  EXPECT_LT(ordinal, 150) << "most answers are judged differently by the two keys";
  reader.learn("main-122-0-7", fmt::format("main-{}-0-{}", ordinal, trajectory % group_size));
  EXPECT_THAT(reader.type_next("grep").out, HasSubstr("\"completion\":"));
  EXPECT_TRUE(reader.is_at_end()) << "the page has commands that nothing tests";
}

}  // namespace
}  // namespace primerl
