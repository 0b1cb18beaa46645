/// The `post_processor` of a tokenizer.json: the ids that are put around a text, such as BOS.
///
/// TemplateProcessing, RobertaProcessing, BertProcessing, ByteLevel (which adds none), and a
/// Sequence of them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/text/tokenizer_file.h"

namespace primerl {

struct TextEnds {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
};

/// Errors name the key. `add_bos_token` and `add_eos_token` of tokenizer_config.json, if it is
/// there, have precedence, as in transformers.
Result<TextEnds> read_text_ends(const TokenizerFile& file);

}  // namespace primerl
