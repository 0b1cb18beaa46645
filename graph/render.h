/// A Plan as a picture: text boxes for a terminal, Mermaid and DOT for documents, SVG for a
/// browser, JSON for programs. Pure functions: equal plans give equal bytes.
#pragma once

#include <string>

#include "graph/base/json.h"
#include "graph/plan.h"

namespace primerl {

/// "2 tenants"; with limits "2 tenants of 8 slots".
std::string tenants_text(const Plan& plan);

/// Nodes as boxes from left to right along the forward edges, then every edge with its message
/// type.
std::string render_text(const Plan& plan);
/// One line for all edges between two nodes: forward edges bold and first, then feedback. A line is
/// dotted if it has only feedback. Processes are subgraphs if there are several.
std::string render_mermaid(const Plan& plan);
std::string render_dot(const Plan& plan);
std::string render_svg(const Plan& plan);
/// {"schema": "primerl.graph/1", ...}: nodes, edges, resources, tenants, processes.
Json render_json(const Plan& plan);

/// `show --plan`: processes, actor groups and compute threads; capacity, bound and memory of every
/// edge.
std::string render_plan(const Plan& plan);

/// `show --resolved`: the canonical text. With origins: every value and its origin.
std::string render_resolved(const CheckedGraph& graph, bool with_origin);
Json resolved_json(const CheckedGraph& graph);

}  // namespace primerl
