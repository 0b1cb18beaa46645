/// A parsed tokenizer.json: its text as JSON, the tokens by name and by id, the added tokens.
///
/// Everything here is checked: ids are in [0, kVocabularyMax) and belong to one token, contents are
/// not empty. Errors name the file and the key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

inline constexpr int64_t kVocabularyMax = 1 << 20;               // ids are below this
inline constexpr size_t kTokenizerBytesMax = size_t{128} << 20;  // of tokenizer.json
inline constexpr size_t kTokenBytesMax = 64 << 10;               // of one token's content

/// A token that is found in the text before the model is applied.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // dropped by decode(skip_special), not found by encode_text()
  bool single_word = false;  // only if no word character is adjacent
  bool lstrip = false;       // includes the white space on its left
  bool rstrip = false;
  bool normalized = false;  // found in the normalized text
};

/// Tokens by id and by content.
class Vocabulary {
 public:
  enum Kind : uint8_t { kNone = 0, kModel = 1, kAdded = 2, kSpecial = 4 };

  Status add(const std::string& token, int64_t id, uint8_t kind);
  /// -1 if there is no such token.
  int32_t find(const std::string& token) const;
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }  // largest id + 1
  bool has(int32_t id) const { return id >= 0 && id < size() && kinds_[index(id)] != kNone; }
  uint8_t kind(int32_t id) const { return kinds_[index(id)]; }  // valid only if has(id)
  const std::string& token(int32_t id) const { return tokens_[index(id)]; }
  /// Whether the token represents text.
  bool is_text(int32_t id) const { return has(id) && (kind(id) & kSpecial) == 0; }
  /// Concatenates text_of(id). Ids without a token are left out, since an embedding may have padded
  /// rows. With `skip_special`, special ids are left out too.
  template <class TextOf>
  Result<std::string> join(const std::vector<int32_t>& ids, bool skip_special,
                           const TextOf& text_of) const {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 0) return error(Code::kInvalid, "id {} is no token", id);
      if (skip_special ? is_text(id) : has(id)) text += text_of(id);
    }
    return text;
  }

 private:
  static size_t index(int32_t id) { return static_cast<size_t>(id); }
  std::vector<std::string> tokens_;
  std::vector<uint8_t> kinds_;  // bits of Kind
  std::unordered_map<std::string, int32_t> ids_;
};

/// End and padding ids from the files beside tokenizer.json.
struct EndAndPad {
  std::vector<int32_t> eos_ids;
  std::string eos_source;  // "/models/x/config.json: 'eos_token_id'"
  int32_t pad_id = -1;
  /// Ends a supervised turn: the tokenizer's `eos_token` if it is one of `eos_ids`, else the first
  /// of these; -1: none.
  int32_t turn_end_id = -1;
  std::string warning;  // why `eos_token` is not the end of a turn; names both files
};

/// Tokens and options that tokenizer_config.json names.
struct NamedTokens {
  int32_t bos_id = -1;  // -1: none
  int32_t eos_id = -1;
  std::optional<bool> add_bos;  // empty: not in the file
  std::optional<bool> add_eos;
};

struct TokenizerFile {
  std::string name;  // for errors, as the caller wrote the path
  Json root;
  std::string model_type;  // "BPE", "WordLevel", ...
  Vocabulary vocabulary;
  std::vector<AddedToken> added_tokens;
  EndAndPad end_and_pad;
  NamedTokens named;

  /// "tokenizer.json: 'model.merges[3]' ...": every error about this file starts this way.
  template <class... Args>
  Error fault(fmt::format_string<Args...> format, Args&&... args) const {
    return Error(Code::kInvalid, name + ": " + fmt::format(format, std::forward<Args>(args)...));
  }
};

/// Reads the text of a tokenizer.json; errors call it `name`.
Result<TokenizerFile> parse_tokenizer_file(std::string_view text, std::string name);
/// Reads `folder`/tokenizer.json and, for eos and pad, the files beside it. The first file that has
/// the key counts: generation_config.json, config.json, tokenizer_config.json,
/// special_tokens_map.json.
Result<TokenizerFile> read_tokenizer_file(const std::filesystem::path& folder);

/// The tokenizer that the file describes.
Result<std::shared_ptr<Tokenizer>> make_tokenizer(TokenizerFile file);

/// A member that is absent, null, true or false; anything else is an error.
Result<bool> optional_bool(const Json& object, std::string_view key, bool fallback);

}  // namespace primerl
