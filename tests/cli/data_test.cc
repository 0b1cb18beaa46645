// `primerl-graph data convert`: JSONL of tables that other programs wrote.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/cli/program.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

/// Stands for pyarrow: a file has "PAR1", and its rows follow in batches of at most `batch_size`.
constexpr std::string_view kStandIn =
    "import types\n"
    "class Batch(list):\n"
    "    def to_pylist(self): return self\n"
    "class ParquetFile:\n"
    "    def __init__(self, path): self.text = open(path).read()[4:]\n"
    "    def __enter__(self): return self\n"
    "    def __exit__(self, *ignored): pass\n"
    "    def iter_batches(self, batch_size):\n"
    "        if self.text == 'broken': raise ValueError('the footer is missing')\n"
    "        rows = int(self.text)\n"
    "        for begin in range(0, rows, batch_size):\n"
    "            end = min(rows, begin + batch_size)\n"
    "            yield Batch({'n': n, 'size': end - begin} for n in range(begin, end))\n"
    "parquet = types.SimpleNamespace(ParquetFile=ParquetFile)\n"
    "import sys\n"
    "sys.modules['pyarrow.parquet'] = parquet\n";

struct DataConvert : ::testing::Test {
  std::string write(const std::string& name, std::string_view text) {
    write_text(scratch.path() / name, std::string(text));
    return (scratch.path() / name).string();
  }
  /// A Python without any installed package.
  std::string bare_python() {
    const std::string file = write("python", "#!/bin/sh\nexec /usr/bin/python3 -I -S \"$@\"\n");
    fs::permissions(file, fs::perms::owner_all);
    return "PRIMERL_PYTHON=" + file;
  }
  ProgramEnd convert(std::vector<std::string> words, std::vector<std::string> set = {}) {
    words.insert(words.begin(), {"primerl-graph", "data", "convert"});
    if (set.empty()) set = {bare_python()};
    Program program(words, set);
    return program.wait();
  }
  std::vector<std::string> with_stand_in() {
    write("pyarrow.py", kStandIn);
    const std::string file = write("python", fmt::format("#!/bin/sh\nPYTHONPATH={} exec "
                                                         "/usr/bin/python3 -S \"$@\"\n",
                                                         scratch.path().string()));
    fs::permissions(file, fs::perms::owner_all);
    return {"PRIMERL_PYTHON=" + file};
  }
  std::string text_of(const std::string& name) {
    auto text = read_text_file(scratch.path() / name);
    return text.ok() ? *text : text.error().message();
  }
  std::string fault_of(const std::string& name, std::string_view text) {
    const auto end = convert({write(name, text), "--out", (scratch.path() / "out").string()});
    EXPECT_EQ(end.code, 2) << end.out;
    EXPECT_FALSE(fs::exists(scratch.path() / "out"));
    EXPECT_FALSE(fs::exists(scratch.path() / "out.partial"));
    return end.err;
  }

  ScratchFolder scratch;
};

TEST_F(DataConvert, AFileThatIsNotATableIsRefusedByName) {
  EXPECT_THAT(fault_of("a.txt", "x"), HasSubstr("ends with none of .parquet, .arrow"));
  EXPECT_THAT(fault_of("a.parquet", "x"), HasSubstr("is no Parquet file: it does not begin with"));
  EXPECT_THAT(fault_of("a.csv", ""), HasSubstr("has no header"));
  EXPECT_THAT(fault_of("b.csv", "a,b\n"), HasSubstr("has no rows"));
  EXPECT_THAT(fault_of("c.csv", "a,b\n1,2\n3\n"), HasSubstr("c.csv':3: the row has 1 values"));
  EXPECT_THAT(fault_of("d.csv", "a,a\n1,2\n"), HasSubstr("the header has 'a' twice"));
  EXPECT_THAT(fault_of("e.csv", "a\n\"x\n"), HasSubstr("cannot be converted"));
  EXPECT_THAT(fault_of("f.csv", "a\n\xff\n"), HasSubstr("cannot be converted"));
}

TEST_F(DataConvert, WithoutPyarrowItSaysWhatToInstall) {
  const auto fault = fault_of("a.parquet", "PAR1");
  EXPECT_THAT(fault, HasSubstr("has no package pyarrow, which reads"));
  EXPECT_THAT(fault, HasSubstr("-m pip install pyarrow"));
  EXPECT_THAT(fault, HasSubstr("PRIMERL_PYTHON"));
}

TEST_F(DataConvert, AMissingFileAndAnUnknownActionAreNamed) {
  const auto missing = convert({(scratch.path() / "none.csv").string()});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("there is no file"));
  const auto unknown = run_graph_program({"data", "merge", "a.csv"});
  EXPECT_EQ(unknown.code, 3);
  EXPECT_THAT(unknown.err, HasSubstr("'data merge' is not known"));
}

TEST_F(DataConvert, AFileThatExistsIsNotReplaced) {
  const std::string csv = write("a.csv", "a\n1\n");
  write("a.jsonl", "before");
  const auto end = convert({csv});
  EXPECT_EQ(end.code, 2);
  EXPECT_THAT(end.err, HasSubstr("a.jsonl' exists already"));
  EXPECT_EQ(text_of("a.jsonl"), "before");
}

TEST_F(DataConvert, CsvBecomesOneObjectALine) {
  const auto end = convert({write("a.csv",
                                  "\xEF\xBB\xBFprompt,answer\r\n\"2+3, = \"\"?\n\",5\r\n"
                                  "\r\nü,6\r\n")});
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("2 rows are in"));
  EXPECT_EQ(text_of("a.jsonl"),
            "{\"prompt\": \"2+3, = \\\"?\\n\", \"answer\": \"5\"}\n"
            "{\"prompt\": \"ü\", \"answer\": \"6\"}\n");
}

TEST_F(DataConvert, ParquetIsReadInBatches) {
  const auto set = with_stand_in();
  const auto end = convert({write("a.parquet", "PAR1600")}, set);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("600 rows are in"));
  const std::string text = text_of("a.jsonl");
  EXPECT_THAT(text, HasSubstr("{\"n\": 0, \"size\": 256}\n"));
  EXPECT_THAT(text, HasSubstr("{\"n\": 599, \"size\": 88}\n"));
  const auto broken = convert({write("b.parquet", "PAR1broken")}, set);
  EXPECT_EQ(broken.code, 2);
  EXPECT_THAT(broken.err, HasSubstr("the footer is missing"));
  EXPECT_FALSE(fs::exists(scratch.path() / "b.jsonl"));
}

}  // namespace
}  // namespace primerl
