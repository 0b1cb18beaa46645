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

/// Whether special tokens written out in a text are found, or stay text.
enum class Specials : uint8_t { kStayText, kAreFound };

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
  std::vector<Piece> split(std::string_view text, Specials specials) const;

 private:
  /// The longest token that begins at `begin`, or null.
  const AddedToken* longest_at(std::string_view text, size_t begin) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  bool begins_[256] = {};           // bytes that begin a token
};

/// A part of a text as the model sees it: an added token, or normalized text (id -1).
struct Segment {
  int32_t id = -1;
  std::string text;   // empty for an added token
  size_t offset = 0;  // of the text given; of its nearest unchanged start when NFC changed it
};

/// Cuts a text around its added tokens and normalizes what is between them: tokens that are not
/// `normalized` are looked for first and in the text as given, the others in what remains of it,
/// normalized.
class Segmenter {
 public:
  /// `to_nfc`: texts are brought to normalization form C.
  Segmenter(const std::vector<AddedToken>& tokens, bool to_nfc);
  /// The segments in order, none empty. Text that is no UTF-8 is an error that names its offset.
  Result<std::vector<Segment>> cut(std::string_view text, Specials specials) const;

 private:
  AddedTokens raw_;
  AddedTokens normalized_;
  bool to_nfc_;
};

}  // namespace primerl
