#include "graph/config/graph_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "graph/config/toml_depth.h"
#include "graph/config/toml_source.h"
#include "graph/render.h"
#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CheckedGraph load(const std::string& path, Overrides overrides = {}) {
  overrides.cores = 2;
  return load_graph(path, overrides, test_catalog());
}

std::string origin_of(const CheckedGraph& graph, const std::string& path) {
  for (const auto& value : graph.resolved)
    if (value.path == path) return value.value + " @ " + value.origin;
  return "not there";
}

TEST(GraphFile, IncludesComeFirstAndTheFileWins) {
  const Folder folder;
  folder.write("base.toml", demo_text());
  const auto path = folder.write(
      "top.toml", "include = [\"base.toml\"]\n[tenant.main]\nmax_steps = 3\n[graph]\nseed = 5\n");
  const auto graph = load(path);
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_EQ(graph.plan->tenants[0].max_steps, 3);
  EXPECT_EQ(graph.plan->tenants[0].batch_size, 64);
  EXPECT_EQ(graph.plan->settings.seed, 5);
  EXPECT_EQ(origin_of(graph, "tenant.main.max_steps"), "3 @ " + path + ":3:13");
  EXPECT_EQ(origin_of(graph, "tenant.main.batch_size"),
            "64 @ " + folder.path() + "/base.toml:8:14");
  EXPECT_EQ(origin_of(graph, "tenant.main.seq_len"), "256 @ default");
}

TEST(GraphFile, OverlaysComeAfterTheFileAndFlagsLast) {
  const Folder folder;
  const auto path = folder.write("graph.toml", demo_text());
  Overrides overrides;
  overrides.overlays = {folder.write("a.toml", "[tenant.main]\nmax_steps = 3\ngroup_size = 4\n"),
                        folder.write("b.toml", "[tenant.main]\nmax_steps = 4\n")};
  overrides.sets = {"tenant.main.max_steps=5", "node.router.policy=random",
                    "node.rollout.max_inflight = 32", "tenant.main.max_steps=6"};
  const auto graph = load(path, overrides);
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_EQ(origin_of(graph, "tenant.main.max_steps"), "6 @ --set tenant.main.max_steps=6");
  EXPECT_EQ(origin_of(graph, "tenant.main.group_size"), "4 @ " + folder.path() + "/a.toml:3:14");
  EXPECT_EQ(origin_of(graph, "node.router.policy"), "\"random\" @ --set node.router.policy=random");
  EXPECT_EQ(origin_of(graph, "node.rollout.max_inflight"),
            "32 @ --set node.rollout.max_inflight = 32");
}

TEST(GraphFile, AnOverlayMayAddTables) {
  const Folder folder;
  Overrides overrides;
  overrides.overlays = {
      folder.write("second.toml", "[tenant.second]\nenvironment = { name = \"copy\" }\n")};
  const auto graph = load(folder.write("graph.toml", demo_text()), overrides);
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_EQ(graph.plan->tenants.size(), 2u);
  EXPECT_EQ(graph.plan->instances[1].name, "env.second");
  // Both tenants share the router; only per_tenant nodes have an instance each.
  EXPECT_EQ(graph.plan->groups.size(), 8u);
}

TEST(GraphFile, FlagErrorsPointIntoTheFlag) {
  Overrides overrides;
  overrides.sets = {"tenant.main.group_size=\"8\"", "node.router.polcy=random"};
  const auto graph = load_text(demo_text(), overrides);
  EXPECT_EQ(graph.plan, nullptr);
  EXPECT_THAT(findings(graph), HasSubstr("--set:1:24: error[G021]"));
  EXPECT_THAT(findings(graph), HasSubstr("--set:1:13: error[G020]"));
}

TEST(GraphFile, IncludesThatIncludeEachOtherAreNamed) {
  const Folder folder;
  folder.write("a.toml", "include = [\"b.toml\"]\n");
  folder.write("b.toml", "include = [\"c.toml\"]\n");
  folder.write("c.toml", "include = [\"a.toml\"]\n");
  const auto graph = load(folder.path() + "/a.toml");
  EXPECT_EQ(graph.plan, nullptr);
  EXPECT_THAT(findings(graph), HasSubstr("c.toml:1:12: error[G004]"));
  EXPECT_THAT(findings(graph), HasSubstr("note: 'b.toml' includes 'c.toml'"));
  EXPECT_THAT(findings(graph), HasSubstr("note: 'c.toml' includes 'a.toml'"));
}

