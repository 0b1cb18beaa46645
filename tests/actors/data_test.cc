#include "actors/data/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string write(const std::string& text) {
  const std::string path = ::testing::TempDir() + "data_test.jsonl";
  std::ofstream(path) << text;
  return path;
}

TEST(ReadExamples, NamesTheLineThatIsWrong) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"{\"prompt\": \"a\", \"completion\": \"b\"}\nnonsense\n", "jsonl:2"},
           {"{\"prompt\": \"a\"}\n", "completion"},
           {"{\"prompt\": \"\", \"completion\": \"b\"}\n", "must not be empty"},
           {"\n\n", "no examples"}}) {
    const auto examples = read_examples(write(text), 10);
    ASSERT_FALSE(examples.ok()) << text;
    EXPECT_THAT(examples.error().text(), HasSubstr(words));
  }
  EXPECT_FALSE(read_examples("/nowhere/x.jsonl", 10).ok());
}

TEST(ReadExamples, TakesALineOfAMebibyteAndNotOneByteMore) {
  const std::string frame = "{\"prompt\": \"\", \"completion\": \"b\"}";
  const auto line_of = [&](size_t size) {
    std::string line = frame;
    return line.insert(12, std::string(size - frame.size(), 'a'));
  };
  EXPECT_TRUE(read_examples(write(line_of(size_t{1} << 20)), 10).ok());
  EXPECT_FALSE(read_examples(write(line_of((size_t{1} << 20) + 1)), 10).ok());
}

TEST(ReadExamples, TheLastLineNeedsNoEnd) {
  const auto examples =
      read_examples(write("\n{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"c\", "
                          "\"completion\": \"d\"}"),
                    10);
  ASSERT_TRUE(examples.ok());
  ASSERT_THAT(*examples, SizeIs(2));
  EXPECT_EQ((*examples)[1].completion, "d");
}

TEST(ReadExamples, TakesAsManyAsItMay) {
  const std::string line = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
  EXPECT_TRUE(read_examples(write(line + line), 2).ok());
  EXPECT_FALSE(read_examples(write(line + line), 1).ok());
}

TEST(ShuffledIndex, IsAPermutationOfEveryPass) {
  for (const uint64_t count : {1, 2, 3, 10, 100}) {
    std::set<uint64_t> first, second;
    std::vector<uint64_t> first_order, second_order;
    for (uint64_t i = 0; i < count; ++i) {
      first_order.push_back(shuffled_index(i, count, 5));
      second_order.push_back(shuffled_index(count + i, count, 5));
      first.insert(first_order.back());
      second.insert(second_order.back());
    }
    EXPECT_EQ(first.size(), count);
    EXPECT_EQ(second.size(), count);
    EXPECT_EQ(*first.rbegin(), count - 1);
    EXPECT_TRUE(count < 100 || first_order != second_order);
  }
}

struct DataStory : ::testing::Test {
  static DataOptions options(const std::string& text) {
    DataOptions made;
    made.file = write(text);
    return made;
  }
  explicit DataStory(const std::string& text = "{\"prompt\": \"ab\", \"completion\": \"c\"}\n")
      : data(options(text)) {
    data.set_tenants({testing::a_tenant()});
    data.use("tokenizer", tokenizer);
  }
  testing::ByteTokenizer tokenizer;
  NodeRunner<Data> data;
};

TEST_F(DataStory, MasksTheCompletionAndEndsIt) {
  ASSERT_TRUE(data.run_work().ok());
  const auto group = data.sent<TrajectoryGroup>("group").front();
  EXPECT_TRUE(group.version.is_none());
  ASSERT_THAT(group.members, SizeIs(2));
  EXPECT_THAT(group.members[0].tokens, ElementsAre('a', 'b', 'c', '\n'));
  EXPECT_THAT(group.members[0].sampled, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(group.members[0].logprobs, SizeIs(0));
}

TEST_F(DataStory, AResumedRunLeavesOutWhatWasConsumed) {
  ResumePoint point;
  point.manifest = *parse_json(R"({"consumed": [[0, 4]], "resumes": 0})", "manifest");
  data.set_resume_point(TenantSlot(0), point);
  ASSERT_TRUE(data.run_work().ok());
  EXPECT_EQ(data.sent<TrajectoryGroup>("group").front().ordinal, 5U);
}

TEST_F(DataStory, WaitsForRoom) {
  data.set_room("group", 0);
  EXPECT_FALSE(*data.run_work());
  EXPECT_THAT(data.sent<TrajectoryGroup>("group"), SizeIs(0));
}

struct BadExample : DataStory {
  BadExample() : DataStory("{\"prompt\": \"a!\", \"completion\": \"c\"}\n") {}
};

TEST_F(BadExample, AnExampleThatCannotBeTokenizedFails) {
  ASSERT_TRUE(data.run_work().ok());
  const auto member = data.sent<TrajectoryGroup>("group").front().members[0];
  EXPECT_TRUE(member.is_failed);
  EXPECT_THAT(member.fault, HasSubstr("'!' has no token"));
  EXPECT_EQ(data.counter("examples_failed"), 2);
}

struct LongExample : DataStory {
  LongExample()
      : DataStory("{\"prompt\": \"a\", \"completion\": \"" + std::string(62, 'b') + "\"}\n" +
                  "{\"prompt\": \"aa\", \"completion\": \"" + std::string(62, 'b') + "\"}\n") {}
};

TEST_F(LongExample, AnExampleLongerThanSeqLenFails) {
  ASSERT_TRUE(data.run_work().ok());
  const auto group = data.sent<TrajectoryGroup>("group").front();
  EXPECT_EQ(group.members[0].is_failed + group.members[1].is_failed, 1) << "64 fit, 65 do not";
}

}  // namespace
}  // namespace primerl
