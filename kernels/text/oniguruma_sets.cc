#include "kernels/text/oniguruma_sets.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/text/newer_characters.h"
#include "kernels/text/oniguruma.h"
#include "kernels/text/unicode.h"

namespace primerl {
namespace {

constexpr std::string_view kSpaceItems = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kHexadecimalItems = "0-9A-Fa-f";

using Newer = NewerCharacters;

/// The newer characters that `belongs` chooses, between the brackets of a set.
template <class Belongs>
std::string newer(const Belongs& belongs) {
  std::string items;
  uint32_t last = 0;
  for (const Newer& range : newer_characters()) {
    if (!belongs(range)) continue;
    if (!items.empty() && range.first == last + 1)
      items.resize(items.rfind('-') + 1);  // continues the range before
    else
      items += fmt::format("\\x{{{:x}}}-", range.first);
    items += fmt::format("\\x{{{:x}}}", range.last);
    last = range.last;
  }
  return items;
}

std::string category_items(std::string_view name) {
  return fmt::format("\\p{{{}}}", name) + newer([name](const Newer& range) {
           return name == "L&" ? range.category == "Lu" || range.category == "Ll"
                               : range.category.starts_with(name);
         });
}

std::string alphabetic_items() {
  // The ranges are marks that became alphabetic after Unicode 14.
  return R"(\p{Alphabetic}\x{363}-\x{36f}\x{c04}\x{f82}\x{f83})"
         R"(\x{1dd3}-\x{1de6}\x{11080}\x{11081})" +
         newer([](const Newer& range) { return range.is_alphabetic; });
}

/// All assigned characters but controls, formats, private and surrogate ones.
std::string visible_items() {
  return R"(\p{L}\p{M}\p{N}\p{P}\p{S}\p{Z})" +
         newer([](const Newer& range) { return range.category != "Cf"; });
}

/// A class of characters by Oniguruma's name, without case, spaces, '_' and '-'.
struct Property {
  std::string items;        // between the brackets of a set
  bool is_negated = false;  // all characters except these
  bool has_case = false;    // (?i) would add letters to it
};

std::optional<Property> named_property(std::string_view name) {
  if (name == "any") return Property{R"(\x{0}-\x{10FFFF})"};
  if (name == "ascii") return Property{R"(\x00-\x7f)"};
  if (name == "alnum") return Property{alphabetic_items() + category_items("Nd")};
  if (name == "alpha" || name == "alphabetic") return Property{alphabetic_items()};
  if (name == "blank") return Property{R"(\p{Zs}\t)"};
  if (name == "cntrl") return Property{R"(\p{Cc})"};
  if (name == "digit") return Property{category_items("Nd")};
  if (name == "space" || name == "whitespace") return Property{std::string(kSpaceItems)};
  if (name == "word") return Property{word_items()};
  if (name == "xdigit") return Property{std::string(kHexadecimalItems)};
  if (name == "lower" || name == "lowercase")
    return Property{R"(\p{Lowercase}\x{10fc}\x{a7f2}-\x{a7f4}\x{ab69})" +
                        newer([](const Newer& range) { return range.is_lowercase; }),
                    false, true};
  if (name == "upper" || name == "uppercase")
    return Property{
        R"(\p{Uppercase})" + newer([](const Newer& range) { return range.is_uppercase; }), false,
        true};
  // Unassigned characters depend on the version of Unicode: only its complement is named.
  if (name == "c" || name == "other") return Property{visible_items(), true};
  if (name == "cn" || name == "unassigned")
    return Property{visible_items() + R"(\p{Cc}\p{Cf}\p{Co}\p{Cs})" +
                        newer([](const Newer& range) { return range.category == "Cf"; }),
                    true};
  return std::nullopt;
}

struct Category {
  std::string_view name;
  std::string_view short_name;
};

constexpr std::array kCategories = {
    Category{"control", "Cc"},
    Category{"format", "Cf"},
    Category{"privateuse", "Co"},
    Category{"surrogate", "Cs"},
    Category{"letter", "L"},
    Category{"lowercaseletter", "Ll"},
    Category{"modifierletter", "Lm"},
    Category{"otherletter", "Lo"},
    Category{"titlecaseletter", "Lt"},
    Category{"uppercaseletter", "Lu"},
    Category{"casedletter", "L&"},
    Category{"mark", "M"},
    Category{"combiningmark", "M"},
    Category{"spacingmark", "Mc"},
    Category{"enclosingmark", "Me"},
    Category{"nonspacingmark", "Mn"},
    Category{"number", "N"},
    Category{"decimalnumber", "Nd"},
    Category{"letternumber", "Nl"},
    Category{"othernumber", "No"},
    Category{"punctuation", "P"},
    Category{"punct", "P"},
    Category{"connectorpunctuation", "Pc"},
    Category{"dashpunctuation", "Pd"},
    Category{"closepunctuation", "Pe"},
    Category{"finalpunctuation", "Pf"},
    Category{"initialpunctuation", "Pi"},
    Category{"otherpunctuation", "Po"},
    Category{"openpunctuation", "Ps"},
    Category{"symbol", "S"},
    Category{"currencysymbol", "Sc"},
    Category{"modifiersymbol", "Sk"},
    Category{"mathsymbol", "Sm"},
    Category{"othersymbol", "So"},
    Category{"separator", "Z"},
    Category{"lineseparator", "Zl"},
    Category{"paragraphseparator", "Zp"},
    Category{"spaceseparator", "Zs"},
};

constexpr std::array<std::string_view, 32> kScripts = {
    "Arabic",   "Armenian",  "Bengali",   "Bopomofo", "Common",   "Cyrillic", "Devanagari",
    "Ethiopic", "Georgian",  "Greek",     "Gujarati", "Gurmukhi", "Han",      "Hangul",
    "Hebrew",   "Hiragana",  "Inherited", "Kannada",  "Katakana", "Khmer",    "Lao",
    "Latin",    "Malayalam", "Mongolian", "Myanmar",  "Oriya",    "Sinhala",  "Syriac",
    "Tamil",    "Telugu",    "Thai",      "Tibetan"};

char lower(char letter) {
  return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

std::string folded(std::string_view name) {
  std::string out;
  for (const char letter : name)
    if (letter != ' ' && letter != '_' && letter != '-') out += lower(letter);
  return out;
}

std::optional<Property> find_property(const std::string& name) {
  if (auto property = named_property(name)) return property;
  for (const Category& category : kCategories) {
    if (name != category.name && name != folded(category.short_name)) continue;
    const std::string_view letters = category.short_name;
    return Property{category_items(letters), false,
                    letters == "Lu" || letters == "Ll" || letters == "Lt"};
  }
  for (const std::string_view script : kScripts)
    if (name == folded(script))
      return Property{fmt::format("\\p{{sc:{}}}", script) +
                      newer([script](const Newer& range) { return range.script == script; })};
  return std::nullopt;
}

std::optional<uint32_t> control_character(char letter) {
  switch (letter) {
    case 't':
      return '\t';
    case 'n':
      return '\n';
    case 'v':
      return '\v';
    case 'f':
      return '\f';
    case 'r':
      return '\r';
    case 'a':
      return '\a';
    case 'e':
      return 0x1B;
    default:
      return std::nullopt;
  }
}

int digit_of(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  const char small = lower(letter);
  return small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
}

}  // namespace

const std::string& word_items() {
  static const std::string items =
      alphabetic_items() + category_items("M") + category_items("Nd") + category_items("Pc");
  return items;
}

char Scanner::peek(size_t ahead) const {
  return offset_ + ahead < text_.size() ? text_[offset_ + ahead] : '\0';
}

bool Scanner::accept(std::string_view text) {
  if (!text_.substr(std::min(offset_, text_.size())).starts_with(text)) return false;
  offset_ += text.size();
  return true;
}

std::optional<int64_t> Scanner::number() {
  int64_t value = 0;
  size_t digits = 0;
  while (digits < 9 && peek() >= '0' && peek() <= '9') {
    value = value * 10 + (next() - '0');
    ++digits;
  }
  return digits == 0 ? std::nullopt : std::optional(value);
}

Result<uint32_t> Scanner::character() {
  if (at_end()) return fault("the pattern ends too early");
  const CodePoint read = code_point_at(text_, offset_);
  offset_ += read.size;
  return read.value;
}

std::string escaped(uint32_t character) {
  constexpr std::string_view kMarks = R"(\^$.[]|()?*+{}-#&~ )";
  if (character < 0x20 || character == 0x7F) return fmt::format("\\x{{{:x}}}", character);
  std::string out;
  if (character < 0x80 && kMarks.find(static_cast<char>(character)) != std::string_view::npos)
    out += '\\';
  append_utf8(out, character);
  return out;
}

std::string SetItem::alone() const {
  if (character) return escaped(*character);
  if (!is_negated && items.starts_with("\\p{") && items.find('}') + 1 == items.size()) return items;
  return fmt::format("[{}{}]", is_negated ? "^" : "", items);
}

std::string SetReader::Union::pattern() const {
  if (patterns.empty()) return items.empty() ? "(?!)" : "[" + items + "]";
  std::string out = "(?:";
  if (!items.empty()) out += "[" + items + "]|";
  for (size_t i = 0; i < patterns.size(); ++i) out += (i > 0 ? "|" : "") + patterns[i];
  return out + ")";
}

Result<std::string> SetReader::set() {
  const size_t begin = in_.offset();
  in_.skip(1);
  if (depth_ >= kPatternDepthMax)
    return in_.fault(fmt::format("sets are more than {} deep", kPatternDepthMax));
  ++depth_;
  const bool is_negated = in_.accept("^");
  std::vector<Union> sides(1);
  for (bool is_first = true;; is_first = false) {
    if (in_.at_end()) return in_.fault_at(begin, "the set has no ']'");
    if (in_.peek() == ']' && !(is_first && in_.has_ahead(']'))) break;
    if (in_.accept("&&")) {
      sides.emplace_back();
      continue;
    }
    RETURN_IF_ERROR(read_element(sides.back(), is_first));
  }
  in_.skip(1);
  --depth_;
  if (sides.size() == 1 && sides[0].patterns.empty() && !sides[0].items.empty())
    return fmt::format("[{}{}]", is_negated ? "^" : "", sides[0].items);
  std::string out;
  for (size_t i = 0; i + 1 < sides.size(); ++i) out += "(?=" + sides[i].pattern() + ")";
  out += sides.back().pattern();
  return is_negated ? "(?:(?!" + out + ")(?s:.))" : "(?:" + out + ")";
}

Status SetReader::read_element(Union& into, bool is_first) {
  const size_t begin = in_.offset();
  if (in_.peek() == '[' && in_.peek(1) == ':') {
    ASSIGN_OR_RETURN(const SetItem item, posix_class());
    if (!item.is_negated)
      into.items += item.items;
    else
      into.patterns.push_back(item.alone());
    return ok();
  }
  if (in_.peek() == '[') {
    const auto inner = set();
    if (!inner.ok()) return inner.error();
    // A plain set is a part of the union; any other is an alternative to it.
    if (inner->starts_with('[') && !inner->starts_with("[^"))
      into.items.append(*inner, 1, inner->size() - 2);
    else
      into.patterns.push_back(*inner);
    return ok();
  }
  if (in_.peek() != '\\') {
    const bool is_dash = in_.peek() == '-';
    ASSIGN_OR_RETURN(const uint32_t character, in_.character());
    if (is_dash && !is_first && in_.peek() != ']' && !into.items.ends_with('-')) {
      // a dash behind a range or a class is itself
      into.items += "\\-";
      return ok();
    }
    return read_range(into, character, begin);
  }
  ASSIGN_OR_RETURN(const SetItem item, escaped_item());
  if (item.character) return read_range(into, *item.character, begin);
  if (item.is_negated)
    into.patterns.push_back(item.alone());
  else
    into.items += item.items;
  return ok();
}

Status SetReader::read_range(Union& into, uint32_t low, size_t begin) {
  into.items += escaped(low);
  if (in_.peek() != '-' || in_.peek(1) == ']' || in_.peek(1) == '\0') return ok();
  if (in_.peek(1) == '&' && in_.peek(2) == '&') return ok();
  in_.skip(1);
  uint32_t high = 0;
  if (in_.peek() == '[') return in_.fault_at(begin, "a range ends with a set");
  if (in_.peek() == '\\') {
    ASSIGN_OR_RETURN(const SetItem item, escaped_item());
    if (!item.character) return in_.fault_at(begin, "a range ends with a class of characters");
    high = *item.character;
  } else {
    ASSIGN_OR_RETURN(high, in_.character());
  }
  if (high < low) return in_.fault_at(begin, "the range is empty");
  into.items += "-" + escaped(high);
  return ok();
}

Result<SetItem> SetReader::escaped_item() {
  const size_t begin = in_.offset();
  in_.skip(1);
  if (in_.at_end()) return in_.fault_at(begin, "the pattern ends after '\\'");
  const char letter = in_.peek();
  const auto of = [&](std::string_view items, bool is_negated) {
    in_.skip(1);
    return SetItem{std::nullopt, std::string(items), is_negated};
  };
  switch (letter) {
    case 'd':
    case 'D':
      return of(category_items("Nd"), letter == 'D');
    case 'h':
    case 'H':
      return of(kHexadecimalItems, letter == 'H');
    case 's':
    case 'S':
      return of(kSpaceItems, letter == 'S');
    case 'w':
    case 'W':
      return of(word_items(), letter == 'W');
    case 'p':
    case 'P':
      in_.skip(1);
      return property(letter == 'P');
    case 'x':
    case 'u':
      return hexadecimal(begin);
    default:
      break;
  }
  if (const auto control = control_character(letter)) {
    in_.skip(1);
    return SetItem{*control, "", false};
  }
  const bool is_name =
      (letter >= '0' && letter <= '9') || (lower(letter) >= 'a' && lower(letter) <= 'z');
  if (is_name) return in_.fault_at(begin, fmt::format("'\\{}' is not supported", letter));
  ASSIGN_OR_RETURN(const uint32_t character, in_.character());
  return SetItem{character, "", false};
}

Result<SetItem> SetReader::hexadecimal(size_t begin) {
  const char letter = in_.next();
  const bool has_braces = letter == 'x' && in_.accept("{");
  const size_t most = has_braces ? 8 : letter == 'u' ? 4 : 2;
  uint64_t value = 0;
  size_t digits = 0;
  while (digits < most && digit_of(in_.peek()) >= 0) {
    value = value * 16 + static_cast<uint64_t>(digit_of(in_.next()));
    ++digits;
  }
  const bool is_short = digits == 0 || (letter == 'u' && digits < 4);
  if (is_short || (has_braces && !in_.accept("}")) ||
      (!has_braces && letter == 'x' && value > 0x7F))
    return in_.fault_at(begin, fmt::format("'\\{}' names no character", letter));
  if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
    return in_.fault_at(begin, "beyond the characters of Unicode");
  return SetItem{static_cast<uint32_t>(value), "", false};
}

Result<SetItem> SetReader::property(bool is_negated) {
  const size_t begin = in_.offset();
  if (!in_.accept("{")) return in_.fault_at(begin, "a property needs '{'");
  if (in_.accept("^")) is_negated = !is_negated;
  std::string name;
  while (!in_.at_end() && in_.peek() != '}') name += in_.next();
  if (!in_.accept("}")) return in_.fault_at(begin, "the property has no '}'");
  const auto found = find_property(folded(name));
  if (!found) return in_.fault_at(begin, fmt::format("property '{}' is not known", name));
  if (found->has_case && ignores_case_)
    return in_.fault_at(begin, fmt::format("property '{}' without case is not supported", name));
  return SetItem{std::nullopt, found->items, found->is_negated != is_negated};
}

Result<SetItem> SetReader::posix_class() {
  const size_t begin = in_.offset();
  in_.skip(2);
  const bool is_negated = in_.accept("^");
  std::string name;
  while (!in_.at_end() && in_.peek() != ':' && in_.peek() != ']') name += in_.next();
  if (!in_.accept(":]")) return in_.fault_at(begin, "the class has no ':]'");
  constexpr std::array<std::string_view, 11> kNames = {"alnum", "alpha", "ascii", "blank",
                                                       "cntrl", "digit", "lower", "space",
                                                       "upper", "word",  "xdigit"};
  if (std::ranges::find(kNames, name) != kNames.end()) {
    const auto found = find_property(name);
    if (found->has_case && ignores_case_)
      return in_.fault_at(begin, fmt::format("class '{}' without case is not supported", name));
    return SetItem{std::nullopt, found->items, found->is_negated != is_negated};
  }
  return in_.fault_at(begin, fmt::format("class '{}' is not known", name));
}

}  // namespace primerl
