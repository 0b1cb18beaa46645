// The filters of chat templates.
#include "kernels/text/chat/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "kernels/text/chat/strings.h"

namespace primerl::chat {

namespace {

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"abs", Filter::kAbs},
    {"capitalize", Filter::kCapitalize},
    {"count", Filter::kLength},
    {"d", Filter::kDefault},
    {"default", Filter::kDefault},
    {"dictsort", Filter::kDictSort},
    {"first", Filter::kFirst},
    {"float", Filter::kFloat},
    {"indent", Filter::kIndent},
    {"int", Filter::kInt},
    {"items", Filter::kItems},
    {"join", Filter::kJoin},
    {"last", Filter::kLast},
    {"length", Filter::kLength},
    {"list", Filter::kList},
    {"lower", Filter::kLower},
    {"map", Filter::kMap},
    {"max", Filter::kMax},
    {"min", Filter::kMin},
    {"reject", Filter::kReject},
    {"rejectattr", Filter::kRejectAttr},
    {"replace", Filter::kReplace},
    {"reverse", Filter::kReverse},
    {"safe", Filter::kSafe},
    {"select", Filter::kSelect},
    {"selectattr", Filter::kSelectAttr},
    {"sort", Filter::kSort},
    {"string", Filter::kString},
    {"sum", Filter::kSum},
    {"title", Filter::kTitle},
    {"tojson", Filter::kToJson},
    {"trim", Filter::kTrim},
    {"unique", Filter::kUnique},
    {"upper", Filter::kUpper},
};

using Arguments = Evaluator::Arguments;

/// The value as the text that `{{ value }}` prints.
TextRef text_of_value(Evaluator& evaluator, const Expression& at, const Value& value) {
  if (value.is_text()) {
    evaluator.charge(at, 1, value.bytes().size() / 4);
    return value.text_ref();
  }
  TextBuilder text;
  if (evaluator.charge(at, value.weight())) append_text(text, value);
  evaluator.charge(at, 1, text.size());
  return std::move(text).finish();
}

Value to_json(Evaluator& evaluator, const Expression& at, const Value& value,
              const Arguments& arguments) {
  JsonStyle style;
  style.ascii = flag(arguments, 0, "ensure_ascii");
  style.sorts_keys = flag(arguments, 3, "sort_keys");
  if (const Value* indent = arguments.find(1, "indent"); indent != nullptr && indent->is_whole()) {
    if (indent->as_int() < 0 || indent->as_int() > 16)
      return evaluator.fail(at, "tojson indents by 0 to 16 spaces, not {}", indent->as_int());
    style.indent = static_cast<int>(indent->as_int());
    style.item_separator = ",";
  }
  if (const Value* given = arguments.find(2, "separators"); given != nullptr && given->is_list()) {
    if (given->items().size() != 2 || !given->items()[0].is_text() || !given->items()[1].is_text())
      return evaluator.fail(at, "separators of tojson are two strings");
    style.item_separator = given->items()[0].bytes();
    style.key_separator = given->items()[1].bytes();
  }
  if (!evaluator.charge(at, value.weight())) return {};
  TextBuilder text;
  if (const auto fault = append_json(text, value, style); !fault.empty())
    return evaluator.fail(at, "JSON has no {}: '{}'", fault, shown(at));
  evaluator.charge(at, 1, text.size());
  return Value::text(std::move(text).finish());
}

Value join_items(Evaluator& evaluator, const Expression& at, const Value& value,
                 const Arguments& arguments) {
  const Value* between = arguments.find(0, "d");
  const Value* attribute = arguments.find(1, "attribute");
  TextBuilder text;
  bool is_first = true;
  for (const Value& item : evaluator.items_of(at, value)) {
    const size_t before = text.size();
    if (!is_first && between != nullptr) append_text(text, *between);
    is_first = false;
    const Value shown_item =
        attribute == nullptr ? item : attribute_path(evaluator, at, item, *attribute);
    if (!evaluator.charge(at, shown_item.weight())) return {};
    append_text(text, shown_item);
    if (!evaluator.charge(at, 1, text.size() - before)) return {};
  }
  return Value::text(std::move(text).finish());
}

