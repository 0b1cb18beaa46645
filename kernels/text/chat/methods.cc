// The tests of chat templates, and the methods of strings, lists and mappings.
#include <algorithm>

#include "kernels/text/chat/evaluator.h"
#include "kernels/text/chat/strings.h"
#include "kernels/text/unicode.h"

namespace primerl::chat {

enum class Test : uint8_t {
  kBoolean,
  kCallable,
  kDefined,
  kDivisibleBy,
  kEqual,
  kEven,
  kFalse,
  kFloat,
  kGreater,
  kGreaterEqual,
  kIn,
  kInteger,
  kIterable,
  kLess,
  kLessEqual,
  kLower,
  kMapping,
  kNone,
  kNotEqual,
  kNumber,
  kOdd,
  kSameAs,
  kSequence,
  kString,
  kTrue,
  kUndefined,
  kUpper
};

enum class Method : uint8_t {
  kCapitalize,
  kCount,
  kCycle,
  kEndsWith,
  kFind,
  kGet,
  kIndex,
  kIsAlpha,
  kIsDigit,
  kIsSpace,
  kItems,
  kJoin,
  kKeys,
  kLeftStrip,
  kLower,
  kRemovePrefix,
  kRemoveSuffix,
  kReplace,
  kRightFind,
  kRightSplit,
  kRightStrip,
  kSplit,
  kSplitLines,
  kStartsWith,
  kStrip,
  kTitle,
  kUpper,
  kValues
};

namespace {

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"boolean", Test::kBoolean},
    {"callable", Test::kCallable},
    {"defined", Test::kDefined},
    {"divisibleby", Test::kDivisibleBy},
    {"eq", Test::kEqual},
    {"equalto", Test::kEqual},
    {"even", Test::kEven},
    {"false", Test::kFalse},
    {"float", Test::kFloat},
    {"ge", Test::kGreaterEqual},
    {"greaterthan", Test::kGreater},
    {"gt", Test::kGreater},
    {"in", Test::kIn},
    {"integer", Test::kInteger},
    {"iterable", Test::kIterable},
    {"le", Test::kLessEqual},
    {"lessthan", Test::kLess},
    {"lower", Test::kLower},
    {"lt", Test::kLess},
    {"mapping", Test::kMapping},
    {"ne", Test::kNotEqual},
    {"none", Test::kNone},
    {"number", Test::kNumber},
    {"odd", Test::kOdd},
    {"sameas", Test::kSameAs},
    {"sequence", Test::kSequence},
    {"string", Test::kString},
    {"true", Test::kTrue},
    {"undefined", Test::kUndefined},
    {"upper", Test::kUpper},
};

constexpr std::pair<std::string_view, Method> kMethods[] = {
    {"capitalize", Method::kCapitalize},
    {"count", Method::kCount},
    {"cycle", Method::kCycle},
    {"endswith", Method::kEndsWith},
    {"find", Method::kFind},
    {"get", Method::kGet},
    {"index", Method::kIndex},
    {"isalpha", Method::kIsAlpha},
    {"isdigit", Method::kIsDigit},
    {"isspace", Method::kIsSpace},
    {"items", Method::kItems},
    {"join", Method::kJoin},
    {"keys", Method::kKeys},
    {"lower", Method::kLower},
    {"lstrip", Method::kLeftStrip},
    {"removeprefix", Method::kRemovePrefix},
    {"removesuffix", Method::kRemoveSuffix},
    {"replace", Method::kReplace},
    {"rfind", Method::kRightFind},
    {"rsplit", Method::kRightSplit},
    {"rstrip", Method::kRightStrip},
    {"split", Method::kSplit},
    {"splitlines", Method::kSplitLines},
    {"startswith", Method::kStartsWith},
    {"strip", Method::kStrip},
    {"title", Method::kTitle},
    {"upper", Method::kUpper},
    {"values", Method::kValues},
};

using Arguments = Evaluator::Arguments;

bool all_characters(std::string_view text, bool (*is_met)(uint32_t)) {
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    if (!is_met(c.value)) return false;
    i += std::max<size_t>(c.size, 1);
  }
  return !text.empty();
}

bool is_ascii_digit(uint32_t c) { return c >= '0' && c <= '9'; }
bool is_letter(uint32_t c) {
  return c < 0x80 ? to_lower(c) >= 'a' && to_lower(c) <= 'z' : is_word_character(c);
}

