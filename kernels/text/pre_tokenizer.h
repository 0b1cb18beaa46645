/// The `pre_tokenizer` of a tokenizer.json: cuts a text into pieces, within which tokens are
/// merged.
///
/// Split (in all behaviours), Digits, Punctuation, Metaspace, Whitespace, WhitespaceSplit,
/// BertPreTokenizer, CharDelimiterSplit, ByteLevel, and a Sequence of them. Immutable, safe from
/// any thread.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/text/pattern.h"
#include "kernels/text/tokenizer_file.h"

namespace primerl {

/// The pieces of one text: views of it, or of texts that were written anew.
struct Pieces {
  std::vector<std::string_view> views;
  std::deque<std::string> owned;
};

class PreTokenizer {
 public:
  /// Reads the file's `pre_tokenizer`; errors name the key.
  static Result<PreTokenizer> read(const TokenizerFile& file);

  /// Whether the vocabulary is one of bytes.
  bool is_byte_level() const { return is_byte_level_; }
  /// Appends the pieces of `text`, valid UTF-8, none of them empty. With a byte-level vocabulary
  /// they are bytes, not the characters that represent them. `is_start`: the text begins there.
  Status cut(std::string_view text, bool is_start, PatternScratch& scratch, Pieces& pieces) const;

 private:
  enum class Kind { kPattern, kCharacters, kMetaspace, kPrefixSpace, kBytes };
  enum class Behavior { kRemoved, kIsolated, kPrevious, kNext, kContiguous };
  enum class Scheme { kAlways, kFirst, kNever };
  struct Step {
    Kind kind = Kind::kPattern;
    Pattern pattern;
    bool (*is_match)(uint32_t character) = nullptr;  // kCharacters
    Behavior behavior = Behavior::kIsolated;
    bool is_inverted = false;
    std::string replacement;  // kMetaspace
    Scheme scheme = Scheme::kAlways;
    bool splits = true;
  };
  /// A part of a piece: a match, or what is between two.
  struct Part {
    size_t begin = 0;
    size_t end = 0;
    bool is_match = false;
  };

  Status add(const TokenizerFile& file, const Json& json, const std::string& where);
  Status add_split(const TokenizerFile& file, const Json& json, const std::string& where);
  Status add_byte_level(const TokenizerFile& file, const Json& json, const std::string& where);
  Status add_metaspace(const TokenizerFile& file, const Json& json, const std::string& where);
  void add_characters(bool (*is_match)(uint32_t), Behavior behavior);
  static Result<Behavior> behavior_of(const TokenizerFile& file, const Json& json,
                                      const std::string& where);
  static Status cut_piece(const Step& step, std::string_view piece, bool is_start,
                          PatternScratch& scratch, Pieces& to);
  static Status find_parts(const Step& step, std::string_view piece, PatternScratch& scratch,
                           std::vector<Part>& parts);
  static void join_parts(Behavior behavior, std::vector<Part>& parts);

  std::vector<Step> steps_;
  bool is_byte_level_ = false;
};

}  // namespace primerl
