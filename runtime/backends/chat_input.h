/// ChatInput: a conversation that a command line gives, with its tools and template variables.
///
/// Plain values and functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"
#include "kernels/text/chat/format.h"

namespace primerl {

struct ChatInput {
  std::vector<ChatMessage> messages;
  std::optional<Json> tools;
  Json kwargs = Json::object();
};

/// `given` is a file that ends in .json, or the text of a user. A file has a list of messages, or
/// an object of `messages`, `tools` and `chat_template_kwargs`. `kwargs` is a JSON object; its
/// values replace those of the file.
Result<ChatInput> read_chat_input(const std::string& given, const std::string& kwargs);

/// The chat format of a model folder; templates that print the date print today's.
Result<chat::ChatFormat> chat_format_of_folder(const Tokenizer& tokenizer, const Json& kwargs);

}  // namespace primerl
