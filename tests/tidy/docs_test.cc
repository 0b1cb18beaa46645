// What the documents say is there and works: links, graphs, commands and their flags.
#include <sys/wait.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/store/scratch_folder.h"
#include "tests/tidy/page_script.h"

namespace primerl::tidy {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kRoot(PRIMERL_SOURCE_DIR);

struct Outcome {
  int exit_code = 0;
  std::string text;  // stdout and stderr
};

/// A folder as a reader has it after `make build`: the examples, the configs and the programs.
class Desk {
 public:
  Desk() {
    for (const char* shared : {"examples", "configs", "docs"})
      if (fs::exists(kRoot / shared))
        fs::create_directory_symlink(kRoot / shared, folder_ / shared);
    if (fs::exists(kRoot / "examples/reverse_text/model"))
      fs::create_directory_symlink(kRoot / "examples/reverse_text/model", folder_ / "model");
  }

  void write(const std::string& file, const std::string& text) {
    std::ofstream(folder_ / file) << text;
  }
  Outcome run(const std::string& script) {
    write("script.sh", script);
    const std::string command = "cd '" + folder_.string() +
                                "' && PATH='" PRIMERL_PROGRAMS
                                "':\"$PATH\" bash -euo pipefail script.sh >output.txt 2>&1";
    const int status = std::system(command.c_str());
    std::ifstream stream(folder_ / "output.txt", std::ios::binary);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            std::string{std::istreambuf_iterator<char>(stream), {}}};
  }

 private:
  const ScratchFolder scratch_;
  const fs::path& folder_ = scratch_.path();
};

std::vector<CodeBlock> all_blocks() {
  std::vector<CodeBlock> blocks;
  for (const auto& document : documents())
    for (auto& block : code_blocks(document)) blocks.push_back(std::move(block));
  return blocks;
}

TEST(Markdown, BlocksCarryTheirMarker) {
  const auto blocks = code_blocks(
      source_from_text("x.md", "<!-- run exit=2 -->\n```sh\nls\n```\ntext\n```toml\na = 1\n```\n"));
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[0].marker, "run exit=2");
  EXPECT_EQ(blocks[0].text, "ls\n");
  EXPECT_EQ(blocks[0].line, 2);
  EXPECT_EQ(blocks[1].marker, "");
  EXPECT_EQ(blocks[1].language, "toml");
}

TEST(Documents, LinksLeadToFiles) {
  for (const auto& document : documents())
    for (const auto& link : file_links(document))
      EXPECT_TRUE(fs::exists(kRoot / fs::path(link.path).parent_path() / link.target))
          << link.path << ":" << link.line << ": no file '" << link.target << "'";
}

TEST(Documents, GraphsCheck) {
  int64_t num_checked = 0;
  for (const auto& block : all_blocks()) {
    if (block.language != "toml" || block.marker != "check") continue;
    Desk desk;
    desk.write("graph.toml", block.text);
    const auto outcome = desk.run("primerl-graph check graph.toml");
    EXPECT_EQ(outcome.exit_code, 0) << place_of(block) << ":\n" << outcome.text;
    ++num_checked;
  }
  EXPECT_GT(num_checked, 0);
}

/// Every document with a step that is run. One test each.
std::vector<SourceFile> pages() {
  std::vector<SourceFile> found;
  for (auto& document : documents())
    if (std::ranges::any_of(steps_of(document), [](const PageStep& step) {
          return step.kind != PageStep::Kind::kNotRun && step.block.language == "sh";
        }))
      found.push_back(std::move(document));
  return found;
}

