// One typing mistake is one error, at its position, with the name that was meant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <sstream>

#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  return text;
}

/// One letter missing, one typed twice, two swapped, one replaced, one in the wrong case.
std::vector<std::string> misspelt(const std::string& word) {
  const size_t middle = word.size() / 2;
  std::string lost = word, twice = word, swapped = word, other = word, upper = word;
  lost.erase(word.size() - 1, 1);
  twice.insert(middle, 1, word[middle]);
  std::swap(swapped[middle - 1], swapped[middle]);
  other[0] = other[0] == 'z' ? 'y' : 'z';
  upper[0] = static_cast<char>(std::toupper(upper[0]));
  std::vector<std::string> words = {lost, twice, other, upper};
  if (swapped != word) words.push_back(swapped);
  return words;
}

/// A word of the demo that is a key or a part of a table's name.
struct Place {
  size_t line = 0, column = 0;  // from 0
  std::string word;
};

std::vector<Place> keys_of(const std::vector<std::string>& lines) {
  std::vector<Place> places;
  for (size_t line = 0; line < lines.size(); ++line) {
    const std::string text = lines[line].substr(0, lines[line].find('#'));
    const bool is_header = !text.empty() && text[0] == '[' && std::isalpha(text[1]) != 0;
    for (size_t at = 0; at < text.size(); ++at) {
      if (std::isalpha(text[at]) == 0 || (at > 0 && (std::isalpha(text[at - 1]) != 0 ||
                                                     text[at - 1] == '_' || text[at - 1] == '"')))
        continue;
      const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at);
      const bool is_key = end != std::string::npos && text.compare(end, 3, " = ") == 0;
      const bool is_table = is_header && at == 1;
      if (is_key || is_table) places.push_back({line, at, text.substr(at, end - at)});
    }
  }
  return places;
}

TEST(Slips, InAKeyOrATableAreOneErrorThereThatSaysWhatWasMeant) {
  const auto lines = lines_of(demo_text());
  size_t num_tried = 0;
  for (const auto& place : keys_of(lines))
    for (const auto& slip : misspelt(place.word)) {
      auto wrong = lines;
      wrong[place.line].replace(place.column, place.word.size(), slip);
      const auto graph = load_text(joined(wrong));
      const std::string seen = findings(graph);
      ++num_tried;
      EXPECT_EQ(graph.diagnostics.num_errors(), 1U) << seen;
      EXPECT_THAT(seen, HasSubstr(fmt::format("graph.toml:{}:{}: error", place.line + 1,
                                              place.column + 1)));
      EXPECT_THAT(seen, HasSubstr(fmt::format("did you mean '{}'?", place.word)));
    }
  EXPECT_GT(num_tried, 200U);
}

struct Slip {
  std::string from, to;  // the first occurrence in the demo
  std::string place;     // position of the error, "line:column: error[code]"
  std::string help;
};

class NamedSlips : public ::testing::TestWithParam<Slip> {};

TEST_P(NamedSlips, AreOneErrorWhereTheyStand) {
  const auto& [from, to, place, help] = GetParam();
  const auto graph = load_text(replaced(demo_text(), from, to));
  const std::string seen = findings(graph);
  EXPECT_EQ(graph.diagnostics.num_errors(), 1U) << seen;
  EXPECT_THAT(seen, HasSubstr("graph.toml:" + place));
  EXPECT_THAT(seen, HasSubstr(help));
}

