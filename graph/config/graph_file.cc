#include "graph/config/graph_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "graph/base/suggest.h"
#include "graph/config/built_in_graphs.h"
#include "graph/config/short_file.h"
#include "graph/config/tables.h"
#include "graph/config/toml_source.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

// Tables whose keys are names that a person chose: a flag must not add a new one.
constexpr std::string_view kNamedTables[] = {"tenant",   "service", "model",
                                             "resource", "node",    "place"};

constexpr size_t kReadBytes = size_t{64} << 10;

Result<std::string> read_text(const std::string& path) {
  std::error_code fault;
  const auto status = fs::status(path, fault);
  if (!fs::exists(status)) return error(Code::kNotFound, "'{}' does not exist", path);
  if (fs::is_directory(status)) return error(Code::kInvalid, "'{}' is a folder", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) return error(Code::kIo, "'{}' cannot be read: {}", path, std::strerror(errno));
  // The length of a device or a pipe is known only by reading it.
  std::string text;
  std::vector<char> part(kReadBytes);
  while (text.size() <= kTomlBytesMax && file) {
    const size_t wanted = std::min(part.size(), kTomlBytesMax + 1 - text.size());
    file.read(part.data(), static_cast<std::streamsize>(wanted));
    text.append(part.data(), static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) return error(Code::kIo, "'{}' cannot be read to its end", path);
  if (text.size() > kTomlBytesMax)
    return error(Code::kExhausted, "'{}' is larger than {} bytes", path, kTomlBytesMax);
  return text;
}

/// Later values replace earlier ones; tables are merged. The values of a table are in the order in
/// which they were written last: of two names of one option, the later one counts.
void merge(Table& into, Table from) {
  for (auto& entry : from.entries) {
    Entry* old = into.find(entry.key);
    if (old != nullptr && old->value.is_table() && entry.value.is_table()) {
      merge(old->value.as_table(), std::move(entry.value.as_table()));
      continue;
    }
    if (old != nullptr) into.entries.erase(into.entries.begin() + (old - into.entries.data()));
    into.entries.push_back(std::move(entry));
  }
}

class Reader {
 public:
  Reader(Sources& sources, Diagnostics& diagnostics, GraphFile& file)
      : sources_(sources), diagnostics_(diagnostics), file_(file) {}

  /// Parses a text and merges it over the files that it includes.
  std::optional<Table> read(std::string text, const std::string& name, const std::string& folder) {
    const SourceId source = add(name, std::move(text), folder);
    auto table = parse_toml(sources_, source, diagnostics_);
    if (!table) return std::nullopt;
    return with_includes(std::move(*table), folder);
  }

  std::optional<Table> read_file(const std::string& path, Span named_at) {
    std::error_code fault;
    const std::string identity = fs::weakly_canonical(path, fault).string();
    if (std::find(open_.begin(), open_.end(), identity) != open_.end()) {
      report_cycle(identity, named_at);
      return std::nullopt;
    }
    if (open_.size() >= static_cast<size_t>(kIncludeDepthMax) || num_files_ >= kIncludesMax) {
      diagnostics_.error("G004", named_at, "'{}' is included too deep or too often", path)
          .note(fmt::format("at most {} files deep, {} files in all", kIncludeDepthMax,
                            kIncludesMax));
      return std::nullopt;
    }
    auto text = read_text(path);
    if (!text.ok()) {
      diagnostics_.error("G003", named_at, "{}", text.error().message());
      return std::nullopt;
    }
    ++num_files_;
    open_.push_back(identity);
    auto table = read(std::move(*text), path, fs::path(path).parent_path().string());
    open_.pop_back();
    return table;
  }

  std::optional<Table> read_set(const std::string& text) {
    const SourceId source = add("--set", text, ".");
    auto set = parse_set(sources_, source, diagnostics_);
    const Entry* include = set ? set->find("include") : nullptr;
    if (include == nullptr) return set;
    diagnostics_.error("G005", include->key_span, "'--set' includes no file")
        .suggest("name the file with --overlay: its values win over the graph's");
    return std::nullopt;
  }

 private:
  SourceId add(const std::string& name, std::string text, const std::string& folder) {
    const SourceId source = sources_.add(name, std::move(text));
    file_.folders.push_back(folder.empty() ? "." : folder);
    return source;
  }

  void report_cycle(const std::string& identity, Span named_at) {
    auto& found = diagnostics_.error("G004", named_at, "this include makes a cycle of files");
    const auto first = std::find(open_.begin(), open_.end(), identity);
    for (auto file = first; file != open_.end(); ++file)
      found.note(fmt::format(
          "'{}' includes '{}'", fs::path(*file).filename().string(),
          fs::path(file + 1 == open_.end() ? identity : *(file + 1)).filename().string()));
  }

  /// Reads an item of `include` over `base`.
  void include(const Value& item, const std::string& folder, Table& base) {
    if (is_built_in_name(item.as_string())) {
      name_built_in(item, file_, diagnostics_);
      return;
    }
    auto included =
        read_file((fs::path(folder) / item.as_string()).lexically_normal().string(), item.span);
    if (included)
      merge(base, std::move(*included));
    else
      file_.is_partial = true;
  }

  /// Reads a misspelt `include` as well, so that the tables of its files are not reported as
  /// missing.
  void correct_include(Table& table) {
    const std::vector<std::string> meant = {"include"};
    for (auto& entry : table.entries) {
      if (entry.value.is_table() || nearest_name(entry.key, meant).empty()) continue;
      diagnostics_.error("G006", entry.key_span, "a graph file has no '{}'", entry.key)
          .suggest("did you mean 'include'?");
      entry.key = meant.front();
      return;
    }
  }

  Table with_includes(Table table, const std::string& folder) {
    if (table.find("include") == nullptr) correct_include(table);
    const Entry* include = table.find("include");
    if (include == nullptr) return table;
    Table base;
    base.span = table.span;
    const bool is_list = include->value.is_array();
    if (!is_list && !include->value.is_string())
      diagnostics_.error("G021", include->value.span, "'include' must be a list of files, not {}",
                         include->value.kind());
    const Value::Array one{include->value};
    if (is_list || include->value.is_string())
      for (const auto& item : is_list ? include->value.as_array() : one) {
        if (!item.is_string()) {
          diagnostics_.error("G021", item.span, "'include' must be a list of files, not of {}",
                             item.kind());
          continue;
        }
        this->include(item, folder, base);
      }
    std::erase_if(table.entries, [](const Entry& entry) { return entry.key == "include"; });
    merge(base, std::move(table));
    return base;
  }

  Sources& sources_;
  Diagnostics& diagnostics_;
  GraphFile& file_;
  std::vector<std::string> open_;
  size_t num_files_ = 0;
};

/// A flag changes names that exist in the file. A new name in a flag is almost always a mistake.
bool names_exist(const Table& root, const Table& set, Diagnostics& diagnostics) {
  for (const auto& entry : set.entries) {
    const bool is_named = std::find(std::begin(kNamedTables), std::end(kNamedTables), entry.key) !=
                          std::end(kNamedTables);
    if (!is_named || !entry.value.is_table()) continue;
    std::vector<std::string> known;
    const Entry* table = root.find(entry.key);
    if (table != nullptr && table->value.is_table())
      for (const auto& member : table->value.as_table().entries) known.push_back(member.key);
    for (const auto& member : entry.value.as_table().entries) {
      if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
      auto& found = diagnostics.error("G019", member.key_span, "the graph has no {} '{}'",
                                      entry.key, member.key);
      if (!known.empty()) found.note(fmt::format("{}s: {}", entry.key, join_names(known)));
      const auto near = nearest_name(member.key, known);
      if (!near.empty())
        found.suggest(fmt::format("did you mean '{}'?", near));
      else
        found.suggest(
            fmt::format("add it with --overlay, in a file with [{}.{}]", entry.key, member.key));
      return false;
    }
  }
  return true;
}

void apply_overrides(Reader& reader, const Overrides& overrides, Sources& sources, GraphFile& file,
                     Diagnostics& diagnostics) {
  for (const auto& path : overrides.overlays) {
    auto overlay = reader.read_file(path, {SourceId(-1), {}, {}});
    if (overlay)
      merge(file.root, std::move(*overlay));
    else
      file.is_partial = true;
  }
  complete_file(file, sources, diagnostics);
  file.first_set = static_cast<SourceId>(sources.size());
  for (const auto& text : overrides.sets) {
    auto set = reader.read_set(text);
    if (set && names_exist(file.root, *set, diagnostics)) merge(file.root, std::move(*set));
  }
}

/// The one tenant of a tenant's file; null after an error. Other tables belong to the graph.
const Entry* only_tenant(const Table& own, const GraphFile& file, Diagnostics& diagnostics) {
  const Span whole{0, {1, 1}, {1, 1}};
  const size_t num_errors = diagnostics.num_errors();
  for (const Entry& entry : own.entries)
    if (entry.key != "tenant")
      diagnostics.error("G006", entry.key_span, "a tenant file has no '{}'", entry.key)
          .note("beside include it has one table [tenant.<name>]; all else is the graph's");
  if (!file.built_in.empty())
    diagnostics.error("G006", whole, "a tenant file includes no graph, but this one has '{}'",
                      file.built_in);
  const Entry* const tenants = own.find("tenant");
  const bool is_table = tenants != nullptr && tenants->value.is_table();
  if (!is_table || tenants->value.as_table().entries.empty()) {
    diagnostics
        .error("G060", tenants != nullptr ? tenants->key_span : whole, "the file has no tenant")
        .suggest("write a table [tenant.<name>] with environment = { name = ... }");
    return nullptr;
  }
  const auto& entries = tenants->value.as_table().entries;
  for (size_t i = 1; i < entries.size(); ++i)
    diagnostics
        .error("G006", entries[i].key_span, "'{}' is a second tenant of the file", entries[i].key)
        .suggest("write a file for each tenant");
  return diagnostics.num_errors() == num_errors ? &entries.front() : nullptr;
}

}  // namespace

