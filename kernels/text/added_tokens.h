/// Finds added tokens ("<|im_end|>") in a text and cuts it around them.
///
/// Immutable after construction, safe from any thread. At each place the longest token counts, the
/// leftmost place first, as the `tokenizers` package does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/text/tokenizer_file.h"

namespace primerl {

class AddedTokens {
 public:
  /// A piece of the text: an added token, or text between two of them (id -1). Bytes [begin, end).
  struct Piece {
    int32_t id = -1;
    size_t begin = 0;
    size_t end = 0;
  };

  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  /// The pieces of valid UTF-8 `text`, in order, none empty, together all of it.
  std::vector<Piece> split(std::string_view text) const;

 private:
  /// The longest token that begins at `begin`, or null.
  const AddedToken* longest_at(std::string_view text, size_t begin) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  bool begins_[256] = {};           // bytes that begin a token
};

}  // namespace primerl
