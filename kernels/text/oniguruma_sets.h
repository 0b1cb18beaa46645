/// The sets of characters in a regular expression of Oniguruma, written for PCRE2: `[...]` with
/// sets within sets and intersections, `\p{...}`, `\w`, `[:alpha:]`. Part of oniguruma.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

/// Between the brackets of a set: what `\w` matches within a set of Oniguruma.
const std::string& word_items();

/// Reads a pattern byte by byte. Faults name the byte offset.
class Scanner {
 public:
  /// `text` is valid UTF-8 and must stay valid.
  explicit Scanner(std::string_view text) : text_(text) {}

  bool at_end() const { return offset_ >= text_.size(); }
  size_t offset() const { return offset_; }
  void seek(size_t offset) { offset_ = offset; }
  void skip(size_t count) { offset_ += count; }
  char peek(size_t ahead = 0) const;  // '\0' at the end
  char next() { return text_[offset_++]; }
  bool accept(std::string_view text);
  /// Whether `mark` comes after the next byte.
  bool has_ahead(char mark) const {
    return text_.find(mark, offset_ + 1) != std::string_view::npos;
  }
  std::optional<int64_t> number();  // of decimal digits; at most 9 are read
  Result<uint32_t> character();

  Error fault(std::string_view what) const { return fault_at(offset_, what); }
  Error fault_at(size_t offset, std::string_view what) const {
    return error(Code::kInvalid, "at byte {}: {}", offset, what);
  }

 private:
  std::string_view text_;
  size_t offset_ = 0;
};

/// The literal character for PCRE2, within a set or outside.
std::string escaped(uint32_t character);

/// One element of a set.
struct SetItem {
  std::optional<uint32_t> character;  // a literal one
  std::string items;                  // else: between the brackets of a set
  bool is_negated = false;            // all characters except these

  /// A pattern for one character of it.
  std::string alone() const;
};

class SetReader {
 public:
  /// `depth` counts sets and groups within each other.
  SetReader(Scanner& in, int& depth, bool ignores_case)
      : in_(in), depth_(depth), ignores_case_(ignores_case) {}

  /// A pattern for one character of the set that begins at '['.
  Result<std::string> set();
  /// The item that a backslash begins: a class of characters, or one character.
  Result<SetItem> escaped_item();

 private:
  /// The parts of a union, in a set or on one side of "&&".
  struct Union {
    std::string items;
    std::vector<std::string> patterns;  // each matches one character
    std::string pattern() const;
  };
  Status read_element(Union& into, bool is_first);
  Status read_range(Union& into, uint32_t low, size_t begin);
  Result<SetItem> property(bool is_negated);
  Result<SetItem> posix_class();
  Result<SetItem> hexadecimal(size_t begin);

  Scanner& in_;
  int& depth_;
  bool ignores_case_;
};

}  // namespace primerl
