/// The `normalizer` of a tokenizer.json: what a text becomes before it is cut into pieces.
///
/// NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, and a Sequence of them. Immutable,
/// safe from any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/text/pattern.h"
#include "kernels/text/tokenizer_file.h"
#include "kernels/text/unicode.h"

namespace primerl {

class Normalizer {
 public:
  /// Reads the file's `normalizer`; errors name the key.
  static Result<Normalizer> read(const TokenizerFile& file);

  bool is_empty() const { return steps_.empty(); }
  /// `text` is valid UTF-8.
  Result<std::string> apply(std::string_view text) const;

 private:
  enum class Kind { kForm, kLowercase, kPrepend, kReplace, kStrip };
  struct Step {
    Kind kind = Kind::kForm;
    NormalForm form = NormalForm::kNfc;
    Pattern pattern;      // Replace
    std::string content;  // Replace, Prepend
    bool left = true;     // Strip
    bool right = true;
  };
  Status add(const TokenizerFile& file, const Json& json, const std::string& where);

  std::vector<Step> steps_;
};

}  // namespace primerl
