/// A tokenizer without a vocabulary file: each byte is a token, for any model.
///
/// For rehearsals and tests that need only the number of tokens. Immutable; any thread.
#pragma once

#include <memory>

#include "kernels/text/tokenizer.h"

namespace primerl {

/// Ids of a scripted tokenizer: 0 is padding, 1 ends a sequence, byte b is kScriptedFirstToken + b.
inline constexpr int32_t kScriptedFirstToken = 2;
inline constexpr int32_t kScriptedVocabSize = kScriptedFirstToken + 256;

std::unique_ptr<Tokenizer> make_scripted_tokenizer();

}  // namespace primerl
