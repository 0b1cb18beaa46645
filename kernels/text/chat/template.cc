#include "kernels/text/chat/template.h"

#include <algorithm>
#include <charconv>

namespace primerl::chat {
namespace {

Value value_from_json(const Json& json, Origin origin) {
  if (json.is_null()) return Value::none(origin);
  if (json.is_bool()) return Value::truth(json.as_bool(), origin);
  if (json.is_integer()) return Value::integer(json.as_int(), origin);
  if (json.is_number()) return Value::real(json.as_double(), origin);
  if (json.is_string()) return Value::text(json.as_string(), origin);
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.as_array().size());
    for (const Json& each : json.as_array()) items.push_back(value_from_json(each, origin));
    return Value::list(std::move(items), origin);
  }
  const Shared<Dict> dict(new Dict);
  for (const auto& [key, value] : json.as_object())
    dict->entries.emplace_back(Value::text(key, origin), value_from_json(value, origin));
  return Value::dict(dict.get(), origin);
}

/// The keys of messages, made once for a rendering.
struct Keys {
  static Value key(std::string_view text) { return Value::text(view_of(text, kFromTemplate)); }
  Value role = key("role");
  Value content = key("content");
  Value type = key("type");
  Value text = key("text");
  Value reasoning_content = key("reasoning_content");
  Value reasoning = key("reasoning");
  Value thinking = key("thinking");
  Value tool_calls = key("tool_calls");
  Value id = key("id");
  Value function = key("function");
  Value name = key("name");
  Value arguments = key("arguments");
  Value tool_call_id = key("tool_call_id");
};

Value call_value(const ToolCall& call, const Keys& keys, Origin origin) {
  const Shared<Dict> function(new Dict);
  function->entries.emplace_back(keys.name, Value::text(view_of(call.name, origin)));
  Value arguments = Value::text(view_of(call.arguments, origin));
  if (!call.has_text_arguments && !call.arguments.empty())
    if (const auto parsed = parse_json(call.arguments, "arguments"); parsed.ok())
      arguments = value_from_json(*parsed, origin);
  function->entries.emplace_back(keys.arguments, std::move(arguments));
  const Shared<Dict> dict(new Dict);
  if (!call.id.empty())
    dict->entries.emplace_back(keys.id, Value::text(view_of(call.id, origin | kHeaderBit)));
  dict->entries.emplace_back(keys.type, keys.function);
  dict->entries.emplace_back(keys.function, Value::dict(function.get(), origin));
  return Value::dict(dict.get(), origin);
}

Value content_value(const ChatMessage& message, const Keys& keys, Origin origin) {
  if (!message.has_parts && message.content.size() == 1)
    return Value::text(view_of(message.content[0].text, origin));
  std::vector<Value> parts;
  for (const auto& part : message.content) {
    const Shared<Dict> dict(new Dict);
    dict->entries.emplace_back(keys.type, keys.text);
    dict->entries.emplace_back(keys.text, Value::text(view_of(part.text, origin)));
    parts.push_back(Value::dict(dict.get(), origin));
  }
  return Value::list(std::move(parts), origin);
}