INSTANTIATE_TEST_SUITE_P(
    OfTheDemo, NamedSlips,
    ::testing::Values(
        Slip{"kind = \"engine\"", "kin = \"engine\"", "20:1: error[G020]", "'kind'?"},
        Slip{"actor = \"router\"", "acto = \"router\"", "40:1: error[G020]", "'actor'?"},
        Slip{"{ name = ", "{ nam = ", "6:17: error[G020]", "'name'?"},
        Slip{"{ path = ", "{ pth = ", "63:5: error[G020]", "'path'?"},
        Slip{"path = \"model\"", "pat = \"model\"", "14:1: error[G020]", "'path'?"},
        Slip{"[resource.engine]", "[resorce.engine]", "19:2: error[G006]", "'resource'?"},
        Slip{"[node.router]", "[node.ruoter]", "39:7: error[G011]", "[node.router]?"},
        Slip{"[node.router]", "[node.Router]", "39:7: error[G017]", "lower_snake"},
        Slip{"[resource.engine]", "[resource.engin]", "19:11: error[G013]", "[resource.engine]?"},
        Slip{"[model.policy]", "[model.polic]", "13:8: error[G014]", "[model.policy]?"},
        Slip{"engine = \"engine\"", "engine = \"engin\"", "44:10: error[G013]", "'engine'?"},
        Slip{"model = \"policy\"", "model = \"polcy\"", "22:9: error[G014]", "'policy'?"},
        Slip{"backend = \"torch\"", "backnd = \"torch\"", "21:1: error[G020]", "'backend'?"},
        Slip{"learner = \"learner\"", "learner = \"lerner\"", "52:11: error[G013]", "'learner'?"},
        Slip{"[node.router]\nactor = \"router\"\npolicy = \"sticky_least_loaded\"\n", "",
             "57:27: error[G011]", "also named at graph.toml:58:4"},
        Slip{"[model.policy]                           # shared by the resources that name it\n"
             "path = \"model\"",
             "", "21:9: error[G014]", "also named at graph.toml:27:9"},
        Slip{"{ path = \"rollout.group -> trainer.group\", capacity = 64 }", "{ capacity = 64 }",
             "63:3: error[G025]", "needs 'path'"},
        Slip{"{ path = \"rollout.group -> trainer.group\", capacity = 64 }", "7",
             "63:3: error[G030]", "an edge is a string"}));

TEST(Slips, InAPlaceAreOneErrorThereThatSaysWhatWasMeant) {
  const auto graph =
      load_text(demo_text() +
                "\n[place]\none = { nods = [\"env\", \"rollout\", \"router\"] }\n"
                "two = { nodes = [\"prefill\", \"decode\", \"trainer\", \"broadcaster\"] }\n");
  const std::string seen = findings(graph);
  EXPECT_THAT(seen, HasSubstr("error[G020]"));
  EXPECT_THAT(seen, HasSubstr("did you mean 'nodes'?"));
  EXPECT_THAT(seen, Not(HasSubstr("G051"))) << "its nodes have a place";
}

// The value is not the default, so that a rule would show the difference.
TEST(Slips, InAnOptionHideNoOtherFindingAndMakeNone) {
  const auto graph = load_text(replaced(demo_text(), "group_size = 8", "grup_size = 7"));
  const std::string seen = findings(graph);
  EXPECT_EQ(graph.diagnostics.num_errors(), 2U) << seen;
  EXPECT_THAT(seen, HasSubstr("error[G020]"));
  EXPECT_THAT(seen, HasSubstr("error[G061]")) << "64 is no multiple of 7";
}

TEST(Slips, AValueThatDoesNotFitTheGuessIsNoSecondError) {
  const auto graph = load_text(replaced(demo_text(), "group_size = 8", "grup_size = \"8\""));
  EXPECT_EQ(graph.diagnostics.num_errors(), 1U) << findings(graph);
}

TEST(Slips, ASimilarKeyBesideTheRightOneIsUnknown) {
  const auto graph =
      load_text(replaced(demo_text(), "group_size = 8", "group_size = 8\ngrup_size = 7"));
  EXPECT_EQ(graph.diagnostics.num_errors(), 1U) << findings(graph);
  EXPECT_THAT(findings(graph), HasSubstr("has no option 'grup_size'"));
}

TEST(Slips, InIncludeAreOneErrorThere) {
  const Folder folder;
  folder.write("base.toml", demo_text());
  const std::string path = folder.write("graph.toml", "inclde = [\"base.toml\"]\n");
  Overrides overrides;
  overrides.cores = 2;
  const auto graph = load_graph(path, overrides, test_catalog());
  EXPECT_EQ(graph.diagnostics.num_errors(), 1U) << findings(graph);
  EXPECT_THAT(findings(graph), HasSubstr("graph.toml:1:1: error[G006]"));
  EXPECT_THAT(findings(graph), HasSubstr("did you mean 'include'?"));
}

}  // namespace
}  // namespace primerl::testing
