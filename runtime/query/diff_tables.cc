// Differences between two catalogs and two graphs.
#include <algorithm>
#include <map>

#include "graph/config/toml_source.h"
#include "runtime/query/diff_parts.h"

namespace primerl {
namespace {

/// The text of a span, its lines joined without their indentation.
std::string text_of(const Sources& sources, const Span& span) {
  std::string text;
  for (uint32_t number = span.begin.line; number <= span.end.line; ++number) {
    std::string_view line = sources.line(span.source, number);
    if (number == span.end.line) line = line.substr(0, span.end.column - 1);
    if (number == span.begin.line)
      line.remove_prefix(std::min<size_t>(span.begin.column - 1, line.size()));
    else
      line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    text += line;
  }
  return text;
}

void add_values(const Sources& sources, const Table& table, const std::string& path,
                std::map<std::string, std::string>& values) {
  for (const Entry& entry : table.entries) {
    std::string text = text_of(sources, entry.value.span);
    const bool is_section = entry.value.is_table() && !text.starts_with('{');
    if (is_section)
      add_values(sources, entry.value.as_table(), path + entry.key + ".", values);
    else
      values[path + entry.key] = std::move(text);
  }
}

/// "section.key" -> value, as written.
std::map<std::string, std::string> values_of(const std::string& toml) {
  Sources sources;
  Diagnostics ignored;
  std::map<std::string, std::string> values;
  if (const auto root = parse_toml(sources, sources.add("graph", toml), ignored))
    add_values(sources, *root, "", values);
  return values;
}

template <class Table>
void compare_names(std::string_view what, const Table& a, const Table& b,
                   std::vector<std::string>& out) {
  const auto has = [](const Table& table, const std::string& name) {
    for (const auto& entry : table)
      if (entry.name == name) return true;
    return false;
  };
  for (const auto& entry : a)
    if (!has(b, entry.name)) out.push_back(fmt::format("no {} '{}' in b", what, entry.name));
  for (const auto& entry : b)
    if (!has(a, entry.name)) out.push_back(fmt::format("no {} '{}' in a", what, entry.name));
}

std::string link_name(const TraceCatalog& catalog, const TraceCatalog::TraceLink& link) {
  return fmt::format("{}.{}>{}.{}", catalog.instances[link.sender].name, link.output,
                     catalog.instances[link.target].name, link.input);
}

template <class Entry>
std::vector<uint32_t> map_names(const std::vector<Entry>& from, const std::vector<Entry>& to) {
  std::map<std::string, uint32_t> numbers;
  for (uint32_t i = 0; i < to.size(); ++i) numbers[to[i].name] = i;
  std::vector<uint32_t> map;
  for (const auto& entry : from) {
    const auto found = numbers.find(entry.name);
    map.push_back(found == numbers.end() ? UINT32_MAX : found->second);
  }
  return map;
}

std::vector<std::string> schema_differences(const TraceCatalog::Type& a,
                                            const TraceCatalog::Type& b) {
  if (a.version != b.version)
    return {fmt::format("{}: version {} in a, {} in b", a.name, a.version, b.version)};
  if (a.schema == b.schema && a.schema_hash == b.schema_hash) return {};
  // From the first different character, back to the begin of its field.
  size_t at = 0;
  while (at < a.schema.size() && at < b.schema.size() && a.schema[at] == b.schema[at]) ++at;
  while (at > 0 && a.schema[at - 1] != ';' && a.schema[at - 1] != '{') --at;
  const auto field = [at](const std::string& schema) {
    const std::string_view rest = std::string_view(schema).substr(std::min(at, schema.size()));
    const auto text = rest.substr(0, rest.find(';'));
    return text.empty() ? std::string("nothing") : std::string(text);
  };
  return {fmt::format("{}: field {} in a, {} in b", a.name, field(a.schema), field(b.schema))};
}

}  // namespace

std::vector<std::string> option_differences(const std::string& a_toml, const std::string& b_toml) {
  std::vector<std::string> found;
  const auto a = values_of(a_toml);
  const auto b = values_of(b_toml);
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    if (other == b.end())
      found.push_back(fmt::format("{}: {} in a, absent in b", name, value));
    else if (other->second != value)
      found.push_back(fmt::format("{}: {} in a, {} in b", name, value, other->second));
  }
  for (const auto& [name, value] : b)
    if (!a.contains(name)) found.push_back(fmt::format("{}: absent in a, {} in b", name, value));
  return found;
}

Numbers::Numbers(const TraceCatalog& a, const TraceCatalog& b) {
  groups = map_names(a.groups, b.groups);
  instances = map_names(b.instances, a.instances);
  types = map_names(b.types, a.types);
  std::map<std::string, uint32_t> link_numbers;
  for (uint32_t i = 0; i < a.links.size(); ++i) link_numbers[link_name(a, a.links[i])] = i;
  for (const auto& link : b.links) {
    const auto found = link_numbers.find(link_name(b, link));
    links.push_back(found == link_numbers.end() ? UINT32_MAX : found->second);
  }
  std::map<std::string, uint32_t> tenant_numbers;
  for (uint32_t i = 0; i < a.tenants.size(); ++i) tenant_numbers[a.tenants[i]] = i;
  for (const auto& tenant : b.tenants) {
    const auto found = tenant_numbers.find(tenant);
    tenants.push_back(found == tenant_numbers.end() ? UINT32_MAX : found->second);
  }
  const auto is_same = [](const std::vector<uint32_t>& map, size_t size) {
    for (uint32_t i = 0; i < map.size(); ++i)
      if (map[i] != i) return false;
    return map.size() == size;
  };
  is_identity = is_same(groups, b.groups.size()) && is_same(instances, a.instances.size()) &&
                is_same(types, a.types.size()) && is_same(links, a.links.size()) &&
                is_same(tenants, a.tenants.size());
  for (size_t i = 0; i < types.size(); ++i)
    if (types[i] != UINT32_MAX && !schema_differences(a.types[types[i]], b.types[i]).empty())
      changed_types.insert(types[i]);
  for (size_t i = 0; i < links.size(); ++i)
    has_same_policies &= links[i] != UINT32_MAX && a.links[links[i]].record == b.links[i].record;
}

void compare_tables(const TraceCatalog& a, const TraceCatalog& b, TraceDiff& diff) {
  if (a.graph_text != b.graph_text) diff.options = option_differences(a.graph_text, b.graph_text);
  if (diff.options.empty() && a.graph_hash != b.graph_hash)
    diff.tables.push_back(
        fmt::format("the graph's hash: {:016x} in a, {:016x} in b", a.graph_hash, b.graph_hash));
  if (a.seed != b.seed)
    diff.tables.push_back(fmt::format("seed: {} in a, {} in b", a.seed, b.seed));
  compare_names("group", a.groups, b.groups, diff.tables);
  compare_names("instance", a.instances, b.instances, diff.tables);
  compare_names("message type", a.types, b.types, diff.tables);
  for (const auto& type : a.types)
    for (const auto& other : b.types)
      if (other.name == type.name)
        for (auto& text : schema_differences(type, other)) diff.schemas.push_back(std::move(text));
  if (a.program_version != b.program_version)
    diff.notes.push_back(fmt::format("recorded by version {} and {} of the program",
                                     a.program_version, b.program_version));
}

}  // namespace primerl
