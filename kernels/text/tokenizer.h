/// Tokenizer: text to token ids and back, read from a Hugging Face `tokenizer.json`.
///
/// Immutable after load, safe from any thread. Supports BPE over bytes (Qwen3, Llama-3, GPT-2) and
/// over characters (Llama-2, Mistral, Gemma), and WordLevel over single characters. If `unk_token`
/// of a WordLevel file is its padding token, it does not count as an unk token: text that would map
/// to it is an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/resource.h"
#include "graph/base/result.h"
#include "kernels/text/chat_source.h"

namespace primerl {

/// Bytes of a text that have one source. It begins where the span before it ends.
struct TextSpan {
  size_t end = 0;
  bool is_trusted = false;   // from a template: every added token in it is found
  std::string_view blocked;  // else special tokens stay text, and so do tokens that occur in this
};

class Tokenizer : public Resource {
 public:
  static constexpr std::string_view kResourceKind = "tokenizer";

  /// For untrusted text: tasks, observations, tool output, files, user input. Special tokens in it
  /// ("<|im_end|>") stay text, so it cannot end or open a turn. Equals `split_special_tokens` of
  /// transformers; added tokens that are not special are found. Text without a token (a character
  /// outside the vocabulary) is an error that names it and its byte offset.
  virtual Result<std::vector<int32_t>> encode_text(std::string_view text) const = 0;
  /// For text of a template or of this program: special tokens in it become their ids. Never use it
  /// for text that contains untrusted input.
  virtual Result<std::vector<int32_t>> encode_with_specials(std::string_view text) const = 0;
  /// For text of a template with data in it. A token is found only inside one span; the text
  /// between two found tokens is encoded as a whole. The spans end where the text ends.
  virtual Result<std::vector<int32_t>> encode_spans(std::string_view text,
                                                    const std::vector<TextSpan>& spans) const;
  /// Ids without a token (models pad their embedding beyond the vocabulary) decode to nothing, as
  /// in the `tokenizers` package. Negative ids are an error; invalid UTF-8 becomes U+FFFD.
  /// `skip_special` drops special ids.
  virtual Result<std::string> decode(const std::vector<int32_t>& ids,
                                     bool skip_special = true) const = 0;

  /// The bytes of `id` in the decoded text, before invalid UTF-8 is replaced: decode() without
  /// special tokens concatenates these. Empty for special tokens and for ids without a token. Valid
  /// as long as the tokenizer.
  virtual std::string_view bytes_of(int32_t id) const = 0;

  virtual int32_t vocab_size() const = 0;  // largest id + 1
  /// Ids that end a sequence (from generation_config.json, config.json or tokenizer_config.json).
  virtual const std::vector<int32_t>& eos_ids() const = 0;
  /// -1 if there is none.
  virtual int32_t pad_id() const = 0;

  /// Ids that encode() of transformers puts before and behind a text: its post-processor's, such as
  /// BOS. The functions above add none, since a chat template writes its own.
  virtual const std::vector<int32_t>& prefix_ids() const;
  virtual const std::vector<int32_t>& suffix_ids() const;
  /// The id that ends a supervised turn; -1 if there is none.
  virtual int32_t turn_end_id() const { return eos_ids().empty() ? -1 : eos_ids().front(); }

  /// The chat template beside the tokenizer; null if it has no folder.
  const std::shared_ptr<const ChatSource>& chat_source() const { return chat_source_; }
  void set_chat_source(std::shared_ptr<const ChatSource> source) {
    chat_source_ = std::move(source);
  }

 private:
  std::shared_ptr<const ChatSource> chat_source_;  // constant after load
};

/// encode_text() behind the prefix_ids(): a text that begins a sequence, as transformers encodes
/// it.
Result<std::vector<int32_t>> encode_start(const Tokenizer& tokenizer, std::string_view text);

/// Reads `folder`/tokenizer.json and the files beside it. Errors name file and position.
Result<std::shared_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& folder);

}  // namespace primerl