/// Whether some letter has a case and none has the other one.
bool has_case(std::string_view text, bool upper) {
  bool has_any = false;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = code_point_at(text, i);
    if (to_upper(c.value) != to_lower(c.value)) {
      if ((upper ? to_upper(c.value) : to_lower(c.value)) != c.value) return false;
      has_any = true;
    }
    i += std::max<size_t>(c.size, 1);
  }
  return has_any;
}

bool is_ordered(Test test, const Value& value, const Value& other) {
  int order = 0;
  if (!compare(value, other, order)) return false;
  switch (test) {
    case Test::kGreater:
      return order > 0;
    case Test::kGreaterEqual:
      return order >= 0;
    case Test::kLess:
      return order < 0;
    default:
      return order <= 0;
  }
}

/// Whether the text begins (or ends) with the argument, or with one of a tuple of them.
bool affixed(const Value& text, const Value& affix, bool at_start) {
  if (affix.is_list())
    return std::any_of(affix.items().begin(), affix.items().end(),
                       [&](const Value& each) { return affixed(text, each, at_start); });
  if (!affix.is_text()) return false;
  return at_start ? text.bytes().starts_with(affix.bytes()) : text.bytes().ends_with(affix.bytes());
}

Value position_in(Text& text, std::string_view part, bool from_right) {
  const size_t found = from_right ? text.bytes.rfind(part) : text.bytes.find(part);
  if (found == std::string_view::npos) return Value::integer(-1);
  const size_t before =
      text.ascii() ? found : character_offsets_of(text.bytes.substr(0, found)).size() - 1;
  return Value::integer(static_cast<int64_t>(before));
}

Value dict_method(Evaluator& evaluator, const Expression& at, const Value& object,
                  const Arguments& arguments) {
  const Dict& dict = object.as_dict();
  const auto method = static_cast<Method>(at.callee);
  if (method == Method::kGet) {
    const Value* key = arguments.find(0, "key");
    if (key == nullptr) return evaluator.fail(at, "get needs a key");
    evaluator.charge(at, 1 + dict.entries.size() / 8);
    if (const Value* found = dict.find(*key); found != nullptr) return *found;
    const Value* fallback = arguments.find(1, "default");
    return fallback == nullptr ? Value::none() : *fallback;
  }
  if (!evaluator.charge(at, dict.entries.size())) return {};
  std::vector<Value> items;
  for (const auto& [key, value] : dict.entries) {
    if (method == Method::kKeys)
      items.push_back(key);
    else if (method == Method::kValues)
      items.push_back(value);
    else if (method == Method::kItems)
      items.push_back(Value::list({key, value}, object.origin(), Kind::kTuple));
    else
      return evaluator.fail(at, "a mapping has no method '{}'", at.text);
  }
  if (method != Method::kKeys && method != Method::kValues && method != Method::kItems)
    return evaluator.fail(at, "a mapping has no method '{}'", at.text);
  return Value::list(std::move(items), object.origin());
}

Value list_method(Evaluator& evaluator, const Expression& at, const Value& object,
                  const Arguments& arguments) {
  const auto method = static_cast<Method>(at.callee);
  const Value* item = arguments.find(0, "value");
  if (item == nullptr || (method != Method::kCount && method != Method::kIndex))
    return evaluator.fail(at, "the method '{}' of a list is not supported", at.text);
  if (!evaluator.charge(at, object.weight())) return {};
  int64_t count = 0;
  for (size_t i = 0; i < object.items().size(); ++i) {
    if (!equal(object.items()[i], *item)) continue;
    if (method == Method::kIndex) return Value::integer(static_cast<int64_t>(i));
    ++count;
  }
  if (method == Method::kIndex) return evaluator.fail(at, "the value is not in the list");
  return Value::integer(count);
}

