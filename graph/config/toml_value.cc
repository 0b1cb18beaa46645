#include "graph/config/toml_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "graph/options.h"

namespace primerl {
namespace {

constexpr std::string_view kTablesOfTables[] = {"tenant", "model", "resource", "node"};

void write_table(const std::string& header, const Table& table, std::string& text) {
  text += fmt::format("[{}]\n", header);
  for (const Entry& entry : table.entries)
    text += fmt::format("{} = {}\n", entry.key, toml_value(entry.value));
  text += "\n";
}

}  // namespace

std::string toml_value(const Value& value) {
  if (value.is_bool()) return value.as_bool() ? "true" : "false";
  if (value.is_integer()) return std::to_string(value.as_integer());
  if (value.is_number()) return detail::toml_text(value.as_number());
  if (value.is_string()) return detail::toml_text(value.as_string());
  std::vector<std::string> parts;
  if (value.is_array())
    for (const Value& one : value.as_array()) parts.push_back(toml_value(one));
  if (value.is_array()) return fmt::format("[{}]", fmt::join(parts, ", "));
  for (const Entry& entry : value.as_table().entries)
    parts.push_back(fmt::format("{} = {}", entry.key, toml_value(entry.value)));
  return fmt::format("{{ {} }}", fmt::join(parts, ", "));
}

std::string toml_document(const Table& root) {
  std::string text;
  for (const Entry& entry : root.entries) {
    const Table& table = entry.value.as_table();
    const bool has_names =
        std::ranges::find(kTablesOfTables, entry.key) != std::end(kTablesOfTables);
    if (!has_names) {
      write_table(entry.key, table, text);
      continue;
    }
    for (const Entry& named : table.entries)
      write_table(fmt::format("{}.{}", entry.key, named.key), named.value.as_table(), text);
  }
  return text;
}

}  // namespace primerl
