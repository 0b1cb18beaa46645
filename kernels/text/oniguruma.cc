#include "kernels/text/oniguruma.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "kernels/text/oniguruma_sets.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

constexpr int64_t kRepeatMax = 65535;  // of PCRE2

/// Rewrites by recursive descent. Every method stops behind what it read.
class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : in_(pattern) {}

  Result<std::string> whole() {
    ASSIGN_OR_RETURN(std::string out, alternatives());
    if (!in_.at_end()) return in_.fault("')' closes no group");
    return out;
  }

 private:
  /// Up to the end of the group or of the pattern.
  Result<std::string> alternatives() {
    if (depth_ >= kPatternDepthMax)
      return in_.fault(fmt::format("groups are more than {} deep", kPatternDepthMax));
    const Flags outer = flags_;
    ++depth_;
    std::string out;
    while (!in_.at_end() && in_.peek() != ')') {
      if (in_.accept("|")) {
        out += '|';
        previous_ = 0;
        continue;
      }
      ASSIGN_OR_RETURN(const std::string part, repeated());
      out += part;
    }
    --depth_;
    flags_ = outer;
    return out;
  }

  Result<std::string> repeated() {
    ASSIGN_OR_RETURN(std::string part, atom());
    for (;;) {
      const size_t begin = in_.offset();
      ASSIGN_OR_RETURN(const std::string repeat, quantifier());
      if (repeat.empty()) return part;
      if (part.empty()) return in_.fault_at(begin, "nothing to repeat");
      if (is_repeated_) part = "(?:" + part + ")";
      part += repeat;
      // In this syntax only '?', '*' and '+' have a possessive form; a lazy '{n}' is an optional
      // one. Elsewhere a mark behind a repetition repeats it.
      const bool is_interval = repeat.front() == '{';
      if (is_interval && in_.peek() == '?' && repeat.find(',') == std::string::npos) {
        in_.skip(1);
        part = "(?:" + part + ")?";
      } else if (in_.peek() == '?' || (!is_interval && in_.peek() == '+')) {
        part += in_.next();
      }
      is_repeated_ = true;
      previous_ = 0;
    }
  }

  /// "*", "{2,3}", or empty if there is none here.
  Result<std::string> quantifier() {
    const char mark = in_.peek();
    if (mark == '*' || mark == '+' || mark == '?') return std::string(1, in_.next());
    if (mark != '{') return std::string();
    const size_t begin = in_.offset();
    in_.skip(1);
    const auto low = in_.number();
    const bool has_comma = in_.accept(",");
    const auto high = has_comma ? in_.number() : low;
    // Anything else that follows a brace is text.
    if (!in_.accept("}") || (!low && !high)) {
      in_.seek(begin);
      return std::string();
    }
    for (const auto bound : {low, high})
      if (bound && *bound > kRepeatMax)
        return in_.fault_at(begin, fmt::format("more than {} repetitions", kRepeatMax));
    if (low && high && *low > *high) return in_.fault_at(begin, "the bounds are exchanged");
    if (!has_comma) return fmt::format("{{{}}}", *low);
    return fmt::format("{{{},{}}}", low.value_or(0), high ? std::to_string(*high) : "");
  }

  Result<std::string> atom() {
    is_repeated_ = false;
    const char mark = in_.peek();
    if (mark != '(' && mark != '[' && mark != '\\' && mark != '.' && mark != '^' && mark != '$')
      return literal();
    previous_ = 0;
    switch (mark) {
      case '(':
        return group();
      case '[':
        return SetReader(in_, depth_, flags_.ignores_case).set();
      case '\\':
        return escape();
      case '.':
        in_.skip(1);
        return std::string(flags_.dot_is_any ? "(?s:.)" : "[^\\n]");
      case '^':
        in_.skip(1);
        return std::string("^");
      default:
        in_.skip(1);
        return std::string("$");
    }
  }

  Result<std::string> literal() {
    const size_t begin = in_.offset();
    const char mark = in_.peek();
    if (mark == '*' || mark == '+' || mark == '?') return in_.fault("nothing to repeat");
    ASSIGN_OR_RETURN(const uint32_t character, in_.character());
    return character_text(character, begin);
  }

  /// A literal character. Oniguruma folds some pairs of letters into one character: refused.
  Result<std::string> character_text(uint32_t character, size_t begin) {
    if (flags_.ignores_case) {
      const uint32_t letter = character < 128 ? character | 0x20U : character;
      for (const std::string_view pair : {"ss", "ff", "fi", "fl", "st"})
        if (previous_ == static_cast<uint32_t>(pair[0]) && letter == static_cast<uint32_t>(pair[1]))
          return in_.fault_at(begin, fmt::format("'{}' without case is not supported", pair));
      if (character == 0xDF || character == 0x130 || character == 0x149)
        return in_.fault_at(begin, "this letter without case is not supported");
      previous_ = letter;
    }
    return escaped(character);
  }

  Result<std::string> escape() {
    const size_t begin = in_.offset();
    in_.skip(1);
    if (in_.at_end()) return in_.fault_at(begin, "the pattern ends after '\\'");
    const char letter = in_.peek();
    // Outside of sets, superscripts and fractions of Latin-1 are word characters, too.
    const std::string items = word_items() + R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
    const std::string word = "[" + items + "]";
    switch (letter) {
      case 'A':
      case 'z':
      case 'Z':
        in_.skip(1);
        return std::string("\\") + letter;
      case 'w':
        in_.skip(1);
        return word;
      case 'W':
        in_.skip(1);
        return "[^" + items + "]";
      case 'b':
        in_.skip(1);
        return fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word);
      case 'B':
        in_.skip(1);
        return fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
      case 'R':
        in_.skip(1);
        return std::string("(?>\\r\\n|[\\n-\\r\\x{85}\\x{2028}\\x{2029}])");
      case 'N':
        in_.skip(1);
        return std::string("[^\\n]");
      case 'O':
        in_.skip(1);
        return std::string("(?s:.)");
      default:
        break;
    }
    if (letter >= '1' && letter <= '9') {
      const auto number = in_.number();
      return fmt::format("\\g{{{}}}", *number);
    }
    in_.seek(begin);
    ASSIGN_OR_RETURN(const SetItem item,
                     SetReader(in_, depth_, flags_.ignores_case).escaped_item());
    if (item.character) return character_text(*item.character, begin);
    return item.alone();
  }

  Result<std::string> group() {
    const size_t begin = in_.offset();
    in_.skip(1);
    if (in_.accept("*")) return in_.fault_at(begin, "'(*' is not supported");
    if (!in_.accept("?")) return body("(", begin);
    for (const std::string_view kind : {":", "=", "!", ">", "<=", "<!"})
      if (in_.accept(kind)) return body("(?" + std::string(kind), begin);
    if (in_.accept("#")) {
      while (!in_.at_end() && in_.peek() != ')') in_.skip(1);
      if (!in_.accept(")")) return in_.fault_at(begin, "the comment has no ')'");
      return std::string();
    }
    if (in_.accept("<")) {
      while (!in_.at_end() && in_.peek() != '>') in_.skip(1);
      if (!in_.accept(">")) return in_.fault_at(begin, "the group's name has no '>'");
      return body("(", begin);
    }
    return options(begin);
  }

  /// "i-m:" with a group, or "i-m)", which is valid up to the end of the group around it.
  Result<std::string> options(size_t begin) {
    const Flags outer = flags_;
    Flags inner = outer;
    for (bool value = true; in_.peek() != ':' && in_.peek() != ')';) {
      if (in_.accept("-"))
        value = false;
      else if (in_.accept("i"))
        inner.ignores_case = value;
      else if (in_.accept("m"))
        inner.dot_is_any = value;
      else
        return in_.fault("this kind of group is not supported");
    }
    const char* open = inner.ignores_case == outer.ignores_case ? "(?:"
                       : inner.ignores_case                     ? "(?i:"
                                                                : "(?-i:";
    flags_ = inner;
    if (in_.accept(":")) {
      auto made = body(open, begin);
      flags_ = outer;
      return made;
    }
    in_.skip(1);
    ASSIGN_OR_RETURN(const std::string rest, alternatives());
    flags_ = outer;
    return open + rest + ")";
  }

  Result<std::string> body(std::string open, size_t begin) {
    previous_ = 0;
    ASSIGN_OR_RETURN(const std::string inner, alternatives());
    if (!in_.accept(")")) return in_.fault_at(begin, "the group has no ')'");
    previous_ = 0;
    return std::move(open) + inner + ")";
  }

  struct Flags {
    bool ignores_case = false;
    bool dot_is_any = false;
  };
  Scanner in_;
  int depth_ = 0;
  Flags flags_;
  bool is_repeated_ = false;
  uint32_t previous_ = 0;  // the literal before, in lower case, if case is ignored
};

}  // namespace

Result<std::string> pcre2_pattern(std::string_view oniguruma) {
  RETURN_IF_ERROR(check_utf8(oniguruma));
  return Rewriter(oniguruma).whole();
}

}  // namespace primerl
