// What the documents say is there and works: links, graphs, commands and their flags.
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/store/scratch_folder.h"
#include "tests/tidy/markdown.h"

namespace primerl::tidy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

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

std::string place_of(const CodeBlock& block) {
  return block.path + ":" + std::to_string(block.line);
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

TEST(Documents, MarkedCommandsRun) {
  const std::regex marked("run(?: exit=([0-9]+))?");
  int64_t num_run = 0;
  for (const auto& block : all_blocks()) {
    std::smatch match;
    if (!std::regex_match(block.marker, match, marked)) continue;
    const int expected = match[1].matched ? std::stoi(match[1]) : 0;
    Desk desk;
    const auto outcome = desk.run(block.text);
    EXPECT_EQ(outcome.exit_code, expected) << place_of(block) << ":\n"
                                           << block.text << "\n"
                                           << outcome.text;
    ++num_run;
  }
  EXPECT_GT(num_run, 0);
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
