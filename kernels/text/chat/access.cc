// Attributes, items, slices and calls of a chat template.
#include <algorithm>
#include <utility>

#include "kernels/text/chat/evaluator.h"
#include "kernels/text/chat/strings.h"

namespace primerl::chat {
namespace {

constexpr std::string_view kMonths[] = {"January",   "February", "March",    "April",
                                        "May",       "June",     "July",     "August",
                                        "September", "October",  "November", "December"};
constexpr std::string_view kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                      "Thursday", "Friday", "Saturday"};

bool is_leap(int year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0; }

int day_of_year(const Day& day) {
  static constexpr int kBefore[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  return kBefore[day.month - 1] + day.day + (day.month > 2 && is_leap(day.year) ? 1 : 0);
}

/// 0 is Sunday.
int weekday(const Day& day) {
  const int before = day.year - 1;
  return (day_of_year(day) + before + before / 4 - before / 100 + before / 400) % 7;
}

/// What `%directive` gives at midnight of the day; empty if it is not supported.
std::string date_part(const Day& day, char directive, bool is_padded) {
  const auto number = [&](int value, int width) {
    return is_padded ? fmt::format("{:0{}}", value, width) : fmt::format("{}", value);
  };
  switch (directive) {
    case 'Y':
      return fmt::format("{}", day.year);
    case 'y':
      return number(day.year % 100, 2);
    case 'm':
      return number(day.month, 2);
    case 'd':
      return number(day.day, 2);
    case 'e':
      return fmt::format("{:2}", day.day);
    case 'B':
      return std::string(kMonths[day.month - 1]);
    case 'b':
      return std::string(kMonths[day.month - 1].substr(0, 3));
    case 'A':
      return std::string(kDays[weekday(day)]);
    case 'a':
      return std::string(kDays[weekday(day)].substr(0, 3));
    case 'j':
      return number(day_of_year(day), 3);
    case 'H':
    case 'M':
    case 'S':
      return number(0, 2);
    case 'F':
      return fmt::format("{}-{:02}-{:02}", day.year, day.month, day.day);
    case '%':
      return "%";
    default:
      return {};
  }
}

}  // namespace

Evaluator::Arguments Evaluator::arguments_of(const Expression& node) {
  Arguments arguments;
  for (size_t i = 1; i < node.operands.size() && !failed(); ++i)
    arguments.values.push_back(evaluate(*node.operands[i]));
  for (const auto& [name, value] : node.named) {
    if (failed()) break;
    arguments.named.emplace_back(name, evaluate(*value));
  }
  return arguments;
}

Value Evaluator::loop_attribute(const Expression& where, const Loop& loop, std::string_view name) {
  if (loop.items == nullptr) return fail(where, "'loop' is read after its loop has ended");
  const int64_t size = loop.items->size();
  if (name == "index") return Value::integer(loop.index + 1);
  if (name == "index0") return Value::integer(loop.index);
  if (name == "first") return Value::truth(loop.index == 0);
  if (name == "last") return Value::truth(loop.index + 1 == size);
  if (name == "length") return Value::integer(size);
  if (name == "revindex") return Value::integer(size - loop.index);
  if (name == "revindex0") return Value::integer(size - loop.index - 1);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return loop.index == 0 ? Value() : (*loop.items)[loop.index - 1];
  if (name == "nextitem") return loop.index + 1 == size ? Value() : (*loop.items)[loop.index + 1];
  return fail(where, "'loop.{}' is not supported", name);
}

Value Evaluator::attribute_of(const Expression& where, const Value& object, std::string_view name) {
  if (object.is_dict() || object.is(Kind::kNamespace)) {
    num_steps_ += static_cast<int64_t>(object.as_dict().entries.size() / 8);
    const Value* found = object.as_dict().find(name);
    return found == nullptr ? Value() : *found;
  }
  if (object.is(Kind::kLoop)) return loop_attribute(where, object.as_loop(), name);
  return {};
}

Value Evaluator::item_of(const Expression& where, const Value& object, const Value& key) {
  if (object.is_dict() || object.is(Kind::kNamespace)) {
    num_steps_ += static_cast<int64_t>(object.as_dict().entries.size() / 8);
    const Value* found = object.as_dict().find(key);
    return found == nullptr ? Value() : *found;
  }
  if (object.is(Kind::kLoop) && key.is_text()) return attribute_of(where, object, key.bytes());
  if (!key.is_whole()) return {};
  int64_t index = key.as_int();
  if (object.is_list()) {
    const auto size = static_cast<int64_t>(object.items().size());
    if (index < 0) index += size;
    return index < 0 || index >= size ? Value() : object.items()[static_cast<size_t>(index)];
  }
  if (!object.is_text()) return {};
  return slice_of_text(where, object, index, index == -1 ? INT64_MAX : index + 1, 1).is_true()
             ? slice_of_text(where, object, index, index == -1 ? INT64_MAX : index + 1, 1)
             : Value();
}

namespace {

/// Start and stop of a slice of `size` items as Python clips them. INT64_MAX and INT64_MIN: left
/// out.
void clip_slice(int64_t size, int64_t step, int64_t& start, int64_t& stop) {
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? size : size - 1;
  const auto clip = [&](int64_t value) {
    if (value < 0) value = value < -size ? -1 : value + size;
    return std::clamp(value, low, high);
  };
  start = start == INT64_MIN ? (step > 0 ? low : high) : clip(start);
  stop = stop == INT64_MAX ? (step > 0 ? high : low) : clip(stop);
}

}  // namespace

Value Evaluator::slice_of_text(const Expression& node, const Value& value, int64_t start,
                               int64_t stop, int64_t step) {
  const TextRef text = value.text_ref();
  if (!charge(node, 1, 0)) return {};
  if (step == 1 && text->ascii()) {
    clip_slice(static_cast<int64_t>(text->bytes.size()), step, start, stop);
    if (start >= stop) return Value::text(view_of({}, kFromTemplate));
    return Value::text(part_of(text, static_cast<size_t>(start), static_cast<size_t>(stop)));
  }
  if (!charge(node, 1, text->bytes.size())) return {};
  const auto offsets = character_offsets_of(text->bytes);
  clip_slice(static_cast<int64_t>(offsets.size()) - 1, step, start, stop);
  const auto offset = [&](int64_t index) { return offsets[static_cast<size_t>(index)]; };
  if (step == 1) {
    if (start >= stop) return Value::text(view_of({}, kFromTemplate));
    return Value::text(part_of(text, offset(start), offset(stop)));
  }
  TextBuilder picked;
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step)
    picked.append(*text, offset(i), offset(i + 1));
  return Value::text(std::move(picked).finish());
}