std::string test_name(const ::testing::TestParamInfo<SourceFile>& page) {
  std::string name;
  for (const char c : page.param.path)
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

class Pages : public ::testing::TestWithParam<SourceFile> {};

TEST_P(Pages, WorkWhenTheyAreFollowedToTheLetter) {
  Desk desk;
  const auto outcome = desk.run(script_of(steps_of(GetParam())));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
}

INSTANTIATE_TEST_SUITE_P(All, Pages, ::testing::ValuesIn(pages()), test_name);

TEST(Documents, BlocksThatAreNotRunSayWhy) {
  std::string reasons;
  int64_t num_left_out = 0;
  for (const auto& document : documents())
    for (const PageStep& step : steps_of(document)) {
      if (step.kind != PageStep::Kind::kNotRun) continue;
      EXPECT_NE(step.reason, "") << place_of(step.block) << ": unknown marker '"
                                 << step.block.marker << "'";
      reasons += fmt::format("{}: {}\n", place_of(step.block), step.reason);
      ++num_left_out;
    }
  fmt::print("{} blocks of commands are not run:\n{}", num_left_out, reasons);
}

/// A command in a block of another language would not be run.
TEST(Documents, CommandsAreInBlocksOfTheShell) {
  for (const auto& block : all_blocks()) {
    if (block.language != "" && block.language != "text") continue;
    EXPECT_FALSE(block.text.starts_with("primerl-graph ")) << place_of(block);
  }
}

TEST(PageScript, RunsTheBlocksOfAPageInOneFolderAndSession) {
  Desk desk;
  const auto outcome = desk.run(script_of(steps_of(
      source_from_text("x.md",
                       "<!-- file: a/b -->\n```toml\nx = 1\n```\n```sh\nhere=$(cat a/b)\n```\n"
                       "<!-- run exit=3 -->\n```sh\ntest \"$here\" = 'x = 1'\nexit 3\n```\n"
                       "<!-- run with: s/200/4/ -->\n```sh\necho steps: 200\n```\n"
                       "<!-- not run: needs a reason -->\n```sh\nfalse\n```\n"))));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("steps: 4\n"));
}

TEST(PageScript, FailsAtTheFirstBlockThatDoes) {
  const auto outcome_of = [](const std::string& page) {
    return Desk().run(script_of(steps_of(source_from_text("x.md", page))));
  };
  const auto failed = outcome_of("```sh\nfalse\n```\n```sh\necho later\n```\n");
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_THAT(failed.text, AllOf(HasSubstr("@@ x.md:1\n"), Not(HasSubstr("later"))));
  EXPECT_NE(outcome_of("<!-- run exit=3 -->\n```sh\ntrue\n```\n").exit_code, 0);
  EXPECT_NE(outcome_of("<!-- run with: s/a/b/ -->\n```sh\ntrue\n```\n").exit_code, 0);
  EXPECT_NE(outcome_of("<!-- background -->\n```sh\necho no step\n```\n").exit_code, 0);
}

TEST(PageScript, LeavesOutABlockWithAnUnknownMarkerWithoutAReason) {
  const auto steps = steps_of(source_from_text("x.md", "<!-- rum -->\n```sh\nls\n```\n"));
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].kind, PageStep::Kind::kNotRun);
  EXPECT_EQ(steps[0].reason, "");
}

TEST(Documents, TheIndexListsEveryPage) {
  std::set<std::string> listed = {"docs/README.md"};
  for (const auto& document : documents())
    if (document.path == "docs/README.md")
      for (const auto& link : file_links(document)) listed.insert("docs/" + link.target);
  for (const auto& document : documents()) {
    if (!document.path.starts_with("docs/")) continue;
    EXPECT_TRUE(listed.contains(document.path)) << "docs/README.md lacks " << document.path;
  }
}

/// The lines under "Example:" of `primerl-graph COMMAND --help`.
std::string example_of(const std::string& help) {
  const size_t at = help.find("\nExample:\n");
  return at == std::string::npos ? "" : help.substr(at + 10);
}

/// Commands in the order of `primerl-graph --help`, actions as "trace ls".
std::vector<std::string> all_commands(Desk& desk, const std::string& parent = "") {
  const std::string help = desk.run("primerl-graph " + parent + " --help").text;
  std::vector<std::string> found;
  const size_t at = help.find("\nSubcommands:\n");
  if (at == std::string::npos) return found;
  const std::string list = help.substr(at, help.find("\n\n", at + 1) - at);
  static const std::regex line(R"(\n  ([a-z-]+) )");
  for (std::sregex_iterator it(list.begin(), list.end(), line), end; it != end; ++it) {
    const std::string name = parent + std::string((*it)[1]);
    const auto actions = all_commands(desk, name + " ");
    found.insert(found.end(), actions.begin(), actions.end());
    if (actions.empty()) found.push_back(name);
  }
  return found;
}

