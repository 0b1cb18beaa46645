#include "graph/option_text.h"

#include <fmt/format.h>

#include <cmath>

#include "graph/base/suggest.h"

namespace primerl {
namespace {

/// "resource:engine" in words.
std::string reference_text(const std::string& kind) {
  if (kind.rfind("resource:", 0) == 0) return "a resource of kind " + kind.substr(9);
  if (kind == "file" || kind == "folder") return "a " + kind + ", relative to this one";
  return "names the " + kind;
}

/// The unit of a limit of 1: "step" for "steps".
std::string singular(const std::string& unit) {
  if (!unit.ends_with('s') || unit == "s" || unit == "ms") return unit;
  if (unit.ends_with("ies")) return unit.substr(0, unit.size() - 3) + "y";
  const bool has_es = unit.ends_with("ches") || unit.ends_with("sses");
  return unit.substr(0, unit.size() - (has_es ? 2 : 1));
}

}  // namespace

std::string_view type_name(OptionType type) {
  switch (type) {
    case OptionType::kBool:
      return "boolean";
    case OptionType::kInteger:
      return "integer";
    case OptionType::kNumber:
      return "number";
    case OptionType::kString:
      return "string";
    case OptionType::kDuration:
      return "duration";
    case OptionType::kBytes:
      return "size";
    case OptionType::kStringList:
      return "list of strings";
    case OptionType::kIntegerList:
      return "list of integers";
    case OptionType::kTable:
      return "table";
    case OptionType::kTableList:
      return "list of tables";
  }
  return "";
}

std::string number_text(double number) {
  if (number == std::floor(number) && std::abs(number) < 9e15)
    return fmt::format("{}", static_cast<int64_t>(number));
  return fmt::format("{}", number);
}

std::string limit_text(OptionType type, double number) {
  if (type != OptionType::kBytes || number <= 0 || number >= kCountMax) return number_text(number);
  return bytes_text(static_cast<int64_t>(number));
}

std::string constraint_text(const Constraint& constraint, OptionType type) {
  if (type == OptionType::kString && constraint.min == 1.0 && !constraint.max) return "not empty";
  const std::string unit = type == OptionType::kBytes         ? ""
                           : !constraint.unit.empty()         ? constraint.unit
                           : type == OptionType::kDuration    ? "s"
                           : type == OptionType::kString      ? "bytes"
                           : type == OptionType::kStringList  ? "items"
                           : type == OptionType::kIntegerList ? "items"
                                                              : "";
  const auto shown = [type](double number) { return limit_text(type, number); };
  // The limits of the C++ type are obvious to a reader, unless there are no others.
  const auto is_limit = [](const std::optional<double>& bound) {
    return bound && std::abs(*bound) < 2e9;
  };
  const bool has_min = is_limit(constraint.min), has_max = is_limit(constraint.max);
  std::string text;
  if (has_min && has_max && !constraint.min_excluded && !constraint.max_excluded)
    text = fmt::format("from {} to {}", shown(*constraint.min), shown(*constraint.max));
  else if (has_min)
    text = fmt::format("{} {}", constraint.min_excluded ? "above" : "at least",
                       shown(*constraint.min));
  if (has_max && (!has_min || constraint.min_excluded || constraint.max_excluded))
    text += fmt::format("{}{} {}", text.empty() ? "" : " and ",
                        constraint.max_excluded ? "below" : "at most", shown(*constraint.max));
  if (text.empty() && constraint.min && constraint.max)
    text = fmt::format("from {} to {}", shown(*constraint.min), shown(*constraint.max));
  if (!text.empty() && constraint.zero_is_apart) text = "0 or " + text;
  if (!text.empty() && !unit.empty()) text += " " + (text.ends_with(" 1") ? singular(unit) : unit);
  if (!constraint.choices.empty())
    text += fmt::format("{}one of {}", text.empty() ? "" : ", ", join_names(constraint.choices));
  return text;
}

std::string range_text(const OptionField& field) {
  std::string range = constraint_text(field.constraint, field.type);
  if (!range.empty()) return range;
  const auto& [kind] = field.constraint.refers;
  if (!kind.empty()) return reference_text(kind);
  return field.type == OptionType::kBytes ? "" : field.constraint.unit;
}

}  // namespace primerl
