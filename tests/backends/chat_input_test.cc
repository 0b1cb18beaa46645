#include "runtime/backends/chat_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string file_of(const std::string& text) {
  const std::string path = new_scratch_folder() / "messages.json";
  std::ofstream(path) << text;
  return path;
}

TEST(ChatInput, NamesFileMessageAndKeyOfBadInput) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"[", "messages.json"},
           {"7", "it is a number, not a list of messages"},
           {R"({"tools": []})", "it has no 'messages'"},
           {R"({"messages": [], "model": "x"})", "unknown key 'model'"},
           {R"({"messages": [], "tools": {}})", "tools are an object"},
           {R"({"messages": [], "chat_template_kwargs": []})", "is an array, not an object"},
           {R"([{"role": "user", "content": [{"type": "image"}]}])", "the type 'image'"}}) {
    const auto input = read_chat_input(file_of(text), "");
    ASSERT_FALSE(input.ok()) << text;
    EXPECT_THAT(input.error().text(), HasSubstr(words));
  }
  EXPECT_FALSE(read_chat_input("/nowhere/x.json", "").ok());
  EXPECT_THAT(read_chat_input("hi", "[1]").error().text(), HasSubstr("--chat-kwargs is an array"));
  EXPECT_THAT(read_chat_input("hi", "{").error().text(), HasSubstr("--chat-kwargs"));
}

TEST(ChatInput, IsAFileOrTheTextOfAUser) {
  const auto text = read_chat_input("hi", R"({"x": 1})");
  ASSERT_TRUE(text.ok());
  ASSERT_THAT(text->messages, SizeIs(1));
  EXPECT_EQ(text->messages[0], chat_message("user", "hi"));
  const auto file = read_chat_input(
      file_of(R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"name": "f"}],
                  "chat_template_kwargs": {"x": 0, "y": 2}})"),
      R"({"x": 1})");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->tools.has_value());
  EXPECT_EQ(file->kwargs.dump(), R"({"x":1,"y":2})");
}

}  // namespace
}  // namespace primerl