TEST(Help, ExamplesWorkOneAfterTheOther) {
  Desk desk;
  // Each runs until it is stopped, or asks a run that trains.
  const std::map<std::string, std::string> left_out = {
      {"agent", "runs until it is stopped: hosts_test"},
      {"data", "reads a Parquet file, which this folder lacks: cli_test"},
      {"pause", "needs a run that trains: docs/how-to/pause-a-run.md"},
      {"unpause", "needs a run that trains: docs/how-to/pause-a-run.md"},
      {"serve", "runs until it is stopped: serve_run_test"},
      {"tenant add", "needs a run that is served: serve_run_test"},
      {"tenant ls", "needs a run that is served: serve_run_test"},
      {"tenant show", "needs a run that is served: serve_run_test"},
      {"tenant pause", "needs a run that is served: serve_run_test"},
      {"tenant resume", "needs a run that is served: serve_run_test"},
      {"tenant set", "needs a run that is served: serve_run_test"},
      {"tenant remove", "needs a run that is served: serve_run_test"},
      {"tenant token", "needs a run that is served: tenant_command_test"},
      {"trace dump", "needs a run that trains: docs/how-to/read-a-trace.md"}};
  const std::map<std::string, int> codes = {{"compare-activations", 1}, {"trace diff", 4}};
  auto commands = all_commands(desk);
  EXPECT_GT(commands.size(), 30U);
  std::map<std::string, std::string> examples;
  for (const auto& command : commands) {
    examples[command] = example_of(desk.run("primerl-graph " + command + " --help").text);
    EXPECT_THAT(examples[command], HasSubstr("primerl-graph " + command)) << command;
  }
  // What starts further runs comes last: the others read the first one, runs/latest.
  std::ranges::stable_partition(commands, [&examples](const std::string& command) {
    return command != "sft" && command != "eval" &&
           (command == "run" || examples[command].find("primerl-graph run ") == std::string::npos);
  });
  for (const auto& command : commands) {
    if (left_out.contains(command)) continue;
    const int expected = codes.contains(command) ? codes.at(command) : 0;
    const auto outcome = desk.run(examples[command]);
    EXPECT_EQ(outcome.exit_code, expected) << examples[command] << outcome.text;
  }
  for (const auto& [command, reason] : left_out) fmt::print("not run: {}: {}\n", command, reason);
}

TEST(Documents, ShownOutputIsWhatTheCommandPrints) {
  const std::string marker = "output: ";
  for (const auto& block : all_blocks()) {
    if (!block.marker.starts_with(marker)) continue;
    Desk desk;
    const auto outcome = desk.run(block.marker.substr(marker.size()));
    EXPECT_EQ(outcome.exit_code, 0) << place_of(block) << ":\n" << outcome.text;
    EXPECT_EQ(outcome.text, block.text) << place_of(block);
  }
}

/// The words of each command line that starts with `primerl-graph`, line continuations joined.
std::vector<std::vector<std::string>> command_lines(std::string text) {
  text = std::regex_replace(text, std::regex("\\\\\n\\s*"), " ");
  std::vector<std::vector<std::string>> found;
  const std::regex line(R"((?:^|\n)(?:\$ )?(?:build/bin/)?primerl-graph +([^\n#|>&;]*))");
  const std::regex word(R"([^\s]+)");
  for (std::sregex_iterator it(text.begin(), text.end(), line), end; it != end; ++it) {
    const std::string rest = (*it)[1];
    std::vector<std::string> words;
    for (std::sregex_iterator w(rest.begin(), rest.end(), word); w != end; ++w)
      words.push_back(w->str());
    if (!words.empty()) found.push_back(words);
  }
  return found;
}

TEST(Documents, EveryCommandAndFlagExists) {
  std::map<std::string, Outcome> help;  // by subcommand
  Desk desk;
  for (const auto& block : all_blocks()) {
    if (block.language != "sh" && block.language != "text") continue;
    for (const auto& words : command_lines(block.text)) {
      std::string command = words[0];
      if (command.starts_with("-")) continue;
      const auto look_up = [&] {
        if (!help.contains(command))
          help[command] = desk.run("primerl-graph " + command + " --help");
      };
      look_up();
      // The flags of `trace ls` are its own.
      if (words.size() > 1 && help[command].text.find("SUBCOMMAND") != std::string::npos) {
        command += " " + words[1];
        look_up();
      }
      const Outcome& known = help[command];
      ASSERT_EQ(known.exit_code, 0) << place_of(block) << ": no command '" << command << "'";
      for (const auto& word : words) {
        if (!word.starts_with("--")) continue;
        const std::string flag = word.substr(0, word.find('='));
        EXPECT_THAT(known.text, HasSubstr(flag))
            << place_of(block) << ": '" << command << "' has no flag '" << flag << "'";
      }
    }
  }
  EXPECT_GT(help.size(), 3u);
}

}  // namespace
}  // namespace primerl::tidy
