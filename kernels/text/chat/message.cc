#include "kernels/text/chat/message.h"

#include <fmt/format.h>

#include "kernels/text/unicode.h"

namespace primerl {
namespace {

constexpr std::string_view kMessageKeys =
    "role, content, reasoning (reasoning_content, thinking), tool_calls, name, tool_call_id";

Status check_part(const ContentPart& part) {
  if (part.type == "text") return ok();
  return error(Code::kInvalid, "a content part has the type '{}'", part.type)
      .note("chat has text only: use parts {\"type\": \"text\", \"text\": ...}");
}

Status check_chat_text(std::string_view what, const std::string& text, size_t& num_bytes) {
  num_bytes += text.size();
  if (Status valid = check_utf8(text); !valid.ok()) return Error(valid.error()).while_doing(what);
  return ok();
}

Status check_call(const ToolCall& call, size_t& num_bytes) {
  if (call.name.empty()) return error(Code::kInvalid, "a tool call has no name");
  RETURN_IF_ERROR(check_chat_text("the id of a tool call", call.id, num_bytes));
  RETURN_IF_ERROR(check_chat_text("the name of a tool call", call.name, num_bytes));
  num_bytes += call.arguments.size();
  if (call.arguments.empty()) return ok();
  ASSIGN_OR_RETURN(const Json parsed,
                   parse_json(call.arguments, fmt::format("the arguments of '{}'", call.name)));
  (void)parsed;
  return ok();
}

Status check_message(const ChatMessage& message, size_t& num_bytes) {
  if (message.role.empty()) return error(Code::kInvalid, "the role is empty");
  RETURN_IF_ERROR(check_chat_text("role", message.role, num_bytes));
  RETURN_IF_ERROR(check_chat_text("reasoning", message.reasoning, num_bytes));
  RETURN_IF_ERROR(check_chat_text("name", message.name, num_bytes));
  RETURN_IF_ERROR(check_chat_text("tool_call_id", message.tool_call_id, num_bytes));
  for (const auto& part : message.content) {
    RETURN_IF_ERROR(check_part(part));
    RETURN_IF_ERROR(check_chat_text("content", part.text, num_bytes));
  }
  for (const auto& call : message.tool_calls) RETURN_IF_ERROR(check_call(call, num_bytes));
  return ok();
}

Result<std::string> chat_text(const Json& json, std::string_view key) {
  if (json.is_string()) return json.as_string();
  return error(Code::kInvalid, "'{}' is {}, not a string", key, json.kind());
}

Result<std::vector<ContentPart>> parts_from_json(const Json& json) {
  std::vector<ContentPart> parts;
  for (const Json& each : json.as_array()) {
    ContentPart part;
    if (each.is_string()) {
      part.text = each.as_string();
      parts.push_back(std::move(part));
      continue;
    }
    const Json* type = each.find("type");
    if (type == nullptr || !type->is_string())
      return error(Code::kInvalid, "a content part has no 'type'")
          .note("valid: {\"type\": \"text\", \"text\": ...}");
    part.type = type->as_string();
    RETURN_IF_ERROR(check_part(part));
    const Json* text = each.find("text");
    if (text == nullptr) return error(Code::kInvalid, "a content part of type text has no 'text'");
    ASSIGN_OR_RETURN(part.text, chat_text(*text, "text"));
    parts.push_back(std::move(part));
  }
  return parts;
}

Result<ToolCall> call_from_json(const Json& json) {
  ToolCall call;
  const Json* function = json.find("function");
  const Json& source = function == nullptr ? json : *function;
  if (const Json* id = json.find("id"); id != nullptr && !id->is_null()) {
    ASSIGN_OR_RETURN(call.id, chat_text(*id, "id"));
  }
  const Json* name = source.find("name");
  if (name == nullptr)
    return error(Code::kInvalid, "a tool call has no function name")
        .note("valid: {\"function\": {\"name\": ..., \"arguments\": {...}}}");
  ASSIGN_OR_RETURN(call.name, chat_text(*name, "name"));
  if (const Json* arguments = source.find("arguments"); arguments != nullptr) {
    call.has_text_arguments = arguments->is_string();
    call.arguments = arguments->is_string() ? arguments->as_string() : arguments->dump();
  }
  return call;
}

Status read_content(const Json& json, ChatMessage& message) {
  if (json.is_null()) {
    message.has_null_content = true;
  } else if (json.is_array()) {
    message.has_parts = true;
    ASSIGN_OR_RETURN(message.content, parts_from_json(json));
  } else {
    ContentPart part;
    ASSIGN_OR_RETURN(part.text, chat_text(json, "content"));
    message.content.push_back(std::move(part));
  }
  return ok();
}

Status read_key(const std::string& key, const Json& value, ChatMessage& message) {
  if (key == "content") return read_content(value, message);
  if (value.is_null()) return ok();
  if (key == "tool_calls") {
    if (!value.is_array())
      return error(Code::kInvalid, "'tool_calls' is {}, not an array", value.kind());
    for (const Json& each : value.as_array()) {
      ASSIGN_OR_RETURN(ToolCall call, call_from_json(each));
      message.tool_calls.push_back(std::move(call));
    }
    return ok();
  }
  std::string* text = nullptr;
  if (key == "role") text = &message.role;
  if (key == "name") text = &message.name;
  if (key == "tool_call_id") text = &message.tool_call_id;
  if (key == "reasoning" || key == "reasoning_content" || key == "thinking")
    text = &message.reasoning;
  if (text == nullptr)
    return error(Code::kInvalid, "unknown key '{}'", key)
        .note(fmt::format("keys of a message: {}", kMessageKeys));
  ASSIGN_OR_RETURN(*text, chat_text(value, key));
  return ok();
}

Result<ChatMessage> message_from_json(const Json& json) {
  if (!json.is_object())
    return error(Code::kInvalid, "it is {}, not an object", json.kind())
        .note(fmt::format("keys of a message: {}", kMessageKeys));
  ChatMessage message;
  for (const auto& [key, value] : json.as_object()) RETURN_IF_ERROR(read_key(key, value, message));
  return message;
}

Json content_to_json(const ChatMessage& message) {
  if (!message.has_parts) return {text_of(message)};
  Json parts = Json::array();
  for (const auto& part : message.content)
    parts.push_back(Json::object().set("type", part.type).set("text", part.text));
  return parts;
}

}  // namespace

ChatMessage chat_message(std::string_view role, std::string_view text) {
  ChatMessage message;
  message.role = role;
  ContentPart part;
  part.text = text;
  message.content.push_back(std::move(part));
  return message;
}

std::string text_of(const ChatMessage& message) {
  std::string text;
  for (const auto& part : message.content) text += part.text;
  return text;
}

Status check_messages(const std::vector<ChatMessage>& messages) {
  if (messages.size() > kChatMessagesMax)
    return error(Code::kExhausted, "the conversation has {} messages, at most {} are allowed",
                 messages.size(), kChatMessagesMax);
  size_t num_bytes = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (Status valid = check_message(messages[i], num_bytes); !valid.ok())
      return Error(valid.error()).while_doing(fmt::format("message {}", i));
    if (num_bytes > kChatBytesMax)
      return error(Code::kExhausted, "the conversation has more than {} bytes, in message {}",
                   kChatBytesMax, i);
  }
  return ok();
}