/// split, rsplit, splitlines.
Value split_method(Evaluator& evaluator, const Expression& at, const Value& object,
                   const Arguments& arguments) {
  const auto method = static_cast<Method>(at.callee);
  const TextRef text = object.text_ref();
  if (method == Method::kSplitLines) {
    const Value* keeps = arguments.find(0, "keepends");
    return Value::list(split_lines(text, keeps != nullptr && keeps->is_true()), object.origin());
  }
  const Value* separator = arguments.find(0, "sep");
  const Value* most = arguments.find(1, "maxsplit");
  const int64_t splits_max = most != nullptr && most->is_whole() ? most->as_int() : -1;
  const bool has_separator = separator != nullptr && !separator->is(Kind::kNone);
  if (has_separator && (!separator->is_text() || separator->bytes().empty()))
    return evaluator.fail(at, "the separator of split is empty or no string");
  if (!has_separator && method == Method::kRightSplit && splits_max >= 0)
    return evaluator.fail(at, "rsplit at white space with a bound is not supported");
  const std::string_view cut = has_separator ? separator->bytes() : std::string_view();
  auto pieces = method == Method::kSplit || !has_separator
                    ? split(text, cut, splits_max)
                    : split_from_right(text, cut, splits_max);
  if (!evaluator.charge(at, pieces.size())) return {};
  return Value::list(std::move(pieces));
}

Value text_method(Evaluator& evaluator, const Expression& at, const Value& object,
                  Arguments arguments) {
  const auto method = static_cast<Method>(at.callee);
  const TextRef text = object.text_ref();
  const Value* first = arguments.values.empty() ? nullptr : arguments.values.data();
  const bool has_text = first != nullptr && first->is_text();
  if (!evaluator.charge(at, 1, text->bytes.size() / 16)) return {};
  const auto cased = [&](Case to) { return Value::text(in_case(*text, to)); };
  const auto strip = [&](Side side) {
    return Value::text(stripped(text, side, has_text ? first->bytes() : std::string_view()));
  };
  switch (method) {
    case Method::kUpper:
      return cased(Case::kUpper);
    case Method::kLower:
      return cased(Case::kLower);
    case Method::kCapitalize:
      return cased(Case::kCapital);
    case Method::kTitle:
      return cased(Case::kTitle);
    case Method::kStrip:
      return strip(Side::kBoth);
    case Method::kLeftStrip:
      return strip(Side::kLeft);
    case Method::kRightStrip:
      return strip(Side::kRight);
    case Method::kSplit:
    case Method::kRightSplit:
    case Method::kSplitLines:
      return split_method(evaluator, at, object, arguments);
    case Method::kIsDigit:
      return Value::truth(all_characters(text->bytes, is_ascii_digit));
    case Method::kIsAlpha:
      return Value::truth(all_characters(text->bytes, is_letter));
    case Method::kIsSpace:
      return Value::truth(all_characters(text->bytes, is_white_space));
    case Method::kReplace: {
      Filter filter{};
      (void)find_filter("replace", filter);
      return evaluator.apply_filter(at, filter, object, arguments);
    }
    case Method::kJoin: {
      if (first == nullptr) return evaluator.fail(at, "join needs a list");
      Filter filter{};
      (void)find_filter("join", filter);
      Arguments between;
      between.values.push_back(object);
      return evaluator.apply_filter(at, filter, *first, between);
    }
    default:
      break;
  }
  if (method == Method::kStartsWith || method == Method::kEndsWith) {
    if (first == nullptr || (!first->is_text() && !first->is_list()))
      return evaluator.fail(at, "'{}' needs a string", at.text);
    return Value::truth(affixed(object, *first, method == Method::kStartsWith));
  }
  if (method == Method::kItems || method == Method::kKeys || method == Method::kValues ||
      method == Method::kGet || method == Method::kCycle)
    return evaluator.fail(at, "a string has no method '{}'", at.text);
  if (!has_text) return evaluator.fail(at, "'{}' needs a string", at.text);
  const std::string_view part = first->bytes();
  switch (method) {
    case Method::kRemovePrefix:
      return Value::text(
          part_of(text, text->bytes.starts_with(part) ? part.size() : 0, text->bytes.size()));
    case Method::kRemoveSuffix:
      return Value::text(
          part_of(text, 0, text->bytes.size() - (text->bytes.ends_with(part) ? part.size() : 0)));
    case Method::kFind:
      return position_in(*text, part, false);
    case Method::kRightFind:
      return position_in(*text, part, true);
    case Method::kIndex: {
      Value found = position_in(*text, part, false);
      return found.as_int() < 0 ? evaluator.fail(at, "the string is not in the other one") : found;
    }
    default:
      return Value::integer(part.empty()
                                ? static_cast<int64_t>(character_offsets_of(text->bytes).size())
                                : static_cast<int64_t>(split(text, part, -1).size()) - 1);
  }
}

}  // namespace

