#include "kernels/text/chat/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using ::testing::HasSubstr;

Result<std::vector<ChatMessage>> read(std::string_view text) {
  return messages_from_json(parse_json(text, "messages").value());
}

std::string fault_of(std::string_view text) {
  const auto read_messages = read(text);
  return read_messages.ok() ? "" : read_messages.error().text();
}

TEST(ChatMessages, RefusesAPartThatIsNotText) {
  const auto fault = fault_of(
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image","url":"x"}]}])");
  EXPECT_THAT(fault, HasSubstr("message 0: a content part has the type 'image'"));
  ChatMessage message = chat_message("user", "a");
  message.content[0].type = "audio";
  EXPECT_THAT(check_messages({message}).error().text(), HasSubstr("'audio'"));
}

TEST(ChatMessages, NamesMessageAndKeyOfBadInput) {
  EXPECT_THAT(fault_of(R"({"role":"user"})"), HasSubstr("messages are an object, not an array"));
  EXPECT_THAT(fault_of(R"([{"role":"user"},{"role":"user","weight":0}])"),
              HasSubstr("message 1: unknown key 'weight'\n   keys of a message: role, content"));
  EXPECT_THAT(fault_of(R"([{"content":"a"}])"), HasSubstr("message 0: the role is empty"));
  EXPECT_THAT(fault_of(R"([{"role":"user","content":3}])"),
              HasSubstr("'content' is a number, not a string"));
  EXPECT_THAT(fault_of(R"([7])"), HasSubstr("message 0: it is a number, not an object"));
  EXPECT_THAT(fault_of(R"([{"role":"a","tool_calls":{}}])"), HasSubstr("not an array"));
  EXPECT_THAT(fault_of(R"([{"role":"a","tool_calls":[{"function":{}}]}])"),
              HasSubstr("a tool call has no function name"));
  EXPECT_THAT(fault_of(R"([{"role":"a","content":[{"text":"a"}]}])"), HasSubstr("no 'type'"));
}

TEST(ChatMessages, RefusesArgumentsThatAreNotJsonAndTextsThatAreNotUtf8) {
  EXPECT_THAT(fault_of(R"([{"role":"a","tool_calls":[{"function":
                          {"name":"f","arguments":"{x"}}]}])"),
              HasSubstr("the arguments of 'f'"));
  EXPECT_THAT(check_messages({chat_message("user", "a\xff")}).error().text(),
              HasSubstr("message 0: content"));
}

TEST(ChatMessages, AllowsTheMostMessagesAndBytesAndNotOneMore) {
  std::vector<ChatMessage> messages(kChatMessagesMax, chat_message("user", "a"));
  EXPECT_TRUE(check_messages(messages).ok());
  messages.push_back(chat_message("user", "a"));
  EXPECT_THAT(check_messages(messages).error().text(), HasSubstr("4097 messages"));
  const std::string text(kChatBytesMax - 4, 'a');
  EXPECT_TRUE(check_messages({chat_message("user", text)}).ok());
  EXPECT_FALSE(check_messages({chat_message("user", text + "b")}).ok());
  EXPECT_TRUE(check_tools(Json(Json::Array(kChatToolsMax, Json::object()))).ok());
  EXPECT_FALSE(check_tools(Json(Json::Array(kChatToolsMax + 1, Json::object()))).ok());
  EXPECT_FALSE(check_tools(Json(Json::Array(1, Json("f")))).ok());
}

TEST(ChatMessages, ReadsAndWritesEveryKey) {
  const auto messages = read(R"([
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
    {"role":"assistant","content":null,"reasoning_content":"why","tool_calls":[
      {"id":"1","type":"function","function":{"name":"f","arguments":{"x":1}}},
      {"function":{"name":"g","arguments":"{\"y\":2}"}}]},
    {"role":"tool","name":"f","tool_call_id":"1","content":"3"}])");
  ASSERT_TRUE(messages.ok());
  ASSERT_EQ(messages->size(), 3);
  EXPECT_EQ(text_of(messages->at(0)), "ab");
  EXPECT_TRUE(messages->at(1).has_null_content);
  EXPECT_EQ(messages->at(1).reasoning, "why");
  EXPECT_EQ(messages->at(1).tool_calls[0].arguments, R"({"x":1})");
  EXPECT_TRUE(messages->at(1).tool_calls[1].has_text_arguments);
  EXPECT_EQ(messages->at(2).tool_call_id, "1");
  const auto again = messages_from_json(messages_to_json(*messages));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *messages);
}

}  // namespace
}  // namespace primerl
