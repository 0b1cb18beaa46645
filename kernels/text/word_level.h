/// The character tokenizer: a WordLevel model over pieces that the regex "." isolates.
///
/// A piece is one character, or a run of line feeds (which "." does not match). Decoding writes the
/// tokens one after another. A piece outside the vocabulary becomes `unk_token`, except when that
/// is the padding token: then the file means "there is no unknown token", and encoding names the
/// character instead of silently training on padding.
#pragma once

#include <memory>

#include "kernels/text/tokenizer.h"
#include "kernels/text/tokenizer_file.h"

namespace primerl {

/// Refuses what it would read otherwise than the `tokenizers` package does: other pre-tokenizers,
/// normalizers and decoders.
Result<std::shared_ptr<Tokenizer>> make_word_level(TokenizerFile file);

}  // namespace primerl
