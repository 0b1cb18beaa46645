#include "graph/spec.h"

#include <algorithm>

#include "graph/base/suggest.h"
#include "graph/config/tables.h"
#include "graph/config/toml_source.h"

namespace primerl {
namespace {

constexpr size_t kNameBytesMax = 64;

Table* table_of(Table& root, std::string_view key, Diagnostics& diagnostics) {
  Entry* entry = root.find(key);
  if (entry == nullptr) return nullptr;
  if (entry->value.is_table()) return &entry->value.as_table();
  diagnostics.error("G021", entry->key_span, "'{}' must be a table, not {}", key,
                    entry->value.kind());
  return nullptr;
}

std::vector<NamedTable> named_tables(Table* parent, std::string_view key,
                                     Diagnostics& diagnostics) {
  std::vector<NamedTable> result;
  if (parent == nullptr) return result;
  result.reserve(parent->entries.size());
  for (auto& entry : parent->entries) {
    if (!entry.value.is_table()) {
      diagnostics
          .error("G021", entry.key_span, "'{}.{}' must be a table, not {}", key, entry.key,
                 entry.value.kind())
          .suggest(fmt::format("name it: [{}.<name>] with '{}' in it", key, entry.key));
      continue;
    }
    if (!is_lower_snake(entry.key))
      diagnostics.error("G017", entry.key_span, "'{}' is not a valid name for a {}", entry.key, key)
          .note(fmt::format(
              "names are lower_snake: a-z, 0-9 and _, beginning with a letter, at most {} bytes",
              kNameBytesMax));
    result.push_back({entry.key, entry.key_span, &entry.value.as_table()});
  }
  return result;
}

std::string_view trimmed(std::string_view text, size_t& offset) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
    ++offset;
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

/// Parses "node.port", which begins at `offset` of the edge's text.
bool read_end(std::string_view text, size_t offset, EdgeEnd& end) {
  text = trimmed(text, offset);
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos || text.find('.', dot + 1) != std::string_view::npos)
    return false;
  end.node = text.substr(0, dot);
  end.port = text.substr(dot + 1);
  end.node_offset = offset;
  end.port_offset = offset + dot + 1;
  const auto is_word = [](std::string_view word) {
    return !word.empty() && word.find_first_of(" \t->") == std::string_view::npos;
  };
  return is_word(end.node) && is_word(end.port);
}

bool read_path(EdgeSpec& edge) {
  const std::string_view text = edge.path->as_string();
  const size_t arrow = text.find("->");
  if (arrow == std::string_view::npos) return false;
  if (text.find("->", arrow + 2) != std::string_view::npos) return false;
  return read_end(text.substr(0, arrow), 0, edge.from) &&
         read_end(text.substr(arrow + 2), arrow + 2, edge.to);
}

void read_edge(Value& value, bool feedback, GraphSpec& spec, Diagnostics& diagnostics) {
  EdgeSpec edge;
  edge.feedback = feedback;
  if (value.is_string()) {
    edge.path = &value;
  } else if (value.is_table()) {
    EdgeOptions options;
    edge_options().bind(value.as_table(), "edge", {}, &options, diagnostics);
    const Entry* path = value.as_table().find("path");
    if (path == nullptr || !path->value.is_string()) {
      spec.has_lost_edges = true;
      return;
    }
    edge.path = &path->value;
    edge.capacity = options.capacity;
    edge.bytes_max = options.bytes_max;
    edge.record = options.record;
    if (const Entry* record = value.as_table().find("record"))
      edge.record_span = record->value.span;
    edge.transport = options.transport;
    if (const Entry* transport = value.as_table().find("transport"))
      edge.transport_span = transport->value.span;
    for (const auto& [key, number] :
         {std::pair("capacity", edge.capacity), std::pair("bytes_max", edge.bytes_max)}) {
      const Entry* entry = value.as_table().find(key);
      if (entry != nullptr && number == 0)
        diagnostics.error("G035", entry->value.span, "an edge with '{}' 0 can never deliver", key)
            .suggest(fmt::format("leave '{}' out, or write at least 1", key));
    }
  } else {
    spec.has_lost_edges = true;
    diagnostics.error("G030", value.span, "an edge is a string or a table, not {}", value.kind())
        .suggest("write it as \"rollout.generate -> router.generate\"");
    return;
  }
  if (!read_path(edge)) {
    spec.broken_edges.push_back(edge.path->as_string());
    diagnostics.error("G030", edge.path->span, "'{}' is not an edge", edge.path->as_string())
        .suggest("write it as \"rollout.generate -> router.generate\"");
    return;
  }
  spec.edge_list.push_back(edge);
}

void read_edges(GraphSpec& spec, Diagnostics& diagnostics) {
  if (spec.edges == nullptr) return;
  const size_t num_keys = spec.edges->entries.size();
  correct_keys(*spec.edges, "[edges]", {"forward", "feedback"}, diagnostics);
  spec.has_lost_edges = spec.edges->entries.size() < num_keys;
  for (auto& entry : spec.edges->entries) {
    if (!entry.value.is_array()) {
      spec.has_lost_edges = true;
      diagnostics.error("G021", entry.value.span, "'{}' of [edges] must be a list of edges, not {}",
                        entry.key, entry.value.kind());
      continue;
    }
    const bool feedback = entry.key == "feedback";
    spec.edge_list.reserve(spec.edge_list.size() + entry.value.as_array().size());
    for (auto& value : entry.value.as_array()) read_edge(value, feedback, spec, diagnostics);
  }
}

/// Reports unknown top-level tables. A table whose name is misspelt is read under the name that was
/// meant.
void correct_top_level(Table& root, Diagnostics& diagnostics) {
  const std::vector<std::string> known = {"graph",    "trace", "tenant", "service", "model",
                                          "resource", "node",  "edges",  "place",   "include"};
  for (auto& entry : root.entries) {
    if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
    auto& found = diagnostics.error("G006", entry.key_span, "a graph file has no '{}'", entry.key);
    found.note(fmt::format("at the top level: {}", join_names(known)));
    const auto near = nearest_name(entry.key, known);
    if (near.empty()) continue;
    found.suggest(fmt::format("did you mean '{}'?", near));
    Entry* meant = root.find(near);
    if (meant == nullptr) {
      entry.key = near;
    } else if (meant->value.is_table() && entry.value.is_table()) {
      for (auto& member : entry.value.as_table().entries)
        if (meant->value.as_table().find(member.key) == nullptr)
          meant->value.as_table().entries.push_back(std::move(member));
    }
  }
}

}  // namespace

