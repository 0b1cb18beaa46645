/// A tokenizer with no vocabulary file: a byte is a token, whatever the model says.
///
/// For rehearsals and tests where only the number of tokens matters. Immutable; any thread.
#pragma once

#include <memory>

#include "kernels/text/tokenizer.h"

namespace primerl {

/// Ids of a scripted tokenizer: 0 pads, 1 ends a sequence, byte b is kScriptedFirstToken + b.
inline constexpr int32_t kScriptedFirstToken = 2;
inline constexpr int32_t kScriptedVocabSize = kScriptedFirstToken + 256;

std::unique_ptr<Tokenizer> make_scripted_tokenizer();

}  // namespace primerl
