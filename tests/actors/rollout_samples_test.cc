// [tenant.x.chat] history = "template": the whole conversation is rendered in each turn, and a new
// sample begins where it differs from the tokens so far.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/rollout_story.h"

namespace primerl {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// An answer with spaces around it is rendered without them. The byte tokenizer encodes <eos> as
// the byte '\n', its end token.
constexpr std::string_view kTrims =
    "{% for m in messages %}{{ m.role }}:{{ m.content | trim }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";
constexpr std::string_view kFirst = "user:a\nassistant:";

struct RolloutSamples : testing::RolloutStory {
  explicit RolloutSamples(Tenant tenant = template_tenant(64), std::string_view text = kTrims)
      : RolloutStory(logging(), std::move(tenant)) {
    auto source = std::make_shared<ChatSource>();
    source->file = "model/chat_template.jinja";
    source->templates.push_back({"default", std::string(text)});
    tokenizer.set_chat_source(source);
  }
  static RolloutOptions logging() {
    RolloutOptions options;
    options.log_tokens = true;
    return options;
  }
  static Tenant template_tenant(int64_t seq_len) {
    Tenant tenant = testing::a_tenant();
    tenant.seq_len = seq_len;
    tenant.chat.history = "template";
    return tenant;
  }
  void chat() {
    Task task;
    task.messages = {chat_message("user", "a")};
    ASSERT_TRUE(rollout.give("task", task).ok());
  }
  /// Both rollouts answer `said` and then read "u"; the requests of the next turn.
  std::vector<GenerateRequest> turn(const std::vector<GenerateRequest>& made,
                                    const std::string& said) {
    for (const auto& request : made) complete(request, said);
    for (const auto& action : actions()) observe(action, 0, false, "u");
    return requests();
  }
  void finish(const std::vector<GenerateRequest>& made, const std::string& said) {
    for (const auto& request : made) complete(request, said);
    double reward = 0;
    for (const auto& action : actions()) observe(action, reward++);
  }
  static std::string text_of_ids(const std::vector<int32_t>& ids) {
    return {ids.begin(), ids.end()};
  }
};

TEST_F(RolloutSamples, APrefixThatHoldsContinuesTheSample) {
  live(0);
  chat();
  const auto next = turn(requests(), "yes\n");
  ASSERT_THAT(next, SizeIs(2));
  EXPECT_EQ(next[0].known.num_tokens, static_cast<int32_t>(kFirst.size()));
  EXPECT_EQ(text_of_ids(next[0].prompt_tokens), "yes\nuser:u\nassistant:");
  finish(next, "no");
  const auto group = groups().front();
  EXPECT_THAT(group.members[0].sample_begins, IsEmpty());
  EXPECT_EQ(rollout.counter("samples_begun"), 0);
}

TEST_F(RolloutSamples, ABrokenPrefixBeginsASampleAndKeepsTheSampledTokens) {
  live(0);
  chat();
  const auto next = turn(requests(), " yes\n");
  ASSERT_THAT(next, SizeIs(2));
  EXPECT_EQ(next[0].known.num_tokens, 0) << "the engine's session has another prompt";
  const std::string second = std::string(kFirst) + "yes\nuser:u\nassistant:";
  EXPECT_EQ(text_of_ids(next[0].prompt_tokens), second);
  finish(next, "no");
  const auto group = groups().front();
  const Trajectory& member = group.members[0];
  const std::string first = std::string(kFirst) + " yes\n";
  EXPECT_EQ(text_of_ids(member.tokens), first + second + "no");
  EXPECT_THAT(member.sample_begins, ElementsAre(static_cast<int32_t>(first.size())));
  EXPECT_EQ(member.num_samples(), 2U);
  EXPECT_EQ(member.sample(1), std::pair(first.size(), member.tokens.size()));
  // The answer of the first turn trains in the first sample alone.
  std::string mask;
  for (const auto sampled : member.sampled) mask += sampled != 0 ? 'x' : '.';
  EXPECT_EQ(mask,
            std::string(kFirst.size(), '.') + "xxxxx" + std::string(second.size(), '.') + "xx");
  ASSERT_THAT(member.spans, SizeIs(2));
  EXPECT_EQ(member.spans[1].begin, static_cast<int32_t>(first.size() + second.size()));
  EXPECT_EQ(rollout.counter("samples_begun"), 2) << "one of each rollout";
  end(group, RolloutEnd::kTrained, 1);
  EXPECT_EQ(*ends()[0].get_int("samples"), 2);
  EXPECT_EQ(ends()[0].find("sample_begins")->as_array().at(0).as_int(),
            static_cast<int64_t>(first.size()));
}

TEST_F(RolloutSamples, ATurnOfALaterSampleIsSentAgainWithItsSampleAlone) {
  live(0);
  chat();
  const auto next = turn(requests(), " yes\n");
  ASSERT_THAT(next, SizeIs(2));
  end_without_tokens(next[0], FinishReason::kEngineLost);
  const auto again = requests();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].prompt_tokens, next[0].prompt_tokens);
  complete(again[0], "ok\n");
  observe(actions()[0], 0, false, "v");
  const auto third = requests();
  ASSERT_THAT(third, SizeIs(1));
  EXPECT_EQ(third[0].known.num_tokens, again[0].num_prompt_tokens());
  EXPECT_EQ(text_of_ids(third[0].prompt_tokens), "ok\nuser:v\nassistant:");
}

