/// GraphFile: a graph as one tree of values, from the file, the files that it includes, the
/// overlays and the `--set` flags, in that order. Later values replace earlier ones. Tables are
/// merged key by key; any other value, also a list, is replaced. Every value keeps the span of its
/// text.
///
/// A file without [edges] is short: after the overlays, a built-in graph adds what it leaves out.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/config/diagnostic.h"
#include "graph/plan.h"
#include "graph/value.h"

namespace primerl {

inline constexpr int kIncludeDepthMax = 16;
inline constexpr size_t kIncludesMax = 256;  // most files of one graph

struct GraphFile {
  Table root;                        // without `include`
  std::vector<std::string> folders;  // by SourceId: the folder to which paths of that text are
                                     // relative
  SourceId first_set = 0;            // from this source on, sources are --set flags
  std::string built_in;              // the built-in graph that completes it; empty = none
  bool is_partial = false;           // an include or an overlay could not be read
};

/// Empty if the file itself cannot be read. Errors in includes, overlays and flags are reported,
/// and those texts are left out.
std::optional<GraphFile> read_graph_file(const std::string& path, const Overrides& overrides,
                                         Sources& sources, Diagnostics& diagnostics);
std::optional<GraphFile> read_graph_text(std::string_view text, const std::string& name,
                                         const std::string& folder, const Overrides& overrides,
                                         Sources& sources, Diagnostics& diagnostics);

/// A graph with the tenant of another file in it, as if the graph's file had it.
struct JoinedFile {
  GraphFile file;
  std::string tenant;  // its name
  Span name_span;
  SourceId graph_source = 0;  // sources below are the tenant's file and what it includes
};

/// Reads the file of a tenant that joins the graph `graph_text`, a resolved graph. Beside `include`
/// the file has one [tenant.<name>]; the name is free in the graph. Empty after an error.
std::optional<JoinedFile> read_joining_file(const std::string& path, std::string_view graph_text,
                                            Sources& sources, Diagnostics& diagnostics);

/// A path in the file, made absolute: it is relative to the file that has it (a flag: to the folder
/// of the graph file).
std::string absolute_path(const GraphFile& file, const Value& path);

/// `[graph] plugins` in the file; null if there is none. Also finds a misspelt key, so that names
/// from these plugins are not reported as unknown.
const Entry* plugin_list(const GraphFile& file);
/// The absolute paths in that list.
std::vector<std::string> plugin_files(const GraphFile& file);

}  // namespace primerl
