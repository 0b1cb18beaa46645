/// Tokenizer: text to token ids and back, read from a Hugging Face `tokenizer.json`.
///
/// Immutable after load, safe from any thread. Supports byte-level BPE (Qwen3, Llama-3, GPT-2
/// families) and the character tokenizer (WordLevel over single characters). Text that a WordLevel
/// file would map to its padding token counts as unknown: an `unk_token` that is the pad is no unk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/resource.h"
#include "graph/base/result.h"

namespace primerl {

class Tokenizer : public Resource {
 public:
  static constexpr std::string_view kResourceKind = "tokenizer";

  /// Text from outside: tasks, observations, what a tool said, files, what a person types. Special
  /// tokens written out in it ("<|im_end|>") stay text: nobody from outside can end a turn or open
  /// one. As `split_special_tokens` of transformers; added tokens that are not special are found.
  /// Text that has no token (a character outside the vocabulary) is an error that names it and its
  /// byte offset.
  virtual Result<std::vector<int32_t>> encode_text(std::string_view text) const = 0;
  /// A template's text, or our own: special tokens written out in it become their ids. Never text
  /// that anybody from outside had a hand in.
  virtual Result<std::vector<int32_t>> encode_with_specials(std::string_view text) const = 0;
  /// Ids without a token (models pad their embedding beyond the vocabulary) decode to nothing, as
  /// in the `tokenizers` package; negative ids are an error; bytes that are no UTF-8 become U+FFFD.
  /// `skip_special` drops special ids.
  virtual Result<std::string> decode(const std::vector<int32_t>& ids,
                                     bool skip_special = true) const = 0;

  /// What `id` adds to the decoded text, before bytes that are no UTF-8 are replaced: decode()
  /// without special tokens writes these one after another. Empty for special tokens and for ids
  /// without a token. Valid as long as the tokenizer.
  virtual std::string_view bytes_of(int32_t id) const = 0;

  virtual int32_t vocab_size() const = 0;  // largest id + 1
  /// Ids that end a sequence (from generation_config.json, config.json or tokenizer_config.json).
  virtual const std::vector<int32_t>& eos_ids() const = 0;
  /// -1 when there is none.
  virtual int32_t pad_id() const = 0;
};

/// Reads `folder`/tokenizer.json and the files beside it. Errors name file and place.
Result<std::shared_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& folder);

}  // namespace primerl
