#include "runtime/backends/chat_input.h"

#include <ctime>

#include "graph/base/files.h"

namespace primerl {
namespace {

constexpr size_t kChatFileBytesMax = size_t{64} << 20;

chat::Day today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return {parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday};
}

Result<ChatInput> chat_from_json(const Json& json) {
  ChatInput input;
  if (json.is_array()) {
    ASSIGN_OR_RETURN(input.messages, messages_from_json(json));
    return input;
  }
  if (!json.is_object())
    return error(Code::kInvalid, "it is {}, not a list of messages", json.kind());
  for (const auto& [key, value] : json.as_object()) {
    if (key == "messages") {
      ASSIGN_OR_RETURN(input.messages, messages_from_json(value));
    } else if (key == "tools") {
      if (value.is_null()) continue;
      RETURN_IF_ERROR(check_tools(value));
      input.tools = value;
    } else if (key == "chat_template_kwargs") {
      if (!value.is_object())
        return error(Code::kInvalid, "'{}' is {}, not an object", key, value.kind());
      input.kwargs = value;
    } else {
      return error(Code::kInvalid, "unknown key '{}'", key)
          .note("keys: messages, tools, chat_template_kwargs");
    }
  }
  if (json.find("messages") == nullptr) return error(Code::kInvalid, "it has no 'messages'");
  return input;
}

}  // namespace

Result<ChatInput> read_chat_input(const std::string& given, const std::string& kwargs) {
  ChatInput input;
  if (given.ends_with(".json")) {
    ASSIGN_OR_RETURN(const std::string text, read_text_file(given, kChatFileBytesMax));
    ASSIGN_OR_RETURN(const Json json, parse_json(text, given));
    auto read = chat_from_json(json);
    if (!read.ok()) return std::move(read).error().while_doing(given);
    input = std::move(read).value();
  } else {
    input.messages.push_back(chat_message("user", given));
    RETURN_IF_ERROR(check_messages(input.messages));
  }
  if (kwargs.empty()) return input;
  ASSIGN_OR_RETURN(const Json given_kwargs, parse_json(kwargs, "--chat-kwargs"));
  if (!given_kwargs.is_object())
    return error(Code::kInvalid, "--chat-kwargs is {}, not a JSON object", given_kwargs.kind());
  for (const auto& [key, value] : given_kwargs.as_object()) input.kwargs.set(key, value);
  return input;
}

Result<chat::ChatFormat> chat_format_of_folder(const Tokenizer& tokenizer, const Json& kwargs) {
  chat::ChatOptions options;
  options.kwargs = kwargs;
  options.day = today();
  return chat::ChatFormat::make(tokenizer, options);
}

}  // namespace primerl
