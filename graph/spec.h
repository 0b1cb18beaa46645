/// GraphSpec: a graph as written, divided into its tables, every part with its span. Nothing is
/// resolved and no default is filled in. A misspelt name is reported in the diagnostics, and the
/// name that was meant is here. Points into the GraphFile it was read from, which must stay valid
/// while the GraphSpec is used.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/config/diagnostic.h"
#include "graph/config/graph_file.h"
#include "graph/value.h"

namespace primerl {

/// A table such as `[node.router]`: its name and its content.
struct NamedTable {
  std::string name;
  Span name_span;
  Table* table = nullptr;  // misspelt keys are corrected in it when they are found
};

/// One end of an edge, with the position of its names in the edge's text.
struct EdgeEnd {
  std::string_view node, port;
  size_t node_offset = 0, port_offset = 0;
};

struct EdgeSpec {
  const Value* path = nullptr;  // the string "router.prefill -> prefill.request"
  EdgeEnd from, to;
  bool feedback = false;
  int64_t capacity = 64;
  int64_t bytes_max = int64_t{256} << 20;
  std::string record = "auto";
  Span record_span;  // position of its value, if the file has one
  std::string transport = "auto";
  Span transport_span;
};

struct GraphSpec {
  Table* graph = nullptr;   // `[graph]`
  Table* trace = nullptr;   // `[trace]`
  Table* edges = nullptr;   // `[edges]`
  Table* places = nullptr;  // `[place]`; null = one process
  Span whole;               // the file: the position of anything that is missing
  std::vector<NamedTable> tenants, models, resources, nodes, place;
  /// `[service.environment.<name>]` and `[service.reward.<name>]`.
  std::vector<NamedTable> environment_services, reward_services;
  std::vector<EdgeSpec> edge_list;
  std::vector<std::string> broken_edges;  // texts that are not valid edges: their nodes are not
                                          // known
  bool has_lost_edges = false;            // not even the text is known
};

/// a-z, 0-9 and _, beginning with a letter, at most 64 bytes: names of nodes, actors, options, ...
bool is_lower_snake(std::string_view name);

/// Divides the tree. Reports unknown top-level keys (G006), names that are not lower_snake (G017),
/// values that should be a table (G021) and malformed edges (G030).
GraphSpec read_spec(GraphFile& file, Diagnostics& diagnostics);

}  // namespace primerl
