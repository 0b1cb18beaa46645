#include "runtime/cli/option_lines.h"

#include <fmt/format.h>

#include "graph/option_text.h"

namespace primerl {
namespace {

std::string kind_text(const OptionField& field) {
  std::string text(type_name(field.type));
  if (field.constraint.required) text += ", required";
  if (const std::string range = range_text(field); !range.empty()) text += ", " + range;
  return text;
}

Json to_json(const OptionField& field) {
  const Constraint& constraint = field.constraint;
  Json option = Json::object().set("name", field.name).set("type", type_name(field.type));
  if (field.type == OptionType::kTable)
    return option.set("doc", field.doc).set("options", options_json(*field.table));
  if (field.type == OptionType::kTableList) option.set("options", options_json(*field.table));
  if (!constraint.required) option.set("default", field.default_text);
  option.set("required", constraint.required).set("range", range_text(field));
  if (constraint.min) option.set("min", *constraint.min);
  if (constraint.max) option.set("max", *constraint.max);
  if (!constraint.choices.empty()) option.set("choices", Json::list(constraint.choices));
  if (!constraint.unit.empty()) option.set("unit", constraint.unit);
  if (!constraint.refers.kind.empty()) option.set("names", constraint.refers.kind);
  return option.set("doc", field.doc);
}

}  // namespace

std::string option_lines(const OptionSet& set, const std::string& prefix) {
  std::string text;
  for (const auto& field : set.fields) {
    if (field.type == OptionType::kTable)
      text += option_lines(*field.table, prefix + field.name + ".");
    else
      text += fmt::format("  {}{} = {}  # {}: {}\n", prefix, field.name,
                          field.constraint.required ? "..." : field.default_text, kind_text(field),
                          field.doc);
    if (field.type == OptionType::kTableList)
      text += option_lines(*field.table, prefix + field.name + "[].");
  }
  return text;
}

Json options_json(const OptionSet& set) {
  Json options = Json::array();
  for (const auto& field : set.fields) options.push_back(to_json(field));
  return options;
}

}  // namespace primerl
