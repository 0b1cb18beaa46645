/// Short graph files: a file whose text, includes and overlays have no [edges] gets its loop from a
/// built-in graph. Then [node.x] sets options of the loop's nodes.
#pragma once

#include "graph/config/graph_file.h"

namespace primerl {

/// Reads an item of `include` such as "primerl:sft": the file will be completed by that graph.
void name_built_in(const Value& item, GraphFile& file, Diagnostics& diagnostics);

/// Adds the tables and values that the file leaves out: those of the built-in graph that it names,
/// or of the standard one if it has no [edges]. A node that the loop does not have is reported.
/// Called after the overlays and before the --set flags.
void complete_file(GraphFile& file, Sources& sources, Diagnostics& diagnostics);

/// The position of [graph] in the user's texts, or the beginning of the file.
Span graph_span(const GraphFile& file, const Sources& sources);

/// Moves findings at lines of a built-in graph to graph_span(), with a note that quotes the line.
/// One fault that several of its lines repeat is kept once.
void leave_built_in_lines(const GraphFile& file, const Sources& sources, Diagnostics& diagnostics);

}  // namespace primerl