Value Evaluator::slice(const Expression& node) {
  const Value object = evaluate(*node.operands[0]);
  int64_t bounds[3] = {INT64_MIN, INT64_MAX, 1};
  for (size_t i = 0; i < 3 && !failed(); ++i) {
    if (node.operands[i + 1] == nullptr) continue;
    const Value bound = evaluate(*node.operands[i + 1]);
    if (failed()) return {};
    if (bound.is(Kind::kNone)) continue;
    if (!bound.is_whole()) return fail(node, "a slice ends at {}", name_of(bound.kind()));
    bounds[i] = std::clamp<int64_t>(bound.as_int(), -(int64_t{1} << 40), int64_t{1} << 40);
  }
  if (failed()) return {};
  if (bounds[2] == 0) return fail(node, "the step of a slice is 0");
  if (object.is_text()) return slice_of_text(node, object, bounds[0], bounds[1], bounds[2]);
  if (!object.is_list())
    return fail(node, "{} has no slices: '{}'", name_of(object.kind()), shown(*node.operands[0]));
  const auto& items = object.items();
  if (!charge(node, items.size())) return {};
  clip_slice(static_cast<int64_t>(items.size()), bounds[2], bounds[0], bounds[1]);
  std::vector<Value> picked;
  for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1]; i += bounds[2])
    picked.push_back(items[static_cast<size_t>(i)]);
  return Value::list(std::move(picked), object.origin(), object.kind());
}