TEST(GraphFile, ADiamondOfIncludesIsNoCycle) {
  const Folder folder;
  folder.write("base.toml", demo_text());
  folder.write("left.toml", "include = [\"base.toml\"]\n[tenant.main]\nmax_steps = 3\n");
  folder.write("right.toml", "include = [\"base.toml\"]\n[graph]\nseed = 9\n");
  const auto graph = load(folder.write("top.toml", "include = [\"left.toml\", \"right.toml\"]\n"));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_EQ(graph.plan->settings.seed, 9);
  EXPECT_EQ(graph.plan->tenants[0].max_steps, 200) << "right.toml brings base.toml again";
}

TEST(GraphFile, IncludesHaveADepth) {
  const Folder folder;
  for (int depth = 1; depth <= kIncludeDepthMax + 1; ++depth)
    folder.write(fmt::format("{}.toml", depth),
                 depth == 1 ? demo_text() : fmt::format("include = [\"{}.toml\"]\n", depth - 1));
  EXPECT_NE(load(folder.path() + fmt::format("/{}.toml", kIncludeDepthMax)).plan, nullptr);
  const auto graph = load(folder.path() + fmt::format("/{}.toml", kIncludeDepthMax + 1));
  EXPECT_THAT(findings(graph), HasSubstr("error[G004]"));
}

TEST(GraphFile, ModelPathsStartAtTheFileThatStatesThem) {
  const Folder folder;
  const Folder elsewhere;
  const auto base = elsewhere.write("base.toml", demo_text());
  const auto graph = load(folder.write("top.toml", "include = [\"" + base + "\"]\n"));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  EXPECT_EQ(graph.plan->models[0].path, elsewhere.path() + "/model");
}

TEST(GraphFile, AnUnreadableFileIsReportedOnce) {
  const Folder folder;
  EXPECT_THAT(findings(load(folder.path() + "/none.toml")), HasSubstr("does not exist"));
  EXPECT_THAT(findings(load(folder.path())), HasSubstr("is a folder"));
  const auto empty = load(folder.write("empty.toml", ""));
  EXPECT_THAT(findings(empty), HasSubstr("error[G060]"));
}

std::string repeated(const std::string& part, int count, const std::string& between) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i > 0 ? between : "") + part;
  return text;
}

TEST(GraphFile, ADeviceOrAPipeIsReadToItsLimit) {
  const auto endless = load("/dev/zero");
  EXPECT_EQ(endless.plan, nullptr);
  EXPECT_THAT(findings(endless),
              HasSubstr("error[G003]: '/dev/zero' is larger than 16777216 bytes"));
  const Folder folder;
  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe, std::ios::binary) << demo_text(); });
  const auto piped = load(pipe);
  writer.join();
  EXPECT_NE(piped.plan, nullptr) << findings(piped);
}

TEST(GraphFile, AFileAtTheLimitIsReadAndOneByteMoreIsNot) {
  const Folder folder;
  std::string text = demo_text();
  text.resize(kTomlBytesMax, '\n');
  EXPECT_NE(load(folder.write("graph.toml", text)).plan, nullptr);
  EXPECT_THAT(findings(load(folder.write("graph.toml", text + "\n"))), HasSubstr("is larger than"));
}

TEST(GraphFile, AFlagIncludesNoFile) {
  Overrides overrides;
  overrides.sets = {"include=[\"/nonexistent.toml\"]"};
  const auto graph = load_text(demo_text(), overrides);
  EXPECT_EQ(graph.plan, nullptr);
  EXPECT_THAT(findings(graph), HasSubstr("--set:1:1: error[G005]: '--set' includes no file"));
  EXPECT_THAT(findings(graph), HasSubstr("--overlay"));
}

TEST(Diagnostics, ShowsControlCharactersOfAValueAsText) {
  Overrides overrides;
  overrides.sets = {"node.router.policy=\"\\u001b[31mred\\u0007\\u009b\""};
  const std::string seen = findings(load_text(demo_text(), overrides));
  EXPECT_THAT(seen, HasSubstr("error[G024]: '\\u001B[31mred\\u0007\\u009B' is not a valid choice"));
  for (const char c : seen) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << +c;
}

