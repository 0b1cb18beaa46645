// Every actor says all about itself: each port, timer, option and resource has its words, and the
// header draws every port.
#include <cctype>
#include <fstream>
#include <iterator>
#include <regex>

#include <gtest/gtest.h>

#include "actors/catalog.h"
#include "tests/tidy/source_tree.h"

namespace primerl {
namespace {

/// One sentence for a person: there, lower case, no full stop.
std::string doc_fault(const std::string& doc) {
  if (doc.size() < 8) return "says nothing: '" + doc + "'";
  if (doc.ends_with(".")) return "ends with a full stop: '" + doc + "'";
  const bool capitalised = std::isupper(static_cast<unsigned char>(doc[0])) != 0 &&
                           std::isupper(static_cast<unsigned char>(doc[1])) == 0;
  return capitalised ? "starts with a capital: '" + doc + "'" : "";
}

void expect_doc(const std::string& what, const std::string& doc) {
  EXPECT_EQ(doc_fault(doc), "") << what;
}

void expect_option_docs(const std::string& what, const OptionSet& options) {
  for (const auto& field : options.fields) {
    expect_doc(what + "." + field.name, field.doc);
    if (field.table != nullptr) expect_option_docs(what + "." + field.name, *field.table);
  }
}

TEST(Docs, AreJudged) {
  EXPECT_NE(doc_fault(""), "");
  EXPECT_NE(doc_fault("A prompt to continue"), "");
  EXPECT_NE(doc_fault("a prompt to continue."), "");
  EXPECT_EQ(doc_fault("a prompt to continue"), "");
  EXPECT_EQ(doc_fault("KV blocks of this engine"), "");
}

TEST(Contracts, SayWhatEveryPortTimerAndOptionIs) {
  const auto actors = actor_catalog();
  ASSERT_FALSE(actors.empty());
  for (const auto& actor : actors) {
    expect_doc(actor.name, actor.doc);
    for (const auto& port : actor.inputs) expect_doc(actor.name + "." + port.name, port.doc);
    for (const auto& port : actor.outputs) expect_doc(actor.name + "." + port.name, port.doc);
    for (const auto& timer : actor.timers) expect_doc(actor.name + "." + timer.name, timer.doc);
    expect_option_docs(actor.name, actor.options);
  }
}

/// The `///` block a header opens with.
std::string opening_of(const std::string& path) {
  std::ifstream stream(std::string(PRIMERL_SOURCE_DIR) + "/" + path, std::ios::binary);
  std::string text, line;
  while (std::getline(stream, line) && line.starts_with("///")) text += line + "\n";
  return text;
}

TEST(Contracts, HeadersDrawEveryPort) {
  for (const auto& actor : actor_catalog()) {
    const std::string path = "actors/" + actor.name + "/" + actor.name + ".h";
    const std::string opening = opening_of(path);
    ASSERT_FALSE(opening.empty()) << path;
    auto drawn = [&](const std::string& port) {
      return std::regex_search(opening, std::regex("\\b" + port + "\\b"));
    };
    for (const auto& port : actor.inputs)
      EXPECT_TRUE(drawn(port.name)) << path << ": " << port.name;
    for (const auto& port : actor.outputs)
      EXPECT_TRUE(drawn(port.name)) << path << ": " << port.name;
  }
}

}  // namespace
}  // namespace primerl