std::string absolute_path(const GraphFile& file, const Value& path) {
  const auto& folders = file.folders;
  const fs::path folder =
      path.span.source < folders.size() ? folders[path.span.source] : std::string(".");
  return fs::absolute(folder / path.as_string()).lexically_normal().string();
}

const Entry* plugin_list(const GraphFile& file) {
  const Entry* graph = file.root.find("graph");
  if (graph == nullptr || !graph->value.is_table()) return nullptr;
  const Table& table = graph->value.as_table();
  const Entry* entry = table.find("plugins");
  const std::vector<std::string> known = graph_options().names();
  for (size_t i = 0; i < table.entries.size() && entry == nullptr; ++i) {
    const std::string& key = table.entries[i].key;
    const bool is_known = std::find(known.begin(), known.end(), key) != known.end();
    if (!is_known && nearest_name(key, known) == "plugins") entry = &table.entries[i];
  }
  return entry;
}

std::vector<std::string> plugin_files(const GraphFile& file) {
  std::vector<std::string> files;
  const Entry* list = plugin_list(file);
  if (list != nullptr && list->value.is_array())
    for (const Value& item : list->value.as_array())
      if (item.is_string())
        files.push_back(item.as_string().empty() ? std::string() : absolute_path(file, item));
  return files;
}

