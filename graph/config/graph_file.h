/// GraphFile: a graph as one tree of values, put together from the file, what it includes, the
/// overlays and the `--set` flags, in that order; the later one wins. Tables merge key by key, any
/// other value (also a list) is replaced. Every value keeps the span of the text it came from.
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
inline constexpr size_t kIncludesMax = 256;  // files of one graph

struct GraphFile {
  Table root;                        // without `include`
  std::vector<std::string> folders;  // by SourceId: what relative paths of that text start from
  SourceId first_set = 0;            // sources from here on are --set flags
};

/// Nothing when the file itself cannot be read; faults of includes, overlays and flags are reported
/// and left out.
std::optional<GraphFile> read_graph_file(const std::string& path, const Overrides& overrides,
                                         Sources& sources, Diagnostics& diagnostics);
std::optional<GraphFile> read_graph_text(std::string_view text, const std::string& name,
                                         const std::string& folder, const Overrides& overrides,
                                         Sources& sources, Diagnostics& diagnostics);

/// A path of the file as written, relative to the file it stands in (a flag: to the folder one is
/// in).
std::string absolute_path(const GraphFile& file, const Value& path);

/// `[graph] plugins` as written; null when it is not. Also under a misspelt key: what such a list
/// names is not unknown.
const Entry* plugin_list(const GraphFile& file);
/// The absolute paths of its strings.
std::vector<std::string> plugin_files(const GraphFile& file);

}  // namespace primerl
