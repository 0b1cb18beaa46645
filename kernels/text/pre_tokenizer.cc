#include "kernels/text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "kernels/text/byte_alphabet.h"
#include "kernels/text/file_parts.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// The package's own expression: \w of another library, which has the two joiners.
constexpr const char* kWordsPattern = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+)"
                                      R"(|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}\s]+)";

}  // namespace

Result<PreTokenizer> PreTokenizer::read(const TokenizerFile& file) {
  PreTokenizer made;
  if (const Json* json = present_member(file.root, "pre_tokenizer"))
    RETURN_IF_ERROR(made.add(file, *json, "pre_tokenizer"));
  // Pieces stay bytes if nothing looks at them as characters.
  if (!made.steps_.empty() && made.steps_.back().kind == Kind::kBytes) made.steps_.pop_back();
  return made;
}

Status PreTokenizer::add(const TokenizerFile& file, const Json& json, const std::string& where) {
  const std::string type = type_of(json);
  if (type == "Sequence")
    return each_part(file, json, where, "pretokenizers",
                     [&](const Json& part, const std::string& at) { return add(file, part, at); });
  if (steps_.size() >= kFilePartsMax)
    return file.fault("'{}' is one pre-tokenizer too many; at most {} are supported", where,
                      kFilePartsMax);
  if (type == "Split") return add_split(file, json, where);
  if (type == "ByteLevel") return add_byte_level(file, json, where);
  if (type == "Metaspace") return add_metaspace(file, json, where);
  if (type == "Digits") {
    ASSIGN_OR_RETURN(const bool each, bool_member(file, json, where, "individual_digits", false));
    add_characters(is_number, each ? Behavior::kIsolated : Behavior::kContiguous);
    return ok();
  }
  if (type == "Punctuation") {
    ASSIGN_OR_RETURN(const Behavior behavior, behavior_of(file, json, where));
    add_characters(is_punctuation, behavior);
    return ok();
  }
  if (type == "WhitespaceSplit" || type == "BertPreTokenizer") {
    add_characters(is_white_space, Behavior::kRemoved);
    if (type == "BertPreTokenizer") add_characters(is_punctuation, Behavior::kIsolated);
    return ok();
  }
  Step step;
  if (type == "Whitespace") {
    ASSIGN_OR_RETURN(step.pattern, Pattern::regex(kWordsPattern));
    step.is_inverted = true;
  } else if (type == "CharDelimiterSplit") {
    ASSIGN_OR_RETURN(std::string delimiter, text_member(file, json, where, "delimiter"));
    if (delimiter.empty()) return file.fault("'{}.delimiter' is empty", where);
    step.pattern = Pattern::literal(std::move(delimiter));
  } else {
    return file.fault(
        "'{}' is '{}'; known pre-tokenizers: Split, ByteLevel, Metaspace, Digits, Punctuation, "
        "Whitespace, WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit, Sequence",
        where, type);
  }
  step.behavior = Behavior::kRemoved;
  steps_.push_back(std::move(step));
  return ok();
}

Status PreTokenizer::add_split(const TokenizerFile& file, const Json& json,
                               const std::string& where) {
  Step step;
  ASSIGN_OR_RETURN(step.pattern, pattern_member(file, json, where));
  if (json.find("behavior") == nullptr) return file.fault("'{}.behavior' is missing", where);
  ASSIGN_OR_RETURN(step.behavior, behavior_of(file, json, where));
  ASSIGN_OR_RETURN(step.is_inverted, bool_member(file, json, where, "invert", false));
  steps_.push_back(std::move(step));
  return ok();
}

Status PreTokenizer::add_byte_level(const TokenizerFile& file, const Json& json,
                                    const std::string& where) {
  if (is_byte_level_) return file.fault("'{}': ByteLevel is there twice", where);
  is_byte_level_ = true;
  ASSIGN_OR_RETURN(const bool adds_space, bool_member(file, json, where, "add_prefix_space", true));
  ASSIGN_OR_RETURN(const bool uses_regex, bool_member(file, json, where, "use_regex", true));
  if (adds_space) {
    Step step;
    step.kind = Kind::kPrefixSpace;
    steps_.push_back(std::move(step));
  }
  if (uses_regex) {
    Step step;
    ASSIGN_OR_RETURN(step.pattern, Pattern::regex(kGpt2Pattern));
    steps_.push_back(std::move(step));
  }
  Step step;
  step.kind = Kind::kBytes;
  steps_.push_back(std::move(step));
  return ok();
}

Status PreTokenizer::add_metaspace(const TokenizerFile& file, const Json& json,
                                   const std::string& where) {
  Step step;
  step.kind = Kind::kMetaspace;
  ASSIGN_OR_RETURN(step.replacement, text_member(file, json, where, "replacement"));
  if (step.replacement.empty() ||
      code_point_at(step.replacement, 0).size != step.replacement.size())
    return file.fault("'{}.replacement' is not one character", where);
  // Older files have `add_prefix_space`, newer ones `prepend_scheme`.
  ASSIGN_OR_RETURN(const bool adds_space, bool_member(file, json, where, "add_prefix_space", true));
  step.scheme = adds_space ? Scheme::kAlways : Scheme::kNever;
  if (const Json* scheme = present_member(json, "prepend_scheme")) {
    if (*scheme == Json("always"))
      step.scheme = Scheme::kAlways;
    else if (*scheme == Json("first"))
      step.scheme = Scheme::kFirst;
    else if (*scheme == Json("never"))
      step.scheme = Scheme::kNever;
    else
      return file.fault("'{}.prepend_scheme' is {}; known: \"always\", \"first\", \"never\"", where,
                        scheme->dump());
  }
  ASSIGN_OR_RETURN(step.splits, bool_member(file, json, where, "split", true));
  step.pattern = Pattern::literal(step.replacement);
  step.behavior = Behavior::kNext;
  steps_.push_back(std::move(step));
  return ok();
}