std::optional<GraphFile> read_graph_file(const std::string& path, const Overrides& overrides,
                                         Sources& sources, Diagnostics& diagnostics) {
  GraphFile file;
  Reader reader(sources, diagnostics, file);
  auto root = reader.read_file(path, {SourceId(-1), {}, {}});
  if (!root) return std::nullopt;
  file.root = std::move(*root);
  apply_overrides(reader, overrides, sources, file, diagnostics);
  return file;
}

std::optional<JoinedFile> read_joining_file(const std::string& path, std::string_view graph_text,
                                            Sources& sources, Diagnostics& diagnostics) {
  JoinedFile joined;
  Reader reader(sources, diagnostics, joined.file);
  const auto own = reader.read_file(path, {SourceId(-1), {}, {}});
  if (!own || joined.file.is_partial) return std::nullopt;
  const Entry* const tenant = only_tenant(*own, joined.file, diagnostics);
  if (tenant == nullptr) return std::nullopt;
  joined.tenant = tenant->key;
  joined.name_span = tenant->key_span;
  joined.graph_source = static_cast<SourceId>(sources.size());
  auto graph = reader.read(std::string(graph_text), "graph.resolved.toml", ".");
  CHECK(graph.has_value(), "a resolved graph is not TOML");
  joined.file.first_set = static_cast<SourceId>(sources.size());
  Table tenants;
  tenants.span = tenant->key_span;
  if (graph->find("tenant") == nullptr)
    graph->entries.push_back({"tenant", tenant->key_span, Value(tenants, tenant->key_span)});
  Table& all = graph->find("tenant")->value.as_table();
  if (all.find(tenant->key) != nullptr) {
    std::vector<std::string> names;
    for (const Entry& entry : all.entries) names.push_back(entry.key);
    diagnostics.error("G017", tenant->key_span, "the graph has a tenant '{}' already", tenant->key)
        .note(fmt::format("tenants: {}", join_names(names)))
        .suggest("write another name");
    return std::nullopt;
  }
  all.entries.push_back(*tenant);
  joined.file.root = std::move(*graph);
  return joined;
}

std::optional<GraphFile> read_graph_text(std::string_view text, const std::string& name,
                                         const std::string& folder, const Overrides& overrides,
                                         Sources& sources, Diagnostics& diagnostics) {
  GraphFile file;
  Reader reader(sources, diagnostics, file);
  auto root = reader.read(std::string(text), name, folder);
  if (!root) return std::nullopt;
  file.root = std::move(*root);
  apply_overrides(reader, overrides, sources, file, diagnostics);
  return file;
}

}  // namespace primerl
