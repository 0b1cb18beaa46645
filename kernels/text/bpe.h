/// Byte-pair encoding, as in tokenizer.json of nearly every language model: over bytes (GPT-2,
/// Llama-3, Qwen) or over characters (Llama-2, Mistral, Gemma).
///
/// Text -> added tokens -> normalizer -> pieces of the pre-tokenizer -> symbols -> merges. Each
/// part of the file has its own reader (normalizer.h, pre_tokenizer.h, bpe_model.h, decoder.h,
/// post_processor.h), which refuses what it does not know by name. `truncation` and `padding` have
/// no effect: encoding neither adds nor drops tokens.
#pragma once

#include <memory>

#include "kernels/text/tokenizer.h"
#include "kernels/text/tokenizer_file.h"

namespace primerl {

Result<std::shared_ptr<Tokenizer>> make_bpe(TokenizerFile file);

}  // namespace primerl
