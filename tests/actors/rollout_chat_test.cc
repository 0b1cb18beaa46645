// Rollouts whose tasks are conversations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/actors/rollout_story.h"

namespace primerl {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// The byte tokenizer encodes <eos> as the byte '\n', its end token.
constexpr std::string_view kTemplate =
    "{% if tools %}tools:{{ tools | tojson }}<eos>{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

std::shared_ptr<const ChatSource> chat_source(std::string_view text = kTemplate) {
  auto source = std::make_shared<ChatSource>();
  source->file = "model/chat_template.jinja";
  if (!text.empty()) source->templates.push_back({"default", std::string(text)});
  return source;
}

struct RolloutChat : testing::RolloutStory {
  explicit RolloutChat(Tenant tenant = chat_tenant(), std::string_view text = kTemplate)
      : RolloutStory({}, std::move(tenant)) {
    tokenizer.set_chat_source(chat_source(text));
  }
  static Tenant chat_tenant() {
    Tenant tenant = testing::a_tenant();
    tenant.seq_len = 256;
    return tenant;
  }
  void chat(std::vector<ChatMessage> messages, const std::string& tools = "") {
    Task task;
    task.ordinal = 3;
    task.messages = std::move(messages);
    task.tools = tools;
    ASSERT_TRUE(rollout.give("task", task).ok());
  }
  void say(const Action& action, std::vector<ChatMessage> messages) {
    Observation observation;
    observation.trajectory = action.trajectory;
    observation.attempt = action.attempt;
    observation.turn = action.turn;
    observation.messages = std::move(messages);
    ASSERT_TRUE(rollout.give("observation", observation).ok());
  }
  static std::string text_of_ids(const std::vector<int32_t>& ids) {
    return {ids.begin(), ids.end()};
  }
};

TEST_F(RolloutChat, ThePromptIsTheConversationInTheTemplate) {
  live(0);
  chat({chat_message("system", "s"), chat_message("user", "a<eos>b")});
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(2));
  // Data cannot end a turn: <eos> of the user stays five bytes.
  EXPECT_EQ(text_of_ids(made[0].prompt_tokens), "system:s\nuser:a<eos>b\nassistant:");
}

/// The `messages` of a rollout's line, as text; empty without.
std::string messages_in_line(const std::vector<ChatMessage>& asked,
                             const std::vector<ChatMessage>& said) {
  Group group;
  group.messages = asked;
  group.members.resize(1);
  group.members[0].said = said;
  const auto line = parse_json(rollout_line("main", "", group, 0, {}, false), "line");
  const Json* messages = line->find("messages");
  return messages == nullptr ? "" : messages->dump();
}

TEST(RolloutLine, HasTheMessagesThatPromptAndCompletionDoNotTellApart) {
  const ChatMessage system = chat_message("system", "s"), user = chat_message("user", "u");
  const ChatMessage answer = chat_message("assistant", "a");
  EXPECT_EQ(messages_in_line({}, {}), "");
  EXPECT_EQ(messages_in_line({user}, {answer}), "");
  EXPECT_EQ(messages_in_line({system, user}, {answer}),
            R"([{"role":"system","content":"s"},{"role":"user","content":"u"},)"
            R"({"role":"assistant","content":"a"}])");
  EXPECT_EQ(messages_in_line({user}, {answer, user, answer}),
            R"([{"role":"user","content":"u"},{"role":"assistant","content":"a"},)"
            R"({"role":"user","content":"u"},{"role":"assistant","content":"a"}])");
}

TEST_F(RolloutChat, ToolsReachTheTemplate) {
  live(0);
  chat({chat_message("user", "a")}, R"([{"name":"f"}])");
  EXPECT_EQ(text_of_ids(requests()[0].prompt_tokens),
            "tools:[{\"name\": \"f\"}]\nuser:a\nassistant:");
}

TEST_F(RolloutChat, ActionsCarryTheParsedAnswers) {
  live(0);
  chat({chat_message("user", "a")});
  complete(requests()[0], "yes", FinishReason::kLength);
  const auto sent = actions();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_THAT(sent[0].texts, ElementsAre("yes"));
  EXPECT_THAT(sent[0].messages, ElementsAre(chat_message("assistant", "yes")));
}