void PreTokenizer::add_characters(bool (*is_match)(uint32_t), Behavior behavior) {
  Step step;
  step.kind = Kind::kCharacters;
  step.is_match = is_match;
  step.behavior = behavior;
  steps_.push_back(std::move(step));
}

Result<PreTokenizer::Behavior> PreTokenizer::behavior_of(const TokenizerFile& file,
                                                         const Json& json,
                                                         const std::string& where) {
  const Json* behavior = present_member(json, "behavior");
  if (behavior == nullptr || *behavior == Json("Isolated")) return Behavior::kIsolated;
  if (*behavior == Json("Removed")) return Behavior::kRemoved;
  if (*behavior == Json("MergedWithPrevious")) return Behavior::kPrevious;
  if (*behavior == Json("MergedWithNext")) return Behavior::kNext;
  if (*behavior == Json("Contiguous")) return Behavior::kContiguous;
  return file.fault(
      "'{}.behavior' is {}; known: \"Removed\", \"Isolated\", \"MergedWithPrevious\", "
      "\"MergedWithNext\", \"Contiguous\"",
      where, behavior->dump());
}

Status PreTokenizer::cut(std::string_view text, bool is_start, PatternScratch& scratch,
                         Pieces& pieces) const {
  std::vector<std::string_view> before = {text};
  bool are_characters = false;  // that represent bytes
  for (const Step& step : steps_) {
    pieces.views.clear();
    for (size_t i = 0; i < before.size(); ++i)
      RETURN_IF_ERROR(cut_piece(step, before[i], is_start && i == 0, scratch, pieces));
    are_characters = are_characters || step.kind == Kind::kBytes;
    before.swap(pieces.views);
  }
  if (are_characters)
    for (std::string_view& piece : before) {
      auto bytes = byte_alphabet().bytes_of(piece);
      piece = pieces.owned.emplace_back(bytes ? *std::move(bytes) : std::string(piece));
    }
  pieces.views = std::move(before);
  return ok();
}

Status PreTokenizer::cut_piece(const Step& step, std::string_view piece, bool is_start,
                               PatternScratch& scratch, Pieces& to) {
  if (step.kind == Kind::kBytes) {
    to.views.push_back(to.owned.emplace_back(byte_alphabet().text_of(piece)));
    return ok();
  }
  if (step.kind == Kind::kPrefixSpace) {
    if (!piece.starts_with(' ')) piece = to.owned.emplace_back(" " + std::string(piece));
    to.views.push_back(piece);
    return ok();
  }
  if (step.kind == Kind::kMetaspace) {
    std::string& text = to.owned.emplace_back();
    for (const char byte : piece) {
      if (byte == ' ')
        text += step.replacement;
      else
        text += byte;
    }
    const bool may_prepend =
        step.scheme == Scheme::kAlways || (step.scheme == Scheme::kFirst && is_start);
    if (may_prepend && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
    piece = text;
    if (!step.splits) {
      to.views.push_back(piece);
      return ok();
    }
  }
  std::vector<Part> parts;
  RETURN_IF_ERROR(find_parts(step, piece, scratch, parts));
  join_parts(step.behavior, parts);
  for (const Part& part : parts)
    if (part.begin < part.end && !(step.behavior == Behavior::kRemoved && part.is_match))
      to.views.push_back(piece.substr(part.begin, part.end - part.begin));
  return ok();
}

Status PreTokenizer::find_parts(const Step& step, std::string_view piece, PatternScratch& scratch,
                                std::vector<Part>& parts) {
  size_t copied = 0;
  const auto add = [&](size_t begin, size_t end) {
    if (copied < begin) parts.push_back({copied, begin, step.is_inverted});
    parts.push_back({begin, end, !step.is_inverted});
    copied = end;
  };
  if (step.kind == Kind::kCharacters) {
    for (size_t at = 0; at < piece.size();) {
      const CodePoint character = code_point_at(piece, at);
      if (step.is_match(character.value)) add(at, at + character.size);
      at += character.size;
    }
  } else {
    std::vector<Pattern::Match> matches;
    RETURN_IF_ERROR(step.pattern.find_all(piece, scratch, matches));
    parts.reserve(matches.size() + 1);
    for (const auto& match : matches) add(match.begin, match.end);
  }
  if (copied < piece.size()) parts.push_back({copied, piece.size(), step.is_inverted});
  return ok();
}

void PreTokenizer::join_parts(Behavior behavior, std::vector<Part>& parts) {
  if (behavior == Behavior::kIsolated || behavior == Behavior::kRemoved) return;
  std::vector<Part> joined;
  const bool is_backward = behavior == Behavior::kNext;
  if (is_backward) std::reverse(parts.begin(), parts.end());
  bool was_match = false;
  for (const Part& part : parts) {
    const bool joins =
        !joined.empty() && (behavior == Behavior::kContiguous ? part.is_match == was_match
                                                              : part.is_match && !was_match);
    was_match = part.is_match;
    if (!joins) {
      joined.push_back(part);
      continue;
    }
    joined.back().begin = std::min(joined.back().begin, part.begin);
    joined.back().end = std::max(joined.back().end, part.end);
  }
  if (is_backward) std::reverse(joined.begin(), joined.end());
  parts = std::move(joined);
}

}  // namespace primerl