struct ShortSamples : RolloutSamples {
  static constexpr int64_t kSecond = 38;  // tokens of the second prompt
  ShortSamples() : RolloutSamples(template_tenant(kSecond + 1)) {}
};

TEST_F(ShortSamples, SeqLenLimitsEachSample) {
  live(0);
  chat();
  const auto next = turn(requests(), " yes\n");
  ASSERT_THAT(next, SizeIs(2)) << "61 tokens in two samples";
  EXPECT_EQ(next[0].num_prompt_tokens(), kSecond);
  EXPECT_EQ(next[0].sampling.max_tokens, 1);
}

struct TooShortSamples : RolloutSamples {
  TooShortSamples() : RolloutSamples(template_tenant(ShortSamples::kSecond)) {}
};

TEST_F(TooShortSamples, ASampleWithoutATokenToSampleIsNotBegun) {
  live(0);
  chat();
  EXPECT_THAT(turn(requests(), " yes\n"), IsEmpty());
  const auto group = groups().front();
  EXPECT_TRUE(group.members[0].is_truncated);
  EXPECT_THAT(group.members[0].sample_begins, IsEmpty());
  EXPECT_EQ(rollout.counter("observations_too_long"), 2);
}

TEST(SamplesOfAMember, FitTheirBoundAndOneTokenMoreDoesNot) {
  EXPECT_TRUE(may_begin_sample(static_cast<size_t>(kMemberTokensMax - 64), 64));
  EXPECT_FALSE(may_begin_sample(static_cast<size_t>(kMemberTokensMax - 63), 64));
}

struct SamplesWithoutAnExactText : RolloutSamples {
  SamplesWithoutAnExactText()
      : RolloutSamples(template_tenant(64),
                       "{% for m in messages %}{{ m.content }}{{ m.content | length }}<eos>"
                       "{% endfor %}") {}
};

TEST_F(SamplesWithoutAnExactText, ATemplateThatExactHistoryRefusesRuns) {
  live(0);
  chat();
  const auto next = turn(requests(), "yes\n");
  ASSERT_THAT(next, SizeIs(2));
  // The template has no end marker, so the policy's <eos> is in the content.
  EXPECT_EQ(text_of_ids(next[0].prompt_tokens), "yes\n4\nu1\n");
  EXPECT_EQ(next[0].known.num_tokens, 3);
}

}  // namespace
}  // namespace primerl
