#include "runtime/control/changed_values.h"

#include <fmt/format.h>

#include "graph/config/toml_source.h"
#include "graph/config/toml_value.h"
#include "graph/options.h"

namespace primerl {
namespace {

using Values = std::map<std::string, std::string>;

/// The name of an edge in a list of edges.
const std::string* path_of(const Value& value) {
  const Entry* path = value.is_table() ? value.as_table().find("path") : nullptr;
  return path != nullptr && path->value.is_string() ? &path->value.as_string() : nullptr;
}

void flatten(const Value& value, const std::string& key, Values& values) {
  if (value.is_table()) {
    for (const Entry& entry : value.as_table().entries)
      flatten(entry.value, key.empty() ? entry.key : key + "." + entry.key, values);
    return;
  }
  const bool is_edges =
      value.is_array() && !value.as_array().empty() && path_of(value.as_array().front()) != nullptr;
  if (!is_edges) {
    values[key] = toml_value(value);
    return;
  }
  for (const Value& edge : value.as_array())
    if (const std::string* path = path_of(edge)) flatten(edge, key + "." + *path, values);
}

}  // namespace

Result<std::map<std::string, std::string>> graph_values(const std::string& text) {
  Sources sources;
  Diagnostics diagnostics;
  auto root = parse_toml(sources, sources.add("graph.resolved.toml", text), diagnostics);
  if (!root) return error(Code::kCorrupt, "a resolved graph is no TOML");
  Values values;
  for (const Entry& entry : root->entries) flatten(entry.value, entry.key, values);
  return values;
}

Result<std::vector<ChangedValue>> changed_values(const std::string& before,
                                                 const std::string& now) {
  ASSIGN_OR_RETURN(const Values old, graph_values(before));
  ASSIGN_OR_RETURN(const Values fresh, graph_values(now));
  std::map<std::string, ChangedValue> changed;
  for (const auto& [key, value] : old) changed[key] = {key, value, ""};
  for (const auto& [key, value] : fresh) {
    ChangedValue& one = changed[key];
    one.key = key;
    one.now = value;
  }
  std::vector<ChangedValue> list;
  for (auto& [key, one] : changed)
    if (one.before != one.now && list.size() < kChangedValuesMax) list.push_back(std::move(one));
  return list;
}

Json resume_entry(const std::string& time, int64_t incarnation,
                  const std::vector<ChangedValue>& changed) {
  Json values = Json::array();
  for (const ChangedValue& one : changed)
    values.push_back(
        Json::object().set("key", one.key).set("before", one.before).set("now", one.now));
  return Json::object()
      .set("time", time)
      .set("incarnation", incarnation)
      .set("changed", std::move(values));
}

}  // namespace primerl