Value to_number(Evaluator& evaluator, const Expression& at, Filter filter, const Value& value,
                const Arguments& arguments) {
  const bool to_int = filter == Filter::kInt;
  const Origin origin = value.origin();
  const Value* given = arguments.find(0, "default");
  const Value fallback =
      given != nullptr ? *given : (to_int ? Value::integer(0, origin) : Value::real(0, origin));
  double real = 0;
  if (value.is_number()) {
    real = value.as_real();
    if (to_int && value.is_whole()) return Value::integer(value.as_int(), origin);
  } else if (value.is_text()) {
    const std::string text(stripped(value.text_ref(), Side::kBoth, {})->bytes);
    int64_t whole = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), whole);
    if (to_int && !text.empty() && read.ptr == text.data() + text.size() && read.ec == std::errc())
      return Value::integer(whole, origin);
    const auto found = std::from_chars(text.data(), text.data() + text.size(), real);
    if (text.empty() || found.ptr != text.data() + text.size() || found.ec != std::errc())
      return fallback;
  } else {
    return fallback;
  }
  if (!to_int) return Value::real(real, origin);
  if (!(std::fabs(real) < 9e18))
    return evaluator.fail(at, "the number {} has more than 64 bits", real);
  return Value::integer(static_cast<int64_t>(real), origin);
}

Value indent_text(Evaluator& evaluator, const Expression& at, const Value& value,
                  const Arguments& arguments) {
  std::string indent(4, ' ');
  if (const Value* width = arguments.find(0, "width"); width != nullptr) {
    if (width->is_text()) {
      indent = width->bytes();
    } else if (!width->is_whole() || width->as_int() < 0 || width->as_int() > 256) {
      return evaluator.fail(at, "indent allows 0 to 256 spaces");
    } else {
      indent.assign(static_cast<size_t>(width->as_int()), ' ');
    }
  }
  const TextRef text = text_of_value(evaluator, at, value);
  const auto lines =
      static_cast<size_t>(std::count(text->bytes.begin(), text->bytes.end(), '\n')) + 1;
  if (!evaluator.charge(at, 1, text->bytes.size() + lines * indent.size())) return {};
  return Value::text(
      indented(text, indent, flag(arguments, 1, "first"), flag(arguments, 2, "blank")));
}

Value length_of(Evaluator& evaluator, const Expression& at, const Value& value) {
  int64_t length = 0;
  if (value.is_text()) {
    Text& text = value.as_text();
    evaluator.charge(at, 1, text.ascii() ? 0 : text.bytes.size());
    length = static_cast<int64_t>(text.ascii() ? text.bytes.size()
                                               : character_offsets_of(text.bytes).size() - 1);
  } else if (value.is_list()) {
    length = static_cast<int64_t>(value.items().size());
  } else if (value.is_dict()) {
    length = static_cast<int64_t>(value.as_dict().entries.size());
  } else if (!value.is(Kind::kUndefined)) {
    return evaluator.fail(at, "{} has no length", name_of(value.kind()));
  }
  return Value::integer(length, value.is_text() ? kFromTemplate : value.origin());
}

Value replace_text(Evaluator& evaluator, const Expression& at, const Value& value,
                   const Arguments& arguments) {
  const Value* old = arguments.find(0, "old");
  const Value* by = arguments.find(1, "new");
  const Value* count = arguments.find(2, "count");
  if (old == nullptr || by == nullptr) return evaluator.fail(at, "replace needs two strings");
  const TextRef text = text_of_value(evaluator, at, value);
  const TextRef old_text = text_of_value(evaluator, at, *old);
  const TextRef new_text = text_of_value(evaluator, at, *by);
  const size_t size = text->bytes.size();
  // Bounded before it is made: each place may grow by the new text.
  const size_t places = old_text->bytes.empty() ? size + 1 : size / old_text->bytes.size();
  size_t found = places;
  if (new_text->bytes.size() > old_text->bytes.size() && !old_text->bytes.empty()) {
    found = 0;
    for (size_t i = text->bytes.find(old_text->bytes); i != std::string_view::npos;
         i = text->bytes.find(old_text->bytes, i + old_text->bytes.size()))
      ++found;
  }
  if (!evaluator.charge(at, 1, size + found * new_text->bytes.size())) return {};
  const int64_t most = count != nullptr && count->is_whole() ? count->as_int() : -1;
  return Value::text(replaced(text, old_text->bytes, *new_text, most));
}