TEST(Diagnostics, ShowsNoBytesThatATerminalCannotPrint) {
  const Folder folder;
  std::string wide = "\xFF\xFE";  // as an editor writes UTF-16
  for (const char c : demo_text()) wide += {c, '\0'};
  const auto utf16 = findings(load(folder.write("wide.toml", wide)));
  EXPECT_THAT(utf16, HasSubstr("wide.toml: error[G001]: the text is in UTF-16, and TOML is UTF-8"));
  EXPECT_THAT(utf16, HasSubstr("help: save the file as UTF-8"));
  const auto latin1 = findings(load(folder.write("latin1.toml", "[graph]\nname = \"l\xE4uft\"\n")));
  EXPECT_THAT(latin1, HasSubstr("    2 | name = \"l?uft\"\n"));
  for (const auto& text : {utf16, latin1})
    EXPECT_TRUE(std::all_of(text.begin(), text.end(), [](char c) { return c > 0; })) << text;
}

TEST(Diagnostics, CutsLongValuesAndLongLines) {
  const std::string word(100'000, 'x');
  const std::string text = "title = \"" + word + "\"; y";
  Sources sources;
  Diagnostics diagnostics;
  const SourceId source = sources.add("x.toml", text);
  const auto last = static_cast<uint32_t>(text.size());
  diagnostics.error("G024", {source, {1, 9}, {1, last - 2}}, "'{}' is no choice", word);
  diagnostics.error("G001", {source, {1, last}, {1, last + 1}}, "no {}", std::string(400, 'y'));
  const std::string first = render(diagnostics.all()[0], sources);
  EXPECT_THAT(first, HasSubstr("'" + word.substr(0, 400) + "...' is no choice"));
  EXPECT_THAT(first, HasSubstr("1 | title = \"xxx"));
  EXPECT_THAT(first, HasSubstr("xxx...\n"));
  EXPECT_LT(first.size(), 900U);
  const std::string second = render(diagnostics.all()[1], sources);
  EXPECT_THAT(second, HasSubstr("no " + std::string(400, 'y') + "\n"));
  EXPECT_THAT(second, HasSubstr("1 | ...xxx"));
  EXPECT_THAT(second, HasSubstr("xxx\"; y\n      | " + std::string(43, ' ') + "^\n"));
}

TEST(TomlDepth, CountsThePartsOfAKeyHoweverTheyAreWritten) {
  for (const std::string part : {"a", "\"#\"", "'.'", "\"\\\"=\"", " a\t"}) {
    EXPECT_FALSE(too_deep_key(repeated(part, kTomlDepthMax + 1, ".") + " = 1.5\n")) << part;
    EXPECT_TRUE(too_deep_key(repeated(part, kTomlDepthMax + 2, ".") + " = 1\n")) << part;
  }
}

TEST(TomlDepth, AddsUpHeadersTablesAndLists) {
  const auto text = [](int header, int key, int lists) {
    return "[" + repeated("h", header + 1, ".") + "] # here.\n" + repeated("k", key + 1, ".") +
           " = " + std::string(static_cast<size_t>(lists), '[') + "\n{ x.y = 1 }";
  };
  EXPECT_FALSE(too_deep_key(text(100, 100, 54)));
  const auto deep = too_deep_key(text(100, 100, 55));
  ASSERT_TRUE(deep);
  EXPECT_EQ(deep->line, 3U);
  EXPECT_EQ(deep->column, 3U);
  EXPECT_TRUE(too_deep_key(text(101, 100, 54)));
  EXPECT_TRUE(too_deep_key(text(100, 101, 54)));
}

TEST(TomlDepth, CountsNothingInTextForPeople) {
  const std::string dots(5000, '.');
  for (const std::string& text :
       {"# " + dots + "\na = 1\n", "a = \"" + dots + "\"\n", "a = '" + dots + "'\n",
        "a = \"\"\"\n\"" + dots + "\n\"\"\"\n", "a = '''" + dots + "\n'" + dots + "'''\n",
        repeated("a.b = 1.5", 5000, "\n"), "a = [" + repeated("1.5", 5000, ",") + "]",
        "a = \"open" + dots + "\nb = 1"})
    EXPECT_FALSE(too_deep_key(text)) << text.substr(0, 40);
}

TEST(TomlDepth, IsReportedAtTheKeyAlsoInAFlag) {
  const std::string key = repeated("\"#\"", 20000, ".");
  const auto graph = load_text("[graph]\n  " + key + " = 1\n");
  EXPECT_THAT(findings(graph),
              HasSubstr("graph.toml:2:3: error[G001]: a key is more than 256 tables deep"));
  for (const std::string& flag : {key + " = 1", repeated("a", 20000, ".") + "=word"}) {
    Overrides overrides;
    overrides.sets = {flag};
    EXPECT_THAT(findings(load_text(demo_text(), overrides)),
                HasSubstr("--set:1:1: error[G001]: a key is more than 256 tables deep"));
  }
}

TEST(TomlSource, SpansCountBytesAndCaretsCountCharacters) {
  Sources sources;
  Diagnostics diagnostics;
  const auto source = sources.add("x.toml", "title = \"h\u00e9llo\"\n\t\"\u00e4\" = [ 1,\t2 ]\n");
  const auto table = parse_toml(sources, source, diagnostics);
  ASSERT_TRUE(table);
  const auto& second = table->entries[1];
  EXPECT_EQ(second.key, "\u00e4");
  EXPECT_EQ(second.key_span.begin.line, 2u);
  EXPECT_EQ(second.key_span.begin.column, 2u);
  // tab, quote, two bytes, quote, " = [ " and the number
  EXPECT_EQ(second.value.as_array()[0].span.begin.column, 11u);
  EXPECT_EQ(second.value.as_array()[1].span.begin.column, 14u);
  diagnostics.error("G023", second.value.as_array()[1].span, "two");
  EXPECT_EQ(render(diagnostics.all().back(), sources),
            "x.toml:2:14: error[G023]: two\n"
            "    2 | \t\"\u00e4\" = [ 1,\t2 ]\n"
            "      | \t          \t^\n");
}

TEST(TomlSource, EveryDuplicateIsReportedWithItsFirst) {
  Sources sources;
  Diagnostics diagnostics;
  const auto source =
      sources.add("x.toml", "a = 1\na = 2\n[t]\nb = 1\nc = 2\nb = 3\n[u]\nd = 1\n[t]\ne = 1\n");
  const auto table = parse_toml(sources, source, diagnostics);
  ASSERT_TRUE(table);
  EXPECT_EQ(diagnostics.num_errors(), 3u);
  const std::string text = render(diagnostics, sources);
  EXPECT_THAT(text, HasSubstr("x.toml:2:1: error[G002]: key 'a' is written twice"));
  EXPECT_THAT(text, HasSubstr("the first is at x.toml:1:1"));
  EXPECT_THAT(text, HasSubstr("x.toml:6:1: error[G002]: key 'b' is written twice"));
  EXPECT_THAT(text, HasSubstr("the first is at x.toml:4:1"));
  EXPECT_THAT(text, HasSubstr("x.toml:9:2: error[G002]: table 't' is written twice"));
  EXPECT_EQ(table->entries.size(), 3u) << "no trace of the table that was passed over";
}

TEST(TomlSource, BareWordsOfAFlagAreStrings) {
  Sources sources;
  Diagnostics diagnostics;
  const auto read = [&](const std::string& text) {
    auto table = parse_set(sources, sources.add("--set", text), diagnostics);
    CHECK(table.has_value(), text);
    return table->entries[0].value;
  };
  EXPECT_EQ(read("a=word").as_string(), "word");
  EXPECT_EQ(read("a=/some/path.x").as_string(), "/some/path.x");
  EXPECT_EQ(read("a=").as_string(), "");
  EXPECT_EQ(read("a=5").as_integer(), 5);
  EXPECT_EQ(read("a=\"5\"").as_string(), "5");
  EXPECT_EQ(read("a=true").as_bool(), true);
  EXPECT_EQ(read("a=[\"x\"]").as_array().size(), 1u);
  EXPECT_EQ(read("a = { b = 1 }").as_table().entries[0].key, "b");
  EXPECT_FALSE(diagnostics.has_errors());
  for (const auto* text : {"word", "=1", "a b=1", "a..b=1", "a=[1", "a=\"x"})
    EXPECT_FALSE(parse_set(sources, sources.add("--set", text), diagnostics)) << text;
  EXPECT_EQ(diagnostics.num_errors(), 6u);
}

TEST(Resolved, ShowsEveryValueWithItsOrigin) {
  const auto graph = load_text(demo_text());
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const std::string text = render_resolved(graph, true);
  EXPECT_THAT(text, HasSubstr("# graph.toml:3:8"));
  EXPECT_THAT(text, HasSubstr("# default"));
  EXPECT_EQ(render_resolved(graph, false), graph.plan->resolved_toml);
  EXPECT_THAT(graph.plan->resolved_toml, Not(HasSubstr("include = ")));
}

}  // namespace
}  // namespace primerl::testing
