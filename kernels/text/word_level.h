/// The character tokenizer: a WordLevel model over pieces that the regex "." isolates.
///
/// A piece is one character, or a run of line feeds (which "." does not match). Decoding writes the
/// tokens one after another. A piece outside the vocabulary becomes `unk_token`, except when that
/// is the padding token: then encoding fails with an error that names the character; otherwise
/// padding would silently be trained on.
#pragma once

#include <memory>

#include "kernels/text/tokenizer.h"
#include "kernels/text/tokenizer_file.h"

namespace primerl {

/// Refuses files that the `tokenizers` package would read differently: other pre-tokenizers,
/// normalizers and decoders.
Result<std::shared_ptr<Tokenizer>> make_word_level(TokenizerFile file);

}  // namespace primerl
