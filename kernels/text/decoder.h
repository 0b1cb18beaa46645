/// The `decoder` of a tokenizer.json: tokens back to text.
///
/// ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, BPEDecoder, and a Sequence of them.
/// Immutable, safe from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/text/pattern.h"
#include "kernels/text/tokenizer_file.h"

namespace primerl {

class TextDecoder {
 public:
  /// Reads the file's `decoder`; errors name the key. Without one, tokens are joined by spaces.
  static Result<TextDecoder> read(const TokenizerFile& file);

  /// The text of tokens that follow each other; invalid UTF-8 becomes U+FFFD.
  Result<std::string> decode(std::vector<std::string> tokens) const;
  /// The bytes of one token in the middle of a text.
  Result<std::string> bytes_of(std::string_view token) const;
  /// Whether decode() concatenates bytes_of() and replaces invalid UTF-8, nothing else.
  bool is_concatenation() const;

 private:
  enum class Kind { kByteLevel, kByteFallback, kFuse, kStrip, kReplace, kMetaspace, kSuffix };
  struct Step {
    Kind kind = Kind::kFuse;
    Pattern pattern;      // Replace
    std::string content;  // Replace, Strip, BPEDecoder, Metaspace
    int64_t start = 0;    // Strip: at most so many at the start of a token
    int64_t stop = 0;
    bool drops_first = false;  // Metaspace: none at the start of the text
  };
  Status add(const TokenizerFile& file, const Json& json, const std::string& where);
  static Result<std::vector<std::string>> apply(const Step& step, std::vector<std::string> tokens);

  std::vector<Step> steps_;
};

}  // namespace primerl
