/// ChatSource: the chat template of a model folder, as text; kernels/text/chat renders it.
///
/// A plain value, constant after it was read.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

struct ChatSource {
  struct Named {
    std::string name;  // "default", "tool_use", ...
    std::string text;
  };
  std::string file;              // for errors, as the caller wrote the path
  std::vector<Named> templates;  // empty: the folder has none
  std::string fault;             // not empty: a file could not be read
  std::vector<std::pair<std::string, std::string>> tokens;  // {"bos_token", "<s>"}, ...

  /// The template of that name; empty: the only one, or "default".
  Result<std::string> find(std::string_view name) const;
};

/// Reads chat_template.jinja, else `chat_template` of tokenizer_config.json, which is a text or a
/// list of named ones. The tokens come from tokenizer_config.json and special_tokens_map.json.
std::shared_ptr<const ChatSource> read_chat_source(const std::filesystem::path& folder);

}  // namespace primerl
