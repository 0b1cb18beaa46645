/// The steps from a GraphFile to a Plan. check_and_resolve() calls the others, in this order, for a
/// Draft without errors.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "graph/check/draft.h"
#include "graph/plan.h"

namespace primerl {

/// The order of a draft's nodes, edges and places in the plan.
struct PlanOrder {
  std::vector<int32_t> nodes;   // draft indices, along the forward edges, ties by name
  std::vector<int32_t> edges;   // draft indices: forward before feedback, then by nodes and ports
  std::vector<int32_t> places;  // draft indices by name; {0} without [place]
  std::vector<uint32_t> first_process;  // by draft place: process of its first replica
};

/// Loads the plugins of `file`, checks it and makes its plan. The findings and the plan are in
/// `result`, whose `sources` have the texts of the file. Nothing is checked without a file.
void check_and_resolve(std::optional<GraphFile> file, const Overrides& overrides,
                       const Catalog& base, CheckedGraph& result);

PlanOrder order_of(const Draft& draft);

/// Tenants, models, processes, nodes and edges, without the fields that depend on placement.
void fill_tables(const Draft& draft, const PlanOrder& order, Plan& plan);
/// Resources, instances and actor groups.
void place_instances(const Draft& draft, const PlanOrder& order, Plan& plan);
/// Every copy of every resource, and the copies that each instance uses.
void make_resources(const Draft& draft, const PlanOrder& order,
                    const std::vector<uint32_t>& process_of, Plan& plan);
/// at_most and bound of every edge.
void bound_edges(const Draft& draft, const PlanOrder& order, Plan& plan);
/// resolved_toml, graph_hash and, in the same order, every value with its origin.
std::vector<ResolvedValue> write_resolved(const Draft& draft, const PlanOrder& order, Plan& plan);

}  // namespace primerl
