// The filters of chat templates that sort, choose and map.
#include "kernels/text/chat/filters.h"

#include <algorithm>
#include <charconv>

#include "kernels/text/chat/strings.h"

namespace primerl::chat {
namespace {

using Arguments = Evaluator::Arguments;

// Each may be the filter of a map in a map.
constexpr size_t kMapArgumentsMax = 16;

Value without_case(const Value& value) {
  return value.is_text() ? Value::text(in_case(value.as_text(), Case::kLower)) : value;
}

/// Sorts by keys; false if two have no order.
bool sort_by(std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  bool is_ordered = true;
  const auto less = [&](const auto& a, const auto& b) {
    int order = 0;
    if (!compare(a.first, b.first, order)) is_ordered = false;
    return reverse ? order > 0 : order < 0;
  };
  std::stable_sort(keyed.begin(), keyed.end(), less);
  return is_ordered;
}

/// sort, unique, min, max: items by a key.
std::vector<std::pair<Value, Value>> keyed_items(Evaluator& evaluator, const Expression& at,
                                                 const Value& value, bool ignores_case,
                                                 const Value* attribute) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : evaluator.items_of(at, value)) {
    Value key = attribute == nullptr || attribute->is(Kind::kNone)
                    ? item
                    : attribute_path(evaluator, at, item, *attribute);
    if (evaluator.failed()) break;
    keyed.emplace_back(ignores_case ? without_case(key) : key, std::move(item));
  }
  evaluator.charge(at, keyed.size() * 16);
  return keyed;
}

}  // namespace

bool flag(const Arguments& arguments, size_t index, std::string_view name) {
  const Value* given = arguments.find(index, name);
  return given != nullptr && given->is_true();
}

Value attribute_path(Evaluator& evaluator, const Expression& at, Value value, const Value& path) {
  if (!path.is_text()) return evaluator.item_of(at, value, path);
  for (const Value& part : split(path.text_ref(), ".", -1)) {
    if (evaluator.failed()) return {};
    int64_t index = 0;
    const std::string_view name = part.bytes();
    const auto read = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool is_index = !name.empty() && read.ptr == name.data() + name.size();
    if (value.is(Kind::kUndefined))
      return evaluator.fail(at, "a value without '{}' has no '{}'", path.bytes(), name);
    value = evaluator.item_of(at, value, is_index ? Value::integer(index) : part);
  }
  return value;
}

Value dict_sort(Evaluator& evaluator, const Expression& at, const Value& value,
                const Arguments& arguments) {
  if (!value.is_dict())
    return evaluator.fail(at, "dictsort needs a mapping, not {}", name_of(value.kind()));
  const Value* by = arguments.find(1, "by");
  const bool by_value = by != nullptr && by->is_text() && by->bytes() == "value";
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, each] : value.as_dict().entries) {
    Value sort_key = by_value ? each : key;
    if (!flag(arguments, 0, "case_sensitive")) sort_key = without_case(sort_key);
    keyed.emplace_back(std::move(sort_key), Value::list({key, each}, value.origin(), Kind::kTuple));
  }
  if (!evaluator.charge(at, keyed.size() * 16)) return {};
  if (!sort_by(keyed, flag(arguments, 2, "reverse")))
    return evaluator.fail(at, "the keys of dictsort have no order");
  std::vector<Value> items;
  for (auto& each : keyed) items.push_back(std::move(each.second));
  return Value::list(std::move(items), value.origin());
}

Value ordered(Evaluator& evaluator, const Expression& at, Filter filter, const Value& value,
              const Arguments& arguments) {
  const bool is_sort = filter == Filter::kSort;
  const bool reverse = is_sort && flag(arguments, 0, "reverse");
  const bool ignores_case = !flag(arguments, is_sort ? 1 : 0, "case_sensitive");
  auto keyed =
      keyed_items(evaluator, at, value, ignores_case, arguments.find(is_sort ? 2 : 1, "attribute"));
  if (evaluator.failed()) return {};
  std::vector<Value> items;
  if (filter == Filter::kUnique) {
    for (size_t i = 0; i < keyed.size(); ++i) {
      if (!evaluator.charge(at, i)) return {};
      const auto end = keyed.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::none_of(keyed.begin(), end,
                       [&](const auto& each) { return equal(each.first, keyed[i].first); }))
        items.push_back(keyed[i].second);
    }
    return Value::list(std::move(items), value.origin());
  }
  if (!sort_by(keyed, filter == Filter::kMax || reverse))
    return evaluator.fail(at, "the values of '{}' have no order", at.text);
  if (!is_sort) return keyed.empty() ? Value() : keyed.front().second;
  for (auto& each : keyed) items.push_back(std::move(each.second));
  return Value::list(std::move(items), value.origin());
}