std::vector<Value> Evaluator::items_of(const Expression& where, const Value& value) {
  std::vector<Value> items;
  if (value.is_list()) {
    if (charge(where, value.items().size())) items = value.items();
  } else if (value.is_dict()) {
    if (!charge(where, value.as_dict().entries.size())) return items;
    for (const auto& entry : value.as_dict().entries) items.push_back(entry.first);
  } else if (value.is_text()) {
    if (!charge(where, value.bytes().size(), value.bytes().size())) return items;
    const auto offsets = character_offsets_of(value.bytes());
    for (size_t i = 0; i + 1 < offsets.size(); ++i)
      items.push_back(Value::text(part_of(value.text_ref(), offsets[i], offsets[i + 1])));
  } else if (!value.is(Kind::kUndefined)) {
    fail(where, "{} has no items: '{}'", name_of(value.kind()), shown(where));
  }
  return items;
}

Value Evaluator::call(const Expression& node) {
  const Expression& callee = *node.operands[0];
  if (callee.op == Op::kAttribute) {
    const Value object = evaluate(*callee.operands[0]);
    if (failed()) return {};
    return fail(callee, "the method '{}' of {} is not supported", callee.text,
                name_of(object.kind()));
  }
  const Value value = evaluate(callee);
  Arguments arguments = arguments_of(node);
  if (failed()) return {};
  if (value.is(Kind::kMacro)) return call_macro(node, value.as_macro(), arguments);
  if (value.is(Kind::kFunction)) return call_function(node, value.as_function(), arguments);
  if (value.is(Kind::kUndefined))
    return fail(callee, "'{}' is undefined, so it cannot be called", shown(callee));
  return fail(callee, "{} cannot be called", name_of(value.kind()));
}

Value Evaluator::call_macro(const Expression& node, const MacroNode& macro, Arguments& arguments) {
  if (arguments.values.size() > macro.parameters.size())
    return fail(node, "the macro '{}' has {} parameters, not {}", macro.name,
                macro.parameters.size(), arguments.values.size());
  for (const auto& named : arguments.named)
    if (std::none_of(macro.parameters.begin(), macro.parameters.end(),
                     [&](const auto& parameter) { return parameter.name == named.first; }))
      return fail(node, "the macro '{}' has no argument '{}'", macro.name, named.first);
  const size_t outer = std::exchange(frame_, locals_.size());
  locals_.resize(frame_ + static_cast<size_t>(macro.num_slots));
  for (size_t i = 0; i < macro.parameters.size() && !failed(); ++i) {
    const auto& parameter = macro.parameters[i];
    const Value* given = arguments.find(i, parameter.name);
    Value value = given != nullptr                ? *given
                  : parameter.fallback != nullptr ? evaluate(*parameter.fallback)
                                                  : Value();
    at(parameter.slot) = std::move(value);
  }
  // A macro's text gets the mark of generation when it is printed.
  const Origin mark = std::exchange(mark_, 0);
  Value text = failed() ? Value() : capture(macro.body, macro.inherited);
  mark_ = mark;
  locals_.resize(frame_);
  frame_ = outer;
  return text;
}

Value Evaluator::call_function(const Expression& node, Function function,
                               const Arguments& arguments) {
  switch (function) {
    case Function::kRange:
      return range_list(node, arguments);
    case Function::kNamespace:
      return make_namespace(node, arguments, false);
    case Function::kDict:
      return make_namespace(node, arguments, true);
    case Function::kDate:
      return date(node, arguments);
    case Function::kRaise: {
      TextBuilder message;
      if (const Value* given = arguments.find(0, "message"); given != nullptr)
        append_text(message, *given);
      return fail(node, "the template refuses the conversation: {}", message.bytes());
    }
  }
  return {};
}

