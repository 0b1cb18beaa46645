/// Byte-level byte-pair encoding, as in tokenizer.json of the GPT-2, Llama-3 and Qwen families.
///
/// Text -> added tokens -> NFC -> pieces by regular expressions (PCRE2) -> bytes -> merges. It
/// reads these keys of the file: `normalizer` (null, NFC or a Sequence of them), `pre_tokenizer`
/// (Split with a Regex, isolated or removed, then ByteLevel), `model` (with `ignore_merges`),
/// `decoder` (ByteLevel) and `added_tokens`. `post_processor`, `truncation` and `padding` have no
/// effect: encoding neither adds nor drops tokens. All other keys are refused by name.
#pragma once

#include <memory>

#include "kernels/text/tokenizer.h"
#include "kernels/text/tokenizer_file.h"

namespace primerl {

inline constexpr size_t kPreTokenizersMax = 16;         // stages of one file
inline constexpr size_t kPatternBytesMax = 16 << 10;    // of one regular expression
inline constexpr uint32_t kMatchStepsMax = 10'000'000;  // per match; more is an error

Result<std::shared_ptr<Tokenizer>> make_byte_level_bpe(TokenizerFile file);

}  // namespace primerl
