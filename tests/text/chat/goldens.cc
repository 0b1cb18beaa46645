#include "tests/text/chat/goldens.h"

#include "graph/base/files.h"

namespace primerl::chat {
namespace {

std::string unpacked(const Json& numbers, const Json& lines) {
  std::string text;
  for (const Json& number : numbers.as_array()) {
    text += lines.as_array()[static_cast<size_t>(number.as_int())].as_string();
    text += '\n';
  }
  text.pop_back();
  return text;
}

Conversation conversation_of(const Json& json) {
  Conversation made;
  Json messages = *json.find("messages");
  for (Json& message : messages.as_array())
    for (auto& [key, value] : message.as_object())
      if (key == "REASONING") key = "reasoning";
  made.messages = messages_from_json(messages).value();
  if (const Json* tools = json.find("tools")) made.tools = *tools;
  if (const Json* kwargs = json.find("kwargs")) made.kwargs = *kwargs;
  made.add_generation_prompt = json.find("prompt")->as_bool();
  return made;
}

Goldens::Case case_of(const std::string& title, const Json& text, const Json* spans,
                      const Json& lines) {
  Goldens::Case made;
  made.title = title;
  if (!text.is_null()) made.text = unpacked(text, lines);
  if (spans == nullptr || spans->find(title) == nullptr) return made;
  made.has_spans = true;
  for (const Json& span : spans->find(title)->as_array())
    made.generated.emplace_back(static_cast<size_t>(span.as_array()[0].as_int()),
                                static_cast<size_t>(span.as_array()[1].as_int()));
  return made;
}

}  // namespace

Goldens read_goldens() {
  const std::string text = read_text_file(PRIMERL_CHAT_GOLDENS).value();
  const Json root = parse_json(text, PRIMERL_CHAT_GOLDENS).value();
  Goldens goldens;
  for (const auto& [title, json] : root.find("conversations")->as_object())
    goldens.conversations[title] = conversation_of(json);
  for (const Json& each : root.find("cases")->as_array()) {
    Goldens::Template made;
    made.name = each.find("name")->as_string();
    made.source = unpacked(*each.find("template"), *root.find("lines"));
    for (const auto& [name, token] : each.find("tokens")->as_object())
      made.tokens.emplace_back(name, token.as_string());
    for (const auto& [title, rendered] : each.find("texts")->as_object())
      made.cases.push_back(case_of(title, rendered, each.find("spans"), *root.find("lines")));
    goldens.templates.push_back(std::move(made));
  }
  return goldens;
}

}  // namespace primerl::chat