Result<std::vector<ChatMessage>> messages_from_json(const Json& json) {
  if (!json.is_array()) return error(Code::kInvalid, "messages are {}, not an array", json.kind());
  std::vector<ChatMessage> messages;
  for (const Json& each : json.as_array()) {
    auto message = message_from_json(each);
    if (!message.ok())
      return std::move(message).error().while_doing(fmt::format("message {}", messages.size()));
    messages.push_back(std::move(message).value());
  }
  RETURN_IF_ERROR(check_messages(messages));
  return messages;
}

Json messages_to_json(const std::vector<ChatMessage>& messages) {
  Json list = Json::array();
  for (const auto& message : messages) {
    Json json = Json::object().set("role", message.role);
    if (message.has_null_content) json.set("content", Json());
    if (!message.content.empty() || message.has_parts)
      json.set("content", content_to_json(message));
    if (!message.reasoning.empty()) json.set("reasoning", message.reasoning);
    if (!message.tool_calls.empty()) {
      Json calls = Json::array();
      for (const auto& call : message.tool_calls) {
        Json function = Json::object().set("name", call.name);
        auto parsed = parse_json(call.arguments, "arguments");
        if (call.has_text_arguments || !parsed.ok())
          function.set("arguments", call.arguments);
        else
          function.set("arguments", std::move(parsed).value());
        Json entry = Json::object();
        if (!call.id.empty()) entry.set("id", call.id);
        calls.push_back(entry.set("type", "function").set("function", std::move(function)));
      }
      json.set("tool_calls", std::move(calls));
    }
    if (!message.name.empty()) json.set("name", message.name);
    if (!message.tool_call_id.empty()) json.set("tool_call_id", message.tool_call_id);
    list.push_back(std::move(json));
  }
  return list;
}

Status check_tools(const Json& tools) {
  if (!tools.is_array())
    return error(Code::kInvalid, "tools are {}, not an array of objects", tools.kind());
  if (tools.as_array().size() > kChatToolsMax)
    return error(Code::kExhausted, "{} tools are given, at most {} are allowed",
                 tools.as_array().size(), kChatToolsMax);
  for (size_t i = 0; i < tools.as_array().size(); ++i)
    if (!tools.as_array()[i].is_object())
      return error(Code::kInvalid, "tool {} is {}, not an object", i, tools.as_array()[i].kind());
  return ok();
}

}  // namespace primerl