TEST_F(RolloutChat, LaterTurnsFollowTheSampledTokens) {
  live(0);
  chat({chat_message("user", "a")});
  for (const auto& request : requests()) complete(request, "yes\n");
  for (const auto& action : actions())
    say(action, {chat_message("tool", "t"), chat_message("user", "u")});
  const auto next = requests();
  ASSERT_THAT(next, SizeIs(2));
  // The sampled end token is the template's end marker, so it is not added again.
  EXPECT_EQ(text_of_ids(next[0].prompt_tokens), "yes\ntool:t\nuser:u\nassistant:");
  for (const auto& request : next) complete(request, "no");
  for (const auto& action : actions()) {
    EXPECT_THAT(action.messages, SizeIs(1));  // the environment has the first one
    observe(action, 1);
  }
  const auto group = groups().front();
  EXPECT_EQ(text_of_ids(group.members[0].tokens),
            "user:a\nassistant:yes\ntool:t\nuser:u\nassistant:no");
  std::string mask;
  for (const auto sampled : group.members[0].sampled) mask += sampled != 0 ? 'x' : '.';
  EXPECT_EQ(mask,
            "................."
            "xxxx"
            "........................"
            "xx");
}

TEST_F(RolloutChat, ACutAnswerGetsItsEndMarker) {
  live(0);
  chat({chat_message("user", "a")});
  for (const auto& request : requests()) complete(request, "ye", FinishReason::kLength);
  const auto sent = actions();
  observe(sent[0], 0, false, "u");  // a plain text is a user's message
  const auto next = requests();
  ASSERT_THAT(next, SizeIs(1));
  EXPECT_EQ(text_of_ids(next[0].prompt_tokens), "ye\nuser:u\nassistant:");
}

TEST_F(RolloutChat, APartThatIsNotTextFailsTheRollout) {
  live(0);
  ChatMessage image = chat_message("user", "a");
  image.content[0].type = "image";
  chat({image});
  EXPECT_THAT(requests(), SizeIs(0));
  EXPECT_THAT(end_names(), Each("failed"));
  EXPECT_THAT(*ends()[0].get_string("reason"), HasSubstr("'image'"));
}

struct RolloutWithoutTemplate : RolloutChat {
  RolloutWithoutTemplate() : RolloutChat(chat_tenant(), "") {}
};

TEST_F(RolloutWithoutTemplate, AConversationFailsAndAPlainPromptRuns) {
  live(0);
  task(0);
  EXPECT_THAT(requests(), SizeIs(2));
  chat({chat_message("user", "a")});
  EXPECT_THAT(requests(), SizeIs(0));
  EXPECT_THAT(*ends()[0].get_string("reason"), HasSubstr("has no chat template"));
}

struct RolloutOfUsers : RolloutChat {
  static Tenant users() {
    Tenant tenant = chat_tenant();
    tenant.chat.prompts = "user";
    return tenant;
  }
  RolloutOfUsers() : RolloutChat(users()) {}
};

TEST_F(RolloutOfUsers, APlainPromptIsAMessageOfAUser) {
  live(0);
  task(0, "ab");
  EXPECT_EQ(text_of_ids(requests()[0].prompt_tokens), "user:ab\nassistant:");
}

struct RolloutWithAnotherEnd : RolloutChat {
  RolloutWithAnotherEnd()
      : RolloutChat(chat_tenant(),
                    "{% for m in messages %}{{ m.content }}{{ m.content | length }}{% endfor %}") {}
};

TEST_F(RolloutWithAnotherEnd, ATemplateWithoutATextBehindAnswersFailsAtTheSecondTurn) {
  live(0);
  chat({chat_message("user", "a")});
  complete(requests()[0], "yes");
  observe(actions()[0], 0, false, "u");
  EXPECT_THAT(*ends()[0].get_string("reason"), HasSubstr("depends on the message"));
}

}  // namespace
}  // namespace primerl
