#include "actors/data/examples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string write(const std::string& text) {
  const std::string path = new_scratch_folder() / "examples_test.jsonl";
  std::ofstream(path) << text;
  return path;
}

TEST(ReadExamples, NamesTheLineThatIsWrong) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"{\"prompt\": \"a\", \"completion\": \"b\"}\nnonsense\n", "jsonl:2"},
           {"{\"prompt\": \"a\"}\n", "completion"},
           {"{\"prompt\": \"\", \"completion\": \"b\"}\n", "'prompt' must not be empty"},
           {R"({"prompt": "a", "turns": []})", "'turns' is not a list"},
           {R"({"prompt": "a", "turns": "b"})", "'turns' is not a list"},
           {R"({"prompt": "a", "completion": "b", "turns": [{"completion": "b"}]})", "both"},
           {R"({"prompt": "a", "turns": [{"completion": "b"}, {"completion": "c"}]})", "turn 1"},
           {R"({"prompt": "a", "turns": [{"completion": "b", "observation": "c"}]})",
            "the last turn"},
           {R"({"prompt": "a", "turns": [7]})", "turn 1"},
           {R"({"messages": [{"role": "user", "content": "a"}], "prompt": "a"})",
            "both 'messages'"},
           {R"({"messages": [{"role": "user", "content": "a"}]})", "nothing trains"},
           {R"({"messages": [{"role": "assistant", "content": 3}]})", "message 0"},
           {R"({"messages": [{"role": "assistant", "content": "a"}], "tools": 3})", "tools are"},
           {R"({"prompt": "a", "completion": "b", "weight": -1})", "'weight' is -1"},
           {R"({"prompt": "a", "completion": "b", "weight": 10001})", "'weight' is 10001"},
           {R"({"prompt": "a", "completion": "b", "weight": 1e-7})", "'weight' is 1e-07"},
           {R"({"prompt": "a", "completion": "b", "weight": "x"})", "weight"},
           {R"({"prompt": "a", "completion": "b", "weight": 0})", "all weights are 0"},
           {R"({"messages": [{"role": "user", "content": "a", "weight": 2}, )"
            R"({"role": "assistant", "content": "b"}]})",
            "message 0 has a weight, and its role is 'user'"},
           {R"({"messages": [{"role": "assistant", "content": "b", "weight": 0}]})",
            "all weights are 0"},
           {R"({"prompt": "a", "turns": [{"completion": "b", "weight": 101}], "weight": 100})",
            "times that of an answer is 10100"},
           {"\n\n", "no examples"}}) {
    const auto examples = read_examples(write(text), 10);
    ASSERT_FALSE(examples.ok()) << text;
    EXPECT_THAT(examples.error().text(), HasSubstr(words));
  }
  EXPECT_FALSE(read_examples("/nowhere/x.jsonl", 10).ok());
}

TEST(ReadExamples, AcceptsALineOfOneMebibyteAndNotOneByteMore) {
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
  EXPECT_EQ((*examples)[1].turns.front().completion, "d");
}

TEST(ReadExamples, AcceptsUpToExamplesMax) {
  const std::string line = "{\"prompt\": \"a\", \"completion\": \"b\"}\n";
  EXPECT_TRUE(read_examples(write(line + line), 2).ok());
  EXPECT_FALSE(read_examples(write(line + line), 1).ok());
}

TEST(ReadExamples, ReadsTheWeightsOfAnswersTurnsAndRows) {
  const auto examples = read_examples(
      write(R"({"prompt": "a", "completion": "b", "weight": 0.5})"
            "\n"
            R"({"prompt": "a", "turns": [{"completion": "b", "observation": "c", "weight": 0}, )"
            R"({"completion": "d"}], "weight": 3})"
            "\n"
            R"({"messages": [{"role": "assistant", "content": "a", "weight": 0}, )"
            R"({"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}], )"
            R"("weight": 2})"
            "\n"
            R"({"messages": [{"role": "assistant", "content": "a", "weight": 1}]})"),
      10);
  ASSERT_TRUE(examples.ok()) << examples.error().text();
  EXPECT_EQ((*examples)[0].turns[0].weight, 0.5F);
  EXPECT_EQ((*examples)[1].turns[0].weight, 0);
  EXPECT_EQ((*examples)[1].turns[1].weight, 3);
  EXPECT_THAT((*examples)[2].weights, ::testing::ElementsAre(0, 1, 2));
  EXPECT_THAT((*examples)[3].weights, SizeIs(0)) << "none says that all are 1";
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

/// Says `said` for every task; the trajectory ends with turn `last`.
class Show final : public Environment {
 public:
  Show(std::vector<std::string> said, size_t last) : said_(std::move(said)), last_(last) {}
  Result<EnvironmentTask> task(uint64_t, RandomStream) override {
    return EnvironmentTask{"p", "a"};
  }
  Result<EnvironmentStep> step(const EnvironmentTask&,
                               const std::vector<std::string>& actions) override {
    if (actions.back() == "fault") return error(Code::kUnavailable, "the judge is ill");
    if (actions.size() == last_) return EnvironmentStep{"", 1, true};
    return EnvironmentStep{"after " + actions.back(), 0, false};
  }
  std::vector<std::string> demonstration(const EnvironmentTask&) const override { return said_; }

 private:
  const std::vector<std::string> said_;
  const size_t last_;
};

Result<DataExample> shown(std::vector<std::string> said, size_t last, int64_t turns_max = 8) {
  Show show(std::move(said), last);
  return demonstrate(show, {"p", "a"}, turns_max);
}

TEST(Demonstrate, RefusesADemonstrationThatTheEnvironmentDoesNotEnd) {
  EXPECT_THAT(shown({}, 1).error().text(), HasSubstr("demonstrates nothing"));
  EXPECT_THAT(shown({"x", "y"}, 1).error().text(), HasSubstr("of 2 turns ends with turn 1"));
  EXPECT_THAT(shown({"x", "y"}, 3).error().text(), HasSubstr("of 2 turns continues after turn 2"));
  EXPECT_THAT(shown({"x", "fault"}, 2).error().text(), HasSubstr("the judge is ill"));
}

TEST(Demonstrate, ReadsWhatAPolicyWouldRead) {
  const auto example = shown({"x", "y", "z"}, 3);
  ASSERT_TRUE(example.ok()) << example.error().text();
  EXPECT_EQ(example->prompt, "p");
  ASSERT_THAT(example->turns, SizeIs(3));
  EXPECT_EQ(example->turns[0].observation, "after x");
  EXPECT_EQ(example->turns[1].completion, "y");
  EXPECT_EQ(example->turns[1].observation, "after y");
  EXPECT_EQ(example->turns[2].observation, "");
}

TEST(Demonstrate, TakesTurnsMaxTurnsAndNotOneMore) {
  EXPECT_TRUE(shown({"x", "y"}, 2, 2).ok());
  EXPECT_THAT(shown({"x", "y"}, 2, 1).error().text(), HasSubstr("2 turns, turns_max is 1"));
}

}  // namespace
}  // namespace primerl