Value mapped(Evaluator& evaluator, const Expression& at, const Value& value, Arguments& arguments) {
  std::vector<Value> items;
  Filter filter{};
  const Value* attribute = arguments.values.empty() ? arguments.find(0, "attribute") : nullptr;
  const Value* fallback = arguments.find(1, "default");
  if (attribute == nullptr) {
    if (arguments.values.empty() || !arguments.values[0].is_text())
      return evaluator.fail(at, "map needs a filter or an attribute");
    if (!find_filter(arguments.values[0].bytes(), filter))
      return evaluator.fail(at, "the filter '{}' is not supported", arguments.values[0].bytes());
    if (arguments.values.size() > kMapArgumentsMax)
      return evaluator.fail(at, "map has more than {} arguments", kMapArgumentsMax);
  }
  Arguments rest;
  if (attribute == nullptr) {
    rest.values.assign(arguments.values.begin() + 1, arguments.values.end());
    rest.named = arguments.named;
  }
  for (Value& item : evaluator.items_of(at, value)) {
    if (evaluator.failed()) return {};
    if (attribute == nullptr) {
      items.push_back(evaluator.apply_filter(at, filter, item, rest));
      continue;
    }
    items.push_back(attribute_path(evaluator, at, item, *attribute));
    if (items.back().is(Kind::kUndefined) && fallback != nullptr) items.back() = *fallback;
  }
  return Value::list(std::move(items), value.origin());
}

Value selected(Evaluator& evaluator, const Expression& at, Filter filter, const Value& value,
               const Arguments& arguments) {
  const bool by_attribute = filter == Filter::kSelectAttr || filter == Filter::kRejectAttr;
  const bool keeps = filter == Filter::kSelect || filter == Filter::kSelectAttr;
  const size_t first = by_attribute ? 1 : 0;
  if (by_attribute && arguments.values.empty())
    return evaluator.fail(at, "{} needs the name of an attribute", at.text);
  Test test{};
  const bool has_test = arguments.values.size() > first;
  if (has_test &&
      (!arguments.values[first].is_text() || !find_test(arguments.values[first].bytes(), test)))
    return evaluator.fail(at, "the test of '{}' is not supported", at.text);
  Arguments rest;
  if (has_test)
    rest.values.assign(arguments.values.begin() + static_cast<std::ptrdiff_t>(first) + 1,
                       arguments.values.end());
  std::vector<Value> items;
  for (Value& item : evaluator.items_of(at, value)) {
    const Value tested =
        by_attribute ? attribute_path(evaluator, at, item, arguments.values[0]) : item;
    if (evaluator.failed()) return {};
    const bool is_met = has_test ? evaluator.apply_test(at, test, tested, rest) : tested.is_true();
    if (evaluator.failed()) return {};
    if (is_met == keeps) items.push_back(std::move(item));
  }
  return Value::list(std::move(items), value.origin());
}

Value sum_of(Evaluator& evaluator, const Expression& at, const Value& value,
             const Arguments& arguments) {
  const Value* attribute = arguments.find(0, "attribute");
  int64_t whole = 0;
  double real = 0;
  bool is_real = false;
  Origin origin = value.origin();
  for (Value item : evaluator.items_of(at, value)) {
    if (attribute != nullptr) item = attribute_path(evaluator, at, item, *attribute);
    if (evaluator.failed()) return {};
    if (!item.is_number()) return evaluator.fail(at, "sum of {}", name_of(item.kind()));
    origin = joined(origin, item.origin());
    is_real = is_real || item.is(Kind::kFloat);
    real += item.as_real();
    if (item.is_whole() && __builtin_add_overflow(whole, item.as_int(), &whole))
      return evaluator.fail(at, "the sum has more than 64 bits");
  }
  return is_real ? Value::real(real, origin) : Value::integer(whole, origin);
}

}  // namespace primerl::chat
