#include "runtime/cli/prime_rl_values.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "graph/options.h"

namespace primerl {
namespace {

void collect(const Table& table, const std::string& prefix, std::vector<Leaf>& leaves);

void collect(const Value& value, const std::string& key, const Position& position,
             std::vector<Leaf>& leaves) {
  const bool is_list_of_tables = value.is_array() && !value.as_array().empty() &&
                                 std::ranges::all_of(value.as_array(), &Value::is_table);
  if (value.is_table() && !value.as_table().entries.empty()) {
    collect(value.as_table(), key + ".", leaves);
  } else if (is_list_of_tables) {
    size_t index = 0;
    for (const Value& item : value.as_array())
      collect(item, fmt::format("{}[{}]", key, index++), item.span.begin, leaves);
  } else {
    leaves.push_back({key, &value, position});
  }
}

void collect(const Table& table, const std::string& prefix, std::vector<Leaf>& leaves) {
  for (const Entry& entry : table.entries)
    collect(entry.value, prefix + entry.key, entry.key_span.begin, leaves);
}

}  // namespace

std::vector<Leaf> leaves_of(const Table& root) {
  std::vector<Leaf> leaves;
  collect(root, "", leaves);
  return leaves;
}

std::string toml_of(const Value& value) {
  if (value.is_bool()) return value.as_bool() ? "true" : "false";
  if (value.is_integer()) return std::to_string(value.as_integer());
  if (value.is_number()) return detail::toml_text(value.as_number());
  if (value.is_string()) return detail::toml_text(value.as_string());
  std::vector<std::string> items;
  if (value.is_array())
    for (const Value& item : value.as_array()) items.push_back(toml_of(item));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

std::string environment_name(std::string id) {
  if (const size_t slash = id.rfind('/'); slash != std::string::npos) id.erase(0, slash + 1);
  if (const size_t version = id.find('@'); version != std::string::npos) id.erase(version);
  std::ranges::replace(id, '-', '_');
  const size_t tail = id.rfind("_v");
  const bool is_version =
      tail != std::string::npos && tail + 2 < id.size() &&
      std::ranges::all_of(id.substr(tail + 2), [](char c) { return c >= '0' && c <= '9'; });
  return is_version ? id.substr(0, tail) : id;
}

std::string file_name(std::string_view text) {
  std::string name;
  for (const char c : text.substr(0, 64)) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    name += is_plain ? c : '-';
  }
  if (!name.empty() && name[0] == '.') name[0] = '-';
  return name;
}

}  // namespace primerl