Value message_value(const ChatMessage& message, const Keys& keys, size_t index) {
  const Origin origin = from_message(index);
  const Origin header = origin | kHeaderBit;
  const Shared<Dict> dict(new Dict);
  dict->entries.reserve(8);
  dict->entries.emplace_back(keys.role, Value::text(view_of(message.role, header)));
  if (message.has_null_content)
    dict->entries.emplace_back(keys.content, Value::none(origin));
  else if (!message.content.empty() || message.has_parts)
    dict->entries.emplace_back(keys.content, content_value(message, keys, origin));
  if (!message.reasoning.empty()) {
    // Templates know it by one of three names.
    const Value reasoning = Value::text(view_of(message.reasoning, origin));
    dict->entries.emplace_back(keys.reasoning_content, reasoning);
    dict->entries.emplace_back(keys.reasoning, reasoning);
    dict->entries.emplace_back(keys.thinking, reasoning);
  }
  if (!message.tool_calls.empty()) {
    std::vector<Value> calls;
    for (const auto& call : message.tool_calls) calls.push_back(call_value(call, keys, origin));
    dict->entries.emplace_back(keys.tool_calls, Value::list(std::move(calls), origin));
  }
  if (!message.name.empty())
    dict->entries.emplace_back(keys.name, Value::text(view_of(message.name, header)));
  if (!message.tool_call_id.empty())
    dict->entries.emplace_back(keys.tool_call_id,
                               Value::text(view_of(message.tool_call_id, header)));
  return Value::dict(dict.get(), origin);
}

}  // namespace

Result<Day> parse_day(std::string_view text) {
  Day day;
  const auto number = [&](size_t begin, size_t size, int& value) {
    const char* const first = text.data() + begin;
    return std::from_chars(first, first + size, value).ptr == first + size;
  };
  static constexpr int kDaysOfMonth[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool is_day = text.size() == 10 && text[4] == '-' && text[7] == '-' &&
                      number(0, 4, day.year) && number(5, 2, day.month) && number(8, 2, day.day) &&
                      day.year >= 1 && day.month >= 1 && day.month <= 12 && day.day >= 1 &&
                      day.day <= kDaysOfMonth[day.month - 1];
  if (!is_day)
    return error(Code::kInvalid, "'{}' is no date", text).note("a date is like 2026-11-26");
  return day;
}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string name,
                                         Constants constants) {
  auto syntax = parse_template(source);
  if (!syntax.ok()) {
    Error fault = std::move(syntax).error();
    Error named(fault.code(), fmt::format("{}:{}", name, fault.message()));
    for (const auto& note : fault.notes()) (void)std::move(named).note(note);
    return named;
  }
  ChatTemplate made;
  made.syntax_ = std::make_shared<const Syntax>(std::move(syntax).value());
  made.name_ = std::move(name);
  made.constants_ = std::move(constants);
  return made;
}

bool ChatTemplate::reads(std::string_view variable) const {
  return std::any_of(syntax_->globals.begin(), syntax_->globals.end(),
                     [&](const auto& each) { return each.first == variable; });
}

Result<RenderedChat> ChatTemplate::render(const RenderInput& input,
                                          const RenderLimits& limits) const {
  const Keys keys;
  std::vector<Value> messages;
  messages.reserve(input.messages.size());
  for (size_t i = 0; i < input.messages.size(); ++i)
    messages.push_back(message_value(input.messages[i], keys, i));
  Evaluator::Variables variables;
  for (const auto& [name, text] : constants_)
    variables.emplace_back(name, Value::text(view_of(text, kFromTemplate)));
  variables.emplace_back("messages", Value::list(std::move(messages)));
  variables.emplace_back(
      "tools", input.tools == nullptr ? Value::none() : value_from_json(*input.tools, kFromCaller));
  variables.emplace_back("documents", Value::none());
  variables.emplace_back("add_generation_prompt", Value::truth(input.add_generation_prompt));
  if (input.kwargs != nullptr && input.kwargs->is_object())
    for (const auto& [name, value] : input.kwargs->as_object())
      variables.emplace_back(name, value_from_json(value, kFromCaller));
  Evaluator evaluator(*syntax_, limits, input.day);
  auto output = evaluator.run(variables);
  if (!output.ok())
    return Error(output.error().code(), fmt::format("{}:{}", name_, output.error().message()));
  auto [text, runs] = std::move(output).value().parts();
  RenderedChat rendered{std::move(text), std::move(runs), {}};
  for (const auto& message : input.messages)
    rendered.is_answer.push_back(message.role == "assistant" || message.role == "model");
  return rendered;
}

}  // namespace primerl::chat
