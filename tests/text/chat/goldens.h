/// Goldens: real chat templates, conversations, and the texts of transformers (goldens.json).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/text/chat/template.h"

namespace primerl::chat {

struct Conversation {
  std::vector<ChatMessage> messages;
  std::optional<Json> tools;
  Json kwargs = Json::object();
  bool add_generation_prompt = false;
};

struct Goldens {
  struct Case {
    std::string title;  // of the conversation
    std::optional<std::string> text;
    /// What {% generation %} marks: characters, not bytes.
    std::vector<std::pair<size_t, size_t>> generated;
    bool has_spans = false;

    RenderInput input(const Goldens& goldens) const {
      const Conversation& chat = goldens.conversations.at(title);
      RenderInput made;
      made.messages = chat.messages;
      made.tools = chat.tools ? &*chat.tools : nullptr;
      made.kwargs = &chat.kwargs;
      made.add_generation_prompt = chat.add_generation_prompt;
      made.day = {2026, 11, 26};
      return made;
    }
  };
  struct Template {
    std::string name;
    std::string source;
    ChatTemplate::Constants tokens;
    std::vector<Case> cases;
  };

  std::map<std::string, Conversation> conversations;
  std::vector<Template> templates;
};

Goldens read_goldens();

}  // namespace primerl::chat
