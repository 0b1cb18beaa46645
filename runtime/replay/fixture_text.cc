#include "runtime/replay/fixture_text.h"

#include <cctype>

namespace primerl {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

/// "rollout.main" -> "RolloutMain"
std::string camel(const std::string& name) {
  std::string out;
  bool begins = true;
  for (const char c : name) {
    if (!is_word(c)) {
      begins = true;
      continue;
    }
    out += begins ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    begins = false;
  }
  return out;
}

std::string run_text(const FixtureFacts& facts) {
  return fmt::format("run {:016x} of graph '{}', program {}", facts.run_id, facts.graph_name,
                     facts.program_version.empty() ? "unknown" : facts.program_version);
}

/// Makes one line of a text, for a comment, because message contents may have several lines.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  constexpr size_t kMost = 80;
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

std::string steps_text(const FixtureFacts& facts) {
  return facts.last_step == 1 ? "step 1" : fmt::format("steps 1 to {}", facts.last_step);
}

}  // namespace

std::string FixtureFacts::test_name() const {
  std::string name;
  for (const char c : host_name) name += is_word(c) ? c : '_';
  return fmt::format("{}_{}_test", name, last_step);
}

std::string test_text(const FixtureFacts& facts) {
  std::string text = fmt::format(
      "// '{}' takes {} of a recorded run again and must send the same messages.\n"
      "// From {}.\n",
      facts.host_name, steps_text(facts), run_text(facts));
  if (facts.divergence)
    text += fmt::format("//\n// When this was written, step {} differed ({}):\n// {}\n",
                        facts.divergence->step, to_string(facts.divergence->kind),
                        one_line(facts.divergence->what));
  text += fmt::format(R"(#include <gtest/gtest.h>

#include "runtime/replay/replay_fixture.h"

namespace primerl {{
namespace {{

TEST(RecordedRun, {}RepeatsItsFirst{}Steps) {{
  // A relative __FILE__ counts from the build folder.
  const auto file = std::filesystem::path(PRIMERL_BINARY_DIR) / __FILE__;
  const auto played = play_fixture(file.parent_path(), "{}");
  ASSERT_TRUE(played.ok()) << played.error().text();
  EXPECT_TRUE(played->is_identical) << played->text;
}}

}}  // namespace
}}  // namespace primerl
)",
                      camel(facts.host_name), facts.last_step, facts.depth);
  return text;
}

std::string readme_text(const FixtureFacts& facts) {
  std::string text = fmt::format(
      "# {0} of '{1}'\n\n"
      "From {2}.\n\n"
      "`trace/` has what '{1}' was told until then and where its messages were handled.\n"
      "`{3}.cc` plays it with the actors it is built with and compares\n"
      "every message.\n\n",
      facts.last_step == 1 ? "Step 1" : fmt::format("Steps 1 to {}", facts.last_step),
      facts.host_name, run_text(facts), facts.test_name());
  text += facts.divergence
              ? fmt::format(
                    "When it was written, it failed:\n\n    {}:{}: {}: {}\n\n"
                    "It passes when '{}' does again what it did in the recorded run.\n",
                    facts.host_name, facts.divergence->step, to_string(facts.divergence->kind),
                    one_line(facts.divergence->what), facts.host_name)
              : std::string("When it was written, it passed: a regression test.\n");
  text += fmt::format(
      "\n## Add it\n\n"
      "Move this folder to `tests/replay/{0}/` and add to `tests/replay/CMakeLists.txt`:\n\n"
      "    primerl_test({0} LABEL unit SOURCES {0}/{0}.cc\n"
      "                 DEPENDS primerl_replay)\n\n"
      "## Look at it\n\n"
      "    primerl-graph replay tests/replay/{0} --depth {1}\n"
      "    primerl-graph trace cat tests/replay/{0}\n\n"
      "It holds messages by the schemas they had. When one changes, the test says so: record\n"
      "and write it again, or delete it.\n",
      facts.test_name(), facts.depth);
  return text;
}

}  // namespace primerl