bool find_test(std::string_view name, Test& test) {
  for (const auto& [known, value] : kTests) {
    if (known != name) continue;
    test = value;
    return true;
  }
  return false;
}

std::vector<std::string> test_names() {
  std::vector<std::string> names;
  for (const auto& [name, test] : kTests) names.emplace_back(name);
  return names;
}

bool find_method(std::string_view name, Method& method) {
  for (const auto& [known, value] : kMethods) {
    if (known != name) continue;
    method = value;
    return true;
  }
  return false;
}

bool Evaluator::apply_test(const Expression& at, Test test, const Value& value,
                           const Arguments& arguments) {
  const Value* other = arguments.find(0, "other");
  const bool needs_other = test == Test::kDivisibleBy || test == Test::kEqual ||
                           test == Test::kNotEqual || test == Test::kIn || test == Test::kSameAs ||
                           test == Test::kGreater || test == Test::kGreaterEqual ||
                           test == Test::kLess || test == Test::kLessEqual;
  if (needs_other && other == nullptr) {
    fail(at, "the test '{}' needs a value", at.text);
    return false;
  }
  if (needs_other && !charge(at, value.weight())) return false;
  switch (test) {
    case Test::kBoolean:
      return value.is(Kind::kBool);
    case Test::kCallable:
      return value.is(Kind::kMacro) || value.is(Kind::kFunction);
    case Test::kDefined:
      return !value.is(Kind::kUndefined);
    case Test::kUndefined:
      return value.is(Kind::kUndefined);
    case Test::kNone:
      return value.is(Kind::kNone);
    case Test::kTrue:
      return value.is(Kind::kBool) && value.is_true();
    case Test::kFalse:
      return value.is(Kind::kBool) && !value.is_true();
    case Test::kInteger:
      return value.is(Kind::kInt);
    case Test::kFloat:
      return value.is(Kind::kFloat);
    case Test::kNumber:
      return value.is_number();
    case Test::kString:
      return value.is_text();
    case Test::kMapping:
      return value.is_dict();
    case Test::kSequence:
    case Test::kIterable:
      return value.is_text() || value.is_list() || value.is_dict() || value.is(Kind::kUndefined) ||
             (test == Test::kIterable && value.is(Kind::kLoop));
    case Test::kUpper:
    case Test::kLower:
      return value.is_text() && has_case(value.bytes(), test == Test::kUpper);
    case Test::kEven:
    case Test::kOdd:
    case Test::kDivisibleBy: {
      const int64_t by = other == nullptr ? 2 : (other->is_whole() ? other->as_int() : 0);
      if (!value.is_whole() || by == 0) {
        fail(at, "the test '{}' needs whole numbers that are not 0", at.text);
        return false;
      }
      const bool divides = by == -1 || value.as_int() % by == 0;
      return divides == (test != Test::kOdd);
    }
    case Test::kEqual:
      return equal(value, *other);
    case Test::kNotEqual:
      return !equal(value, *other);
    case Test::kSameAs:
      return value.kind() == other->kind() && equal(value, *other);
    case Test::kIn:
      return contains(at, *other, value);
    default:
      return is_ordered(test, value, *other);
  }
}

Value Evaluator::apply_method(const Expression& at, const Value& object,
                              const Arguments& arguments) {
  if (object.is_text()) return text_method(*this, at, object, arguments);
  if (object.is_dict() || object.is(Kind::kNamespace))
    return dict_method(*this, at, object, arguments);
  if (object.is_list()) return list_method(*this, at, object, arguments);
  if (object.is(Kind::kLoop) && static_cast<Method>(at.callee) == Method::kCycle) {
    if (arguments.values.empty()) return fail(at, "loop.cycle needs values");
    return arguments.values[static_cast<size_t>(object.as_loop().index) % arguments.values.size()];
  }
  if (object.is(Kind::kUndefined))
    return fail(at, "'{}' is undefined, so it has no method '{}'", shown(*at.operands[0]), at.text);
  return fail(at, "{} has no method '{}'", name_of(object.kind()), at.text);
}

}  // namespace primerl::chat
