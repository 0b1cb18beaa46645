#include "actors/data/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "actors/data/example_tokens.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using namespace std::string_literals;

std::string write(const std::string& text) {
  const std::string path = new_scratch_folder() / "data_test.jsonl";
  std::ofstream(path) << text;
  return path;
}

struct DataStory : ::testing::Test {
  static DataOptions options(const std::string& text) {
    DataOptions made;
    if (!text.empty()) made.file = write(text);
    return made;
  }
  /// If `text` is empty, the environment's demonstrations are used.
  explicit DataStory(const std::string& text = "{\"prompt\": \"ab\", \"completion\": \"c\"}\n",
                     const std::string& environment = "")
      : data(options(text)) {
    Tenant tenant = testing::a_tenant();
    tenant.environment.name = environment;
    data.set_tenants({tenant});
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

std::shared_ptr<const ChatSource> a_template() {
  auto source = std::make_shared<ChatSource>();
  source->file = "model/chat_template.jinja";
  source->templates.push_back(
      {"default",
       "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}"
       "{{ m.content }}<eos>{% endgeneration %}{% else %}{{ m.content }}<eos>{% endif %}"
       "{% endfor %}"});
  return source;
}

struct WithMessages : DataStory {
  WithMessages()
      : DataStory(
            "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, "
            "{\"role\": \"assistant\", \"content\": \"r<eos>\"}]}\n") {}
};

TEST_F(WithMessages, TrainWhatTheTemplateMarks) {
  tokenizer.set_chat_source(a_template());
  ASSERT_TRUE(data.run_work().ok());
  const auto member = data.sent<TrajectoryGroup>("group").front().members[0];
  EXPECT_EQ(std::string(member.tokens.begin(), member.tokens.end()), "u:q\na:r<eos>\n");
  EXPECT_THAT(member.sampled, ElementsAre(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1));
  EXPECT_EQ(member.num_turns, 1);
}

struct WithWeights : DataStory {
  WithWeights()
      : DataStory(
            "{\"messages\": [{\"role\": \"assistant\", \"content\": \"q\", \"weight\": 0}, "
            "{\"role\": \"user\", \"content\": \"r\"}, "
            "{\"role\": \"assistant\", \"content\": \"s\", \"weight\": 0.5}]}\n") {}
};

TEST_F(WithWeights, AnAnswerOfWeightZeroIsReadAndDoesNotTrain) {
  tokenizer.set_chat_source(a_template());
  ASSERT_TRUE(data.run_work().ok());
  const auto member = data.sent<TrajectoryGroup>("group").front().members[0];
  EXPECT_EQ(std::string(member.tokens.begin(), member.tokens.end()), "a:q\nu:r\na:s\n");
  EXPECT_THAT(member.sampled, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1));
  ASSERT_THAT(member.weights, SizeIs(12));
  EXPECT_EQ(member.weights[10], 0.5F);
  EXPECT_EQ(member.weights[11], 0.5F);
}

struct WeightsOfTurns : DataStory {
  WeightsOfTurns()
      : DataStory(
            "{\"prompt\": \"a\", \"turns\": [{\"completion\": \"b\", \"observation\": \"c\", "
            "\"weight\": 0}, {\"completion\": \"d\"}], \"weight\": 3}\n") {}
};

TEST_F(WeightsOfTurns, AreThoseOfTheRowTimesTheirOwn) {
  ASSERT_TRUE(data.run_work().ok());
  const auto member = data.sent<TrajectoryGroup>("group").front().members[0];
  EXPECT_EQ(std::string(member.tokens.begin(), member.tokens.end()), "ab\ncd\n");
  EXPECT_THAT(member.sampled, ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_EQ(member.weights.at(4), 3);
}

struct HeldOutExamples : ::testing::Test {
  HeldOutExamples() {
    DataOptions options;
    options.file = write("{\"prompt\": \"ab\", \"completion\": \"c\"}\n");
    std::string rows;
    for (const std::string prompt : {"d", "e", "f", "g"})
      rows += "{\"prompt\": \"" + prompt + "\", \"completion\": \"h\"}\n";
    options.eval_file = write(rows);
    data = std::make_unique<NodeRunner<Data>>(options);
    Tenant tenant = testing::a_tenant();
    tenant.eval.interval = 1;
    tenant.eval.rows = 3;
    data->set_tenants({tenant});
    data->use("tokenizer", tokenizer);
  }
  testing::ByteTokenizer tokenizer;
  std::unique_ptr<NodeRunner<Data>> data;
};

TEST_F(HeldOutExamples, ComeFirstInTheOrderOfTheFile) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(data->run_work().ok());
  const auto groups = data->sent<TrajectoryGroup>("group");
  ASSERT_THAT(groups, SizeIs(3));
  EXPECT_EQ(groups[0].ordinal, kEvaluationOrdinals);
  EXPECT_EQ(groups[1].ordinal, kEvaluationOrdinals + 1);
  EXPECT_EQ(groups[2].ordinal, 0U) << "then the examples that train";
  ASSERT_THAT(groups[0].members, SizeIs(2));
  ASSERT_THAT(groups[1].members, SizeIs(1)) << "three rows are wanted";
  EXPECT_EQ(groups[0].members[0].tokens.front(), 'd');
  EXPECT_EQ(groups[1].members[0].tokens.front(), 'f');
  EXPECT_THAT(groups[2].members[0].weights, SizeIs(0));
}

TEST_F(WithMessages, FailWithoutATemplate) {
  ASSERT_TRUE(data.run_work().ok());
  const auto member = data.sent<TrajectoryGroup>("group").front().members[0];
  EXPECT_TRUE(member.is_failed);
  EXPECT_THAT(member.fault, HasSubstr("chat template"));
}

struct WithSpecials : DataStory {
  WithSpecials() : DataStory("{\"prompt\": \"<eos>\", \"completion\": \"c<eos>\"}\n") {}
};

TEST_F(WithSpecials, SpecialTokensWrittenOutInExamplesStayText) {
  ASSERT_TRUE(data.run_work().ok());
  EXPECT_THAT(data.sent<TrajectoryGroup>("group").front().members[0].tokens,
              ElementsAre('<', 'e', 'o', 's', '>', 'c', '<', 'e', 'o', 's', '>', '\n'));
}

struct SeveralTurns : DataStory {
  SeveralTurns()
      : DataStory(R"({"prompt": "ab", "turns": [{"completion": "c", "observation": "de"}, )"
                  R"({"completion": "f"}]})"s) {}
};

TEST_F(SeveralTurns, MasksWhatThePolicySaysAndNotWhatItReads) {
  ASSERT_TRUE(data.run_work().ok());
  const auto member = data.sent<TrajectoryGroup>("group").front().members[0];
  EXPECT_FALSE(member.is_failed) << member.fault;
  EXPECT_THAT(member.tokens, ElementsAre('a', 'b', 'c', '\n', 'd', 'e', 'f', '\n'));
  EXPECT_THAT(member.sampled, ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_EQ(member.num_turns, 2);
}

struct BadObservation : DataStory {
  BadObservation()
      : DataStory(R"({"prompt": "a", "turns": [{"completion": "b", "observation": "!"}, )"
                  R"({"completion": "c"}]})"s) {}
};

TEST_F(BadObservation, AnExampleThatFailsHalfwayKeepsNoTokens) {
  ASSERT_TRUE(data.run_work().ok());
  const auto member = data.sent<TrajectoryGroup>("group").front().members[0];
  EXPECT_TRUE(member.is_failed);
  EXPECT_THAT(member.tokens, SizeIs(0));
  EXPECT_THAT(member.sampled, SizeIs(0));
  EXPECT_EQ(member.num_turns, 0);
}

struct Demonstrated : DataStory {
  Demonstrated() : DataStory("", "arithmetic_tool") {}
};

TEST_F(Demonstrated, WithoutAFileTheEnvironmentShowsEveryTurn) {
  ASSERT_TRUE(data.run_work().ok());
  const auto group = data.sent<TrajectoryGroup>("group").front();
  ASSERT_THAT(group.members, SizeIs(2));
  for (const auto& member : group.members) {
    ASSERT_FALSE(member.is_failed) << member.fault;
    std::string text, mask;
    for (size_t i = 0; i < member.tokens.size(); ++i) {
      text += static_cast<char>(member.tokens[i]);
      mask += member.sampled[i] != 0 ? text.back() : '.';
    }
    std::smatch parts;
    ASSERT_TRUE(std::regex_match(
        text, parts, std::regex("(a:([0-9]+[+-][0-9]+)>)(c:([^=]+)=\n)((-?[0-9]+)>)([^>]+\n)")))
        << text;
    EXPECT_EQ(parts[2], parts[4]) << "the call is the task's own expression";
    EXPECT_EQ(parts[6].str() + "\n", parts[7]) << "the answer is what was read";
    EXPECT_EQ(mask, std::string(parts[1].length(), '.') + parts[3].str() +
                        std::string(parts[5].length(), '.') + parts[7].str());
    EXPECT_EQ(member.num_turns, 2);
  }
}

TEST_F(DataStory, AResumedRunSkipsConsumedOrdinals) {
  ResumePoint point;
  point.manifest = *parse_json(R"({"consumed": [[0, 4]], "resumes": 0})", "manifest");
  data.set_resume_point(TenantSlot(0), point);
  ASSERT_TRUE(data.run_work().ok());
  EXPECT_EQ(data.sent<TrajectoryGroup>("group").front().ordinal, 5U);
}

/// Two epochs of five examples, in groups of two: five groups.
struct TwoEpochs : DataStory {
  TwoEpochs() : DataStory(five_examples()) {
    Tenant tenant = testing::a_tenant(2, 1);
    tenant.groups_max = 5;
    data.set_tenants({tenant});
  }
  static std::string five_examples() {
    std::string text;
    for (const char letter : "abcde"s)
      text += fmt::format("{{\"prompt\": \"p\", \"completion\": \"{}\"}}\n", letter);
    return text;
  }
  /// The answers of all groups, in their order.
  std::string answers() {
    EXPECT_TRUE(data.run_work_until_done(50).ok());
    std::string letters;
    for (const auto& group : data.take<TrajectoryGroup>("group"))
      for (const Trajectory& member : group.members)
        letters += static_cast<char>(member.tokens.at(1));
    return letters;
  }
};

TEST_F(TwoEpochs, HaveEachExampleOnceInOrdersOfTheirOwn) {
  const std::string letters = answers();
  ASSERT_EQ(letters.size(), 10U);
  std::string first = letters.substr(0, 5), second = letters.substr(5);
  EXPECT_NE(first, second) << "this seed shuffles them differently";
  std::ranges::sort(first);
  std::ranges::sort(second);
  EXPECT_EQ(first, "abcde");
  EXPECT_EQ(second, "abcde");
  EXPECT_EQ(answers(), "") << "nothing follows";
}

TEST_F(TwoEpochs, AResumedRunGivesOnlyWhatIsLeft) {
  ResumePoint point;
  point.manifest = *parse_json(R"({"consumed": [[0, 1], [3, 3]], "resumes": 0})", "manifest");
  data.set_resume_point(TenantSlot(0), point);
  ASSERT_TRUE(data.run_work_until_done(50).ok());
  std::vector<uint64_t> ordinals;
  for (const auto& group : data.sent<TrajectoryGroup>("group")) ordinals.push_back(group.ordinal);
  EXPECT_THAT(ordinals, ElementsAre(2, 4));
}

TEST_F(DataStory, WaitsForRoom) {
  data.set_room("group", 0);
  EXPECT_FALSE(*data.run_work());
  EXPECT_THAT(data.sent<TrajectoryGroup>("group"), SizeIs(0));
}

struct HugeExamples : DataStory {
  HugeExamples()
      : DataStory("{\"prompt\": \"" + std::string(250, 'a') + "\", \"completion\": \"b\"}\n") {
    Tenant tenant = testing::a_tenant(1000);
    tenant.seq_len = 1 << 10;
    data.set_tenants({tenant});
  }
};

TEST_F(HugeExamples, AGroupTooLargeForAMessageFails) {
  ASSERT_TRUE(data.run_work().ok());
  const auto group = data.sent<TrajectoryGroup>("group").front();
  ASSERT_THAT(group.members, SizeIs(1000));
  EXPECT_TRUE(group.members[1].is_failed);
  EXPECT_THAT(group.members[1].tokens, SizeIs(0));
  EXPECT_THAT(group.members[1].fault, HasSubstr("does not fit into a message"));
  EXPECT_EQ(data.counter("groups_too_large"), 1);
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

TEST(TokensBound, IsNeverBelowTheTokensOfAByteTokenizer) {
  const testing::ByteTokenizer tokenizer;
  for (const std::string text : {"", "abc", " a b ", "\u00e4\u00f6", "a\tb"}) {
    const auto ids = tokenizer.encode_text(text);
    ASSERT_TRUE(ids.ok());
    EXPECT_GE(tokens_bound(text), static_cast<int64_t>(ids->size())) << text;
  }
  EXPECT_LE(tokens_bound(std::string(1000, 'a')), 1010)
      << "a bound that is not far from plain text";
}

}  // namespace
}  // namespace primerl
