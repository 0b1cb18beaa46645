/// The regular expressions and texts by which tokenizer.json cuts and replaces.
///
/// Regular expressions are Oniguruma's, rewritten for PCRE2 (oniguruma.h). Immutable, safe from any
/// thread; each thread has a scratch of its own. Offsets are bytes of valid UTF-8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

inline constexpr size_t kPatternBytesMax = 16 << 10;    // of one regular expression
inline constexpr uint32_t kMatchStepsMax = 10'000'000;  // per match; more is an error

/// Memory that finding matches needs. For one thread at a time, for any number of patterns.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(const PatternScratch&) = delete;
  PatternScratch& operator=(const PatternScratch&) = delete;

 private:
  friend class Pattern;
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

class Pattern {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  static Result<Pattern> regex(std::string_view oniguruma);
  /// Finds `text` itself, which is not empty.
  static Pattern literal(std::string text);
  /// {"Regex": ...} or {"String": ...}.
  static Result<Pattern> parse(const Json& json);

  /// All matches from left to right, none within another. An empty match directly behind another
  /// match does not count, as in Oniguruma's iterator.
  Status find_all(std::string_view text, PatternScratch& scratch,
                  std::vector<Match>& matches) const;

 private:
  struct Program;
  std::shared_ptr<const Program> program_;  // null: a literal
  std::string literal_;
};

}  // namespace primerl
