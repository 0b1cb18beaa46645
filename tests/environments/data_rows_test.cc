#include "actors/env/environments/data_rows.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

namespace primerl {
namespace {

using ::testing::HasSubstr;

struct DataRowsStory : ::testing::Test {
  DataRowsStory() { std::filesystem::create_directories(folder); }
  ~DataRowsStory() override { std::filesystem::remove_all(folder); }
  std::string write(const std::string& name, const std::string& text) {
    const std::string file = (folder / name).string();
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
  /// The error of reading the file and each of its rows; "" if there is none.
  std::string fault_of(const std::string& name, const std::string& text,
                       const DataRowLimits& limits = {}) {
    const auto rows = DataRows::read(write(name, text), "auto", limits);
    if (!rows.ok()) return rows.error().text();
    for (size_t i = 0; i < rows->size(); ++i)
      if (const auto row = rows->row(i); !row.ok()) return row.error().text();
    return "";
  }
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      fmt::format("data_rows_{}_{}", ::getpid(),
                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(DataRowsStory, AFaultOfALineNamesFileLineAndColumn) {
  EXPECT_THAT(fault_of("a.jsonl", "{\"a\": 1}\n{\"a\": }\n"), HasSubstr("a.jsonl:2:7: "));
  EXPECT_THAT(fault_of("a.jsonl", "{\"a\": 1}\n\n[1]\n"),
              HasSubstr("a.jsonl:3:1: the row is an array, not an object"));
  EXPECT_THAT(fault_of("a.jsonl", "{\"a\": 1, \"a\": 2}\n"), HasSubstr("a.jsonl:1:"));
  EXPECT_THAT(fault_of("a.jsonl", "{\"a\": \"\xff\"}\n"), HasSubstr("a.jsonl:1:8: "));
  EXPECT_THAT(fault_of("a.jsonl", std::string("{\"a\": 1}\n{\"a\": \"\0\"}\n", 19)),
              HasSubstr("a.jsonl:2:1: byte 7 is 0"));
}

TEST_F(DataRowsStory, AFileThatIsNoDataSetIsRefused) {
  EXPECT_THAT(fault_of("a.txt", "{}\n"), HasSubstr("neither .jsonl nor .csv"));
  EXPECT_THAT(fault_of("a.jsonl", ""), HasSubstr("has no rows"));
  EXPECT_THAT(fault_of("a.jsonl", "\n \r\n\t\n"), HasSubstr("has no rows"));
  EXPECT_THAT(fault_of("a.csv", "a,b\n"), HasSubstr("has no rows"));
  EXPECT_THAT(fault_of("a.jsonl", "PAR1..."), HasSubstr("is a Parquet file"));
  EXPECT_THAT(fault_of("a.parquet", "{}\n"), HasSubstr("is a Parquet file"));
  EXPECT_THAT(fault_of("a.jsonl", "ARROW1"), HasSubstr("is an Arrow file"));
  EXPECT_THAT(fault_of("a.arrow", ""), HasSubstr("is an Arrow file"));
  EXPECT_FALSE(DataRows::read((folder / "none.jsonl").string(), "auto", {}).ok());
}

TEST_F(DataRowsStory, LimitsAreKeptAtTheLimitAndOnePastIt) {
  const DataRowLimits limits{.rows_max = 2, .row_bytes_max = 8};
  EXPECT_EQ(fault_of("a.jsonl", "{\"a\": 1}\n{\"a\": 2}\n", limits), "");
  EXPECT_THAT(fault_of("a.jsonl", "{\"a\": 1}\n{\"a\": 22}\n", limits),
              HasSubstr("a.jsonl:2:1: the row has 9 bytes, row_bytes_max is 8"));
  EXPECT_THAT(fault_of("a.jsonl", "{}\n{}\n{}\n", limits),
              HasSubstr("a.jsonl:3:1: more than 2 rows"));
}

TEST_F(DataRowsStory, ByteOrderMarkCarriageReturnsAndEmptyLinesAreSkipped) {
  const auto rows = DataRows::read(
      write("a.jsonl", "\xEF\xBB\xBF{\"a\": 1}\r\n\r\n  \n{\"a\": \"x\\r\"}"), "auto", {});
  ASSERT_TRUE(rows.ok()) << rows.error().text();
  ASSERT_EQ(rows->size(), 2U);
  EXPECT_EQ(rows->row(0)->dump(), "{\"a\":1}");
  EXPECT_EQ(*rows->row(1)->get_string("a"), "x\r");
  EXPECT_THAT(rows->fault(1, "a", "wrong").text(), HasSubstr("a.jsonl:4:2: wrong"));
}

TEST_F(DataRowsStory, CsvHasQuotesCommasAndLineEndsInValues) {
  const auto rows = DataRows::read(
      write("a.csv", "\xEF\xBB\xBFq,\"an \"\"s\"\"\"\r\n\"1,\n2\",x\r\n\n,\"\"\n"), "auto", {});
  ASSERT_TRUE(rows.ok()) << rows.error().text();
  ASSERT_EQ(rows->size(), 2U);
  EXPECT_EQ(rows->row(0)->dump(), R"({"q":"1,\n2","an \"s\"":"x"})");
  EXPECT_EQ(rows->row(1)->dump(), R"({"q":"","an \"s\"":""})");
}

TEST_F(DataRowsStory, AFaultOfARecordNamesFileLineAndColumn) {
  EXPECT_THAT(fault_of("a.csv", "a,b\n1,2\n3\n"),
              HasSubstr("a.csv:3:1: the record has 1 values, the header has 2"));
  EXPECT_THAT(fault_of("a.csv", "a,b\n\"1\n\n2\",2\n3\n"), HasSubstr("a.csv:5:1: "));
  EXPECT_THAT(fault_of("a.csv", "a,b\n1,\"2\n"), HasSubstr("a.csv:2:1: a quote"));
  EXPECT_THAT(fault_of("a.csv", "a,b\n1,2\"3\"\n"), HasSubstr("a.csv:2:4: a quote inside"));
  EXPECT_THAT(fault_of("a.csv", "a,b\n1,\"2\"3\n"), HasSubstr("a.csv:2:6: text after"));
  EXPECT_THAT(fault_of("a.csv", "a,a\n1,2\n"), HasSubstr("which is there twice"));
  EXPECT_THAT(fault_of("a.csv", "a,\n1,2\n"), HasSubstr("which is empty"));
  EXPECT_THAT(fault_of("a.csv", "a,b\n1,\xC3\x28\n"), HasSubstr("a.csv:2:1: "));
}

}  // namespace
}  // namespace primerl