Value Evaluator::make_namespace(const Expression& node, const Arguments& arguments, bool is_dict) {
  const Shared<Dict> dict(new Dict);
  for (const Value& value : arguments.values) {
    if (!value.is_dict()) return fail(node, "a mapping is needed, not {}", name_of(value.kind()));
    const size_t count = value.as_dict().entries.size();
    if (!charge(node, count * count / 16)) return {};
    for (const auto& [key, each] : value.as_dict().entries) dict->set(key, each);
  }
  for (const auto& [name, value] : arguments.named) {
    if (value.is(Kind::kNamespace) || value.is(Kind::kLoop))
      return fail(node, "{} in a namespace is not supported", name_of(value.kind()));
    dict->set(Value::text(view_of(name, kFromTemplate)), value);
  }
  return is_dict ? Value::dict(dict.get()) : Value::name_space(dict.get());
}

Value Evaluator::date(const Expression& node, const Arguments& arguments) {
  const Value* format = arguments.find(0, "format");
  if (format == nullptr || !format->is_text())
    return fail(node, "strftime_now needs a format, like '%Y-%m-%d'");
  std::string text;
  const std::string_view pattern = format->bytes();
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%') {
      text.push_back(pattern[i]);
      continue;
    }
    const bool is_plain = pattern.substr(i + 1).starts_with('-');
    i += is_plain ? 2 : 1;
    const std::string part = i < pattern.size() ? date_part(day_, pattern[i], !is_plain) : "";
    if (part.empty())
      return fail(node, "strftime_now does not know '%{}'",
                  i < pattern.size() ? pattern.substr(i, 1) : "");
    text += part;
  }
  return Value::text(std::move(text), format->origin());
}

Range Evaluator::range(const Expression& node, const Arguments& arguments) {
  int64_t bounds[3] = {0, 0, 1};
  const size_t num_given = arguments.values.size();
  if (num_given == 0 || num_given > 3) {
    fail(node, "range needs 1 to 3 numbers, not {}", num_given);
    return {};
  }
  for (size_t i = 0; i < num_given; ++i) {
    const Value& given = arguments.values[i];
    if (!given.is_whole()) {
      fail(node, "range needs whole numbers, not {}", name_of(given.kind()));
      return {};
    }
    bounds[num_given == 1 ? 1 : i] = given.as_int();
  }
  const auto [start, stop, step] = bounds;
  if (step == 0) fail(node, "the step of range is 0");
  if (step == 0 || (step > 0 ? start >= stop : start <= stop)) return {};
  // Unsigned: the distance of two numbers may have 64 bits.
  const uint64_t distance =
      step > 0 ? uint64_t(stop) - uint64_t(start) : uint64_t(start) - uint64_t(stop);
  const uint64_t count = (distance - 1) / (step > 0 ? uint64_t(step) : -uint64_t(step)) + 1;
  if (!charge(node, std::min<uint64_t>(count, kRangeMax))) return {};
  if (count > kRangeMax) {
    fail(node, "range has more than {} items", kRangeMax);
    return {};
  }
  return {start, step, static_cast<int64_t>(count)};
}

Value Evaluator::range_list(const Expression& node, const Arguments& arguments) {
  const Range numbers = range(node, arguments);
  if (failed()) return {};
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(numbers.count));
  for (int64_t i = 0; i < numbers.count; ++i) items.push_back(Value::integer(numbers[i]));
  return Value::list(std::move(items));
}

bool Evaluator::is_range(const Expression& node) {
  if (node.op != Op::kCall || node.operands[0]->op != Op::kName) return false;
  const Value& callee = at(node.operands[0]->slot);
  return callee.is(Kind::kFunction) && callee.as_function() == Function::kRange;
}

}  // namespace primerl::chat
