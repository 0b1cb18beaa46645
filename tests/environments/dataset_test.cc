#include "actors/env/environments/dataset.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "graph/base/file_digest.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

struct DatasetStory : ::testing::Test {
  DatasetStory() { std::filesystem::create_directories(folder); }
  ~DatasetStory() override { std::filesystem::remove_all(folder); }
  std::string write(const std::string& name, const std::string& text) {
    const std::string file = (folder / name).string();
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
  /// Rows {"prompt": "<name>0", "answer": 0}, ...
  std::string rows(const std::string& name, int count) {
    std::string text;
    for (int i = 0; i < count; ++i)
      text += fmt::format("{{\"prompt\": \"{}{}\", \"answer\": {}}}\n", name, i, i);
    return write(name + ".jsonl", text);
  }
  static std::string fault_of(const DatasetOptions& options) {
    const auto made = make_dataset(options);
    return made.ok() ? "" : made.error().text();
  }
  std::string fault_of_text(const std::string& text, DatasetOptions options = {}) {
    options.file = write("x.jsonl", text);
    return fault_of(options);
  }
  static std::vector<std::string> prompts(const DatasetOptions& options, uint64_t count) {
    const auto made = make_dataset(options);
    EXPECT_TRUE(made.ok()) << made.error().text();
    std::vector<std::string> all;
    for (uint64_t n = 0; n < count; ++n) all.push_back((*made)->task(n, RandomStream(n))->prompt);
    return all;
  }
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      fmt::format("dataset_{}_{}", ::getpid(),
                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(DatasetStory, AFaultOfARowNamesFileLineAndField) {
  EXPECT_THAT(fault_of_text("{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"prompt\": \"a\"}\n"),
              HasSubstr("x.jsonl:2:1: the row has no 'answer'\n"));
  EXPECT_THAT(fault_of_text("{\"question\": \"a\"}\n"), HasSubstr("its fields: question"));
  EXPECT_THAT(fault_of_text("{\"answer\": \"b\", \"prompt\": [1]}\n"),
              HasSubstr("x.jsonl:1:17: 'prompt' is an array, not a string or a number"));
  EXPECT_THAT(fault_of_text("{\"prompt\": \"\", \"answer\": \"b\"}\n"),
              HasSubstr("x.jsonl:1:2: 'prompt' is empty"));
  EXPECT_THAT(fault_of_text("{\"prompt\": \"a\", \"answer\": null}\n"),
              HasSubstr("'answer' is null"));
  DatasetOptions chat;
  chat.messages = "messages";
  EXPECT_THAT(fault_of_text("{\"messages\": \"a\", \"answer\": \"b\"}\n", chat),
              HasSubstr("x.jsonl:1:2: 'messages': "));
  EXPECT_THAT(fault_of_text("{\"messages\": [], \"answer\": \"b\"}\n", chat),
              HasSubstr("no message to answer"));
}

TEST_F(DatasetStory, OptionsThatDoNotFitTogetherAreRefused) {
  const std::string a = rows("a", 3), b = rows("b", 3);
  EXPECT_THAT(fault_of({}), HasSubstr("give either 'file' or 'files'"));
  EXPECT_THAT(fault_of({.file = a, .files = {b}}), HasSubstr("give either"));
  EXPECT_THAT(fault_of({.files = {a, b}, .weights = {1}}), HasSubstr("'weights' has 1 numbers"));
  EXPECT_THAT(fault_of({.files = {a, b}, .weights = {0, 1}}), HasSubstr("'weights' has 0"));
  EXPECT_EQ(fault_of({.files = {a, b}, .weights = {kDataWeightMax, 1}}), "");
  EXPECT_THAT(fault_of({.files = {a, b}, .weights = {kDataWeightMax + 1, 1}}),
              HasSubstr("'weights' has 1001"));
  EXPECT_EQ(fault_of({.file = a, .holdout = 2}), "");
  EXPECT_THAT(fault_of({.file = a, .holdout = 3}), HasSubstr("leaves none of the 3 rows"));
  EXPECT_THAT(fault_of({.file = a, .split = "holdout"}), HasSubstr("'holdout' is 0"));
  EXPECT_EQ(fault_of({.files = std::vector<std::string>(kDataFilesMax, a)}), "");
  EXPECT_THAT(fault_of({.files = std::vector<std::string>(kDataFilesMax + 1, a)}),
              HasSubstr("at most 64"));
}

TEST_F(DatasetStory, AFileWithAnotherContentIsRefusedByName) {
  const std::string a = rows("a", 3);
  const std::string digest = file_digest(a)->sha256;
  EXPECT_EQ(fault_of({.file = a, .file_sha256 = digest}), "");
  rows("a", 4);
  EXPECT_THAT(fault_of({.file = a, .file_sha256 = digest}),
              HasSubstr("a.jsonl' has another content"));
  EXPECT_THAT(fault_of({.files = {a}, .files_sha256 = {digest}}), HasSubstr("another content"));
}

TEST_F(DatasetStory, AFileOfAnotherSizeIsRefusedByName) {
  const std::string a = rows("a", 3);
  const int64_t size = file_digest(a)->bytes;
  EXPECT_EQ(fault_of({.file = a, .file_bytes = size}), "");
  EXPECT_EQ(fault_of({.files = {a}, .files_bytes = {size}}), "");
  EXPECT_THAT(fault_of({.file = a, .file_bytes = size + 1}),
              HasSubstr("a.jsonl' has another content"));
  EXPECT_THAT(fault_of({.files = {a, a}, .files_bytes = {size}}),
              HasSubstr("'files_bytes' has 1 sizes for 2 files"));
}

TEST_F(DatasetStory, EveryEpochHasEachRowOnceInAnOrderOfItsOwn) {
  const auto order = prompts({.file = rows("a", 50)}, 100);
  const std::vector<std::string> first(order.begin(), order.begin() + 50);
  const std::vector<std::string> second(order.begin() + 50, order.end());
  EXPECT_THAT(std::set<std::string>(first.begin(), first.end()), SizeIs(50));
  EXPECT_THAT(std::set<std::string>(second.begin(), second.end()), SizeIs(50));
  EXPECT_NE(first, second);
  EXPECT_EQ(prompts({.file = rows("a", 50)}, 100), order);
  EXPECT_NE(prompts({.file = rows("a", 50), .seed = 1}, 100), order);
  EXPECT_THAT(prompts({.file = rows("a", 3), .shuffle = false}, 4),
              ElementsAre("a0", "a1", "a2", "a0"));
}

TEST_F(DatasetStory, WeightsAreTheTasksOfEachFileInACycle) {
  const auto order = prompts({.files = {rows("a", 30), rows("b", 5)}, .weights = {3, 1}}, 40);
  for (size_t cycle = 0; cycle < 10; ++cycle) {
    int of_b = 0;
    for (size_t i = 0; i < 4; ++i) of_b += order[4 * cycle + i][0] == 'b' ? 1 : 0;
    EXPECT_EQ(of_b, 1) << cycle;
  }
  EXPECT_THAT(std::set<std::string>(order.begin(), order.end()), SizeIs(35));
}

TEST_F(DatasetStory, HoldoutRowsAreInTheOtherSplitAlone) {
  const auto trained = prompts({.file = rows("a", 20), .holdout = 5}, 60);
  const auto holdout = prompts({.file = rows("a", 20), .holdout = 5, .split = "holdout"}, 60);
  const std::set<std::string> one(trained.begin(), trained.end());
  const std::set<std::string> other(holdout.begin(), holdout.end());
  EXPECT_THAT(one, SizeIs(15));
  EXPECT_THAT(other, SizeIs(5));
  for (const auto& prompt : other) EXPECT_FALSE(one.contains(prompt));
}

TEST_F(DatasetStory, ATaskHasItsConversationItsAnswerAndItsRow) {
  const std::string file =
      write("chat.jsonl", R"({"messages": [{"role": "user", "content": "2+3?"}], "answer": 5})"
                          "\n");
  const auto made = make_dataset({.file = file, .messages = "messages", .system = "Be brief."});
  ASSERT_TRUE(made.ok()) << made.error().text();
  const auto task = *(*made)->task(0, RandomStream(0));
  ASSERT_THAT(task.messages, SizeIs(2));
  EXPECT_EQ(task.messages[0], chat_message("system", "Be brief."));
  EXPECT_EQ(task.messages[1], chat_message("user", "2+3?"));
  EXPECT_EQ(task.prompt, "Be brief.\n2+3?");
  EXPECT_EQ(task.answer, "5");
  EXPECT_THAT(task.row, HasSubstr("\"answer\":5"));
}

TEST_F(DatasetStory, AConversationThatEndsWithAnAnswerGivesIt) {
  const std::string file = write(
      "chat.jsonl",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
      "\n");
  const auto task =
      *(*make_dataset({.file = file, .messages = "messages"}))->task(0, RandomStream(0));
  EXPECT_THAT(task.messages, ElementsAre(chat_message("user", "a")));
  EXPECT_EQ(task.answer, "b");
}

TEST_F(DatasetStory, TheAnswerOfTheRowEarnsTheReward) {
  const auto made = make_dataset({.file = rows("a", 1)});
  const auto task = *(*made)->task(0, RandomStream(0));
  EXPECT_EQ((*made)->step(task, {" 0\n"})->reward, 1);
  EXPECT_EQ((*made)->step(task, {"1"})->reward, 0);
  EXPECT_TRUE((*made)->step(task, {"1"})->done);
  EXPECT_FALSE((*made)->step(task, {}).ok());
}

TEST_F(DatasetStory, AHundredThousandRowsAreReadOnce) {
  const auto made = make_dataset({.file = rows("a", 100'000)});
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE((*made)->task(99'999, RandomStream(0))->prompt.empty());
}

struct DatasetRows : DatasetStory {
  static std::vector<std::string> evaluated(const DatasetOptions& options, uint64_t count) {
    const auto made = make_dataset(options);
    EXPECT_TRUE(made.ok()) << made.error().text();
    std::vector<std::string> all;
    for (uint64_t row = 0; row < count; ++row)
      all.push_back((*made)->evaluation_task(row, RandomStream(row))->prompt);
    return all;
  }
};

TEST_F(DatasetRows, AnEvaluationGivesTheRowsInTheHoldoutAndTrainingTheOthers) {
  DatasetOptions options;
  options.files = {rows("a", 10), rows("b", 6)};
  options.holdout = 3;
  const auto counted = dataset_rows(options);
  ASSERT_TRUE(counted.ok());
  EXPECT_EQ(counted->num_training, 7 + 3);
  EXPECT_EQ(counted->num_evaluation, 6);
  const auto held_out = evaluated(options, 6);
  EXPECT_EQ(std::set<std::string>(held_out.begin(), held_out.end()).size(), 6U);
  EXPECT_EQ(std::ranges::count_if(held_out, [](auto& each) { return each[0] == 'a'; }), 3);
  const auto trained = prompts(options, 60);
  for (const std::string& prompt : held_out)
    EXPECT_THAT(trained, ::testing::Not(::testing::Contains(prompt)));
  const auto made = make_dataset(options);
  const auto past = (*made)->evaluation_task(6, RandomStream(0));
  ASSERT_FALSE(past.ok());
  EXPECT_THAT(past.error().text(), HasSubstr("has 6 rows to evaluate, row 6 was asked for"));
}

TEST_F(DatasetRows, WithoutAHoldoutAnEvaluationGivesAllRowsInTheirOrder) {
  DatasetOptions options;
  options.file = rows("a", 4);
  EXPECT_EQ(dataset_rows(options)->num_evaluation, 4);
  EXPECT_THAT(evaluated(options, 4), ElementsAre("a0", "a1", "a2", "a3"));
}

}  // namespace
}  // namespace primerl
