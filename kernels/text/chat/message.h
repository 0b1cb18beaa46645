/// ChatMessage: one message of a conversation, as data sets and chat templates know it.
///
/// A plain value with fields(), so the messages of actors carry it. Texts are UTF-8. A part that is
/// not text, such as an image, is refused by its type's name (check_messages()).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

inline constexpr size_t kChatMessagesMax = 4096;  // of one conversation
inline constexpr size_t kChatToolsMax = 256;
inline constexpr size_t kChatBytesMax = size_t{16} << 20;  // of all texts of one conversation

/// One part of a message's content.
struct ContentPart {
  std::string type = "text";
  std::string text;

  template <class F>
  static void fields(F& f) {
    f("type", &ContentPart::type)("text", &ContentPart::text);
  }
  friend bool operator==(const ContentPart&, const ContentPart&) = default;
};

/// A function that an assistant calls.
struct ToolCall {
  std::string id = {};  // may be empty
  std::string name;
  std::string arguments;  // JSON text; usually an object
  /// Templates get `arguments` as a text, not as an object: it was written so.
  bool has_text_arguments = false;

  template <class F>
  static void fields(F& f) {
    using C = ToolCall;
    f("id", &C::id)("name", &C::name)("arguments", &C::arguments)("has_text_arguments",
                                                                  &C::has_text_arguments);
  }
  friend bool operator==(const ToolCall&, const ToolCall&) = default;
};

struct ChatMessage {
  std::string role;                       // "system", "user", "assistant", "tool", ...
  std::vector<ContentPart> content = {};  // empty: the message has no content
  std::string reasoning = {};             // what an assistant thought before its answer
  std::vector<ToolCall> tool_calls = {};
  std::string name = {};          // the function that a tool message answers for
  std::string tool_call_id = {};  // the call that a tool message answers
  bool has_null_content =
      false;               // `"content": null`, which some templates distinguish from no content
  bool has_parts = false;  // the content was a list of parts, not one text

  template <class F>
  static void fields(F& f) {
    using M = ChatMessage;
    f("role", &M::role)("content", &M::content)("reasoning", &M::reasoning)(
        "tool_calls", &M::tool_calls)("name", &M::name)("tool_call_id", &M::tool_call_id)(
        "has_null_content", &M::has_null_content)("has_parts", &M::has_parts);
  }
  friend bool operator==(const ChatMessage&, const ChatMessage&) = default;
};

/// A message of one text.
ChatMessage chat_message(std::string_view role, std::string_view text);
/// The texts of all parts, joined.
std::string text_of(const ChatMessage& message);

/// Refuses, by name: parts other than text, an empty role, arguments that are not JSON, texts that
/// are not UTF-8, and more than the bounds above.
Status check_messages(const std::vector<ChatMessage>& messages);

/// Reads the `messages` of a data set or file: an array of {role, content, ...}.
/// `reasoning_content` and `thinking` are other names of `reasoning`; `arguments` of a tool call
/// are an object or JSON text. Errors name message and key.
Result<std::vector<ChatMessage>> messages_from_json(const Json& json);
Json messages_to_json(const std::vector<ChatMessage>& messages);
/// Refuses tools that are not an array of objects.
Status check_tools(const Json& tools);

}  // namespace primerl
