/// Text of ids that come one by one: each call returns what is new and complete.
///
/// Together the returned texts are decode() of all ids. Not thread-safe; the tokenizer must stay
/// valid while the stream is used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/text/tokenizer.h"

namespace primerl {

/// Ids that are kept back at most while their text may be the start of a character.
inline constexpr size_t kHeldIdsMax = 16;

class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  /// Empty while the text ends within a character.
  Result<std::string> add(int32_t id);
  /// The text that was kept back, with U+FFFD for its broken end.
  Result<std::string> finish();

 private:
  /// The text that the ids add to the text that was returned.
  Result<std::string> advance(const std::string& text);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  /// Ids whose text was returned, but which the text of the next may depend on, and those after
  /// them.
  std::vector<int32_t> ids_;
  size_t num_returned_ = 0;
  std::string returned_;  // the text of the first num_returned_
};

}  // namespace primerl