bool is_lower_snake(std::string_view name) {
  if (name.empty() || name.size() > kNameBytesMax || name[0] < 'a' || name[0] > 'z') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

GraphSpec read_spec(GraphFile& file, Diagnostics& diagnostics) {
  GraphSpec spec;
  Table& root = file.root;
  spec.whole = {0, {1, 1}, {1, 1}};
  correct_top_level(root, diagnostics);
  spec.graph = table_of(root, "graph", diagnostics);
  spec.trace = table_of(root, "trace", diagnostics);
  spec.edges = table_of(root, "edges", diagnostics);
  spec.places = table_of(root, "place", diagnostics);
  spec.tenants = named_tables(table_of(root, "tenant", diagnostics), "tenant", diagnostics);
  spec.models = named_tables(table_of(root, "model", diagnostics), "model", diagnostics);
  spec.resources = named_tables(table_of(root, "resource", diagnostics), "resource", diagnostics);
  spec.nodes = named_tables(table_of(root, "node", diagnostics), "node", diagnostics);
  spec.place = named_tables(spec.places, "place", diagnostics);
  if (Table* services = table_of(root, "service", diagnostics)) {
    correct_keys(*services, "[service]", {"environment", "reward"}, diagnostics);
    spec.environment_services = named_tables(table_of(*services, "environment", diagnostics),
                                             "service.environment", diagnostics);
    spec.reward_services =
        named_tables(table_of(*services, "reward", diagnostics), "service.reward", diagnostics);
  }
  read_edges(spec, diagnostics);
  return spec;
}

}  // namespace primerl
