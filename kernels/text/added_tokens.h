/// Finds added tokens ("<|im_end|>") in a text and cuts it around them.
///
/// Immutable after construction, safe from any thread. The leftmost match wins; among matches at
/// one position, the longest, as in the `tokenizers` package.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/text/normalizer.h"
#include "kernels/text/tokenizer_file.h"

namespace primerl {

/// Whether special tokens in a text are found, or stay text.
enum class Specials : uint8_t { kStayText, kAreFound };

/// Decides which added tokens of a text are found.
class AddedFilter {
 public:
  AddedFilter(Specials specials) : specials_(specials) {}
  explicit AddedFilter(const std::vector<TextSpan>& spans) : spans_(&spans) {}
  /// The same for a text that begins at `offset`; with `size` > 0, for one made of those bytes.
  AddedFilter at(size_t offset, size_t size) const;

  bool finds(const AddedToken& token, size_t begin, size_t end) const;
  /// Whether a token inside of one that is not found may be found.
  bool looks_inside() const { return spans_ != nullptr; }

 private:
  Specials specials_ = Specials::kStayText;
  const std::vector<TextSpan>* spans_ = nullptr;
  size_t offset_ = 0;
  size_t size_ = 0;
};

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
  std::vector<Piece> split(std::string_view text, const AddedFilter& filter) const;

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
  size_t offset = 0;  // in the given text; if that was normalized, of the nearest unchanged start
  bool is_start = false;  // the text begins with it
};

/// Cuts a text at its added tokens and normalizes the rest. Tokens that are not `normalized` are
/// found first, in the given text; the others are found in the normalized rest.
class Segmenter {
 public:
  Segmenter(const std::vector<AddedToken>& tokens, Normalizer normalizer);
  /// The segments in order, none empty. Text that is not valid UTF-8 is an error with the byte
  /// offset.
  Result<std::vector<Segment>> cut(std::string_view text, const AddedFilter& filter) const;

 private:
  AddedTokens raw_;
  AddedTokens normalized_;
  Normalizer normalizer_;
};

}  // namespace primerl