Value first_or_last(Evaluator& evaluator, const Expression& at, const Value& value, bool first) {
  if (value.is_list() && !value.items().empty())
    return first ? value.items().front() : value.items().back();
  auto items = evaluator.items_of(at, value);
  if (items.empty()) return {};
  return first ? items.front() : items.back();
}

}  // namespace

bool find_filter(std::string_view name, Filter& filter) {
  for (const auto& [known, value] : kFilters) {
    if (known != name) continue;
    filter = value;
    return true;
  }
  return false;
}

std::vector<std::string> filter_names() {
  std::vector<std::string> names;
  for (const auto& [name, filter] : kFilters) names.emplace_back(name);
  return names;
}

Value Evaluator::apply_filter(const Expression& at, Filter filter, const Value& value,
                              Arguments& arguments) {
  const auto cased = [&](Case to) {
    return Value::text(in_case(*text_of_value(*this, at, value), to));
  };
  switch (filter) {
    case Filter::kAbs:
      if (!value.is_number()) return fail(at, "abs of {}", name_of(value.kind()));
      if (value.is_whole() && value.as_int() == INT64_MIN)
        return fail(at, "the result of abs has more than 64 bits");
      return value.is(Kind::kFloat)
                 ? Value::real(std::fabs(value.as_real()), value.origin())
                 : Value::integer(std::max(value.as_int(), -value.as_int()), value.origin());
    case Filter::kCapitalize:
      return cased(Case::kCapital);
    case Filter::kTitle:
      return cased(Case::kTitle);
    case Filter::kUpper:
      return cased(Case::kUpper);
    case Filter::kLower:
      return cased(Case::kLower);
    case Filter::kDefault: {
      const Value* given = arguments.find(0, "default_value");
      const bool is_missing =
          value.is(Kind::kUndefined) || (flag(arguments, 1, "boolean") && !value.is_true());
      if (!is_missing) return value;
      return given == nullptr ? Value::text(view_of({}, kFromTemplate)) : *given;
    }
    case Filter::kDictSort:
      return dict_sort(*this, at, value, arguments);
    case Filter::kFirst:
    case Filter::kLast:
      return first_or_last(*this, at, value, filter == Filter::kFirst);
    case Filter::kFloat:
    case Filter::kInt:
      return to_number(*this, at, filter, value, arguments);
    case Filter::kIndent:
      return indent_text(*this, at, value, arguments);
    case Filter::kItems: {
      if (value.is(Kind::kUndefined)) return Value::list({});
      if (!value.is_dict()) return fail(at, "items of {}", name_of(value.kind()));
      std::vector<Value> items;
      for (const auto& [key, each] : value.as_dict().entries)
        items.push_back(Value::list({key, each}, value.origin(), Kind::kTuple));
      return Value::list(std::move(items), value.origin());
    }
    case Filter::kJoin:
      return join_items(*this, at, value, arguments);
    case Filter::kLength:
      return length_of(*this, at, value);
    case Filter::kList:
      return Value::list(items_of(at, value), value.origin());
    case Filter::kMap:
      return mapped(*this, at, value, arguments);
    case Filter::kMax:
    case Filter::kMin:
    case Filter::kSort:
    case Filter::kUnique:
      return ordered(*this, at, filter, value, arguments);
    case Filter::kReject:
    case Filter::kRejectAttr:
    case Filter::kSelect:
    case Filter::kSelectAttr:
      return selected(*this, at, filter, value, arguments);
    case Filter::kReplace:
      return replace_text(*this, at, value, arguments);
    case Filter::kReverse: {
      auto items = items_of(at, value);
      std::reverse(items.begin(), items.end());
      if (!value.is_text()) return Value::list(std::move(items), value.origin());
      TextBuilder text;
      for (const Value& item : items) text.append(item.as_text());
      return Value::text(std::move(text).finish());
    }
    case Filter::kSafe:
    case Filter::kString:
      return Value::text(text_of_value(*this, at, value));
    case Filter::kSum:
      return sum_of(*this, at, value, arguments);
    case Filter::kToJson:
      return to_json(*this, at, value, arguments);
    case Filter::kTrim: {
      const Value* chars = arguments.find(0, "chars");
      const bool has_chars = chars != nullptr && chars->is_text();
      return Value::text(stripped(text_of_value(*this, at, value), Side::kBoth,
                                  has_chars ? chars->bytes() : std::string_view()));
    }
  }
  return {};
}

}  // namespace primerl::chat
