#include "graph/check/waiting_groups.h"

#include <algorithm>
#include <set>

namespace primerl {
namespace {

// A token has its id, log-probability and weight, and whether it is learned.
constexpr int64_t kTokenBytes = 13;
constexpr int64_t kReferenceBytes = 4;
constexpr int64_t kLikeliestBytes = 8;  // of each of a teacher's likeliest tokens

const OutputPort& output_of(const Draft& draft, const DraftEdge& edge) {
  return draft.nodes[static_cast<size_t>(edge.from)]
      .contract->outputs[static_cast<size_t>(edge.output)];
}

/// The forward edges of the examples: from a node that gives them, on through nodes that send the
/// same type of message.
std::vector<const DraftEdge*> edges_of_examples(const Draft& draft) {
  std::vector<const DraftEdge*> found;
  std::vector<int32_t> open;
  std::set<int32_t> seen;
  for (size_t i = 0; i < draft.nodes.size(); ++i) {
    const Contract* const contract = draft.nodes[i].contract;
    if (contract != nullptr && contract->num_examples) open.push_back(static_cast<int32_t>(i));
  }
  const MessageType* type = nullptr;
  while (!open.empty()) {
    const int32_t from = open.back();
    open.pop_back();
    for (const DraftEdge& edge : draft.edges) {
      if (edge.from != from || !edge.is_whole() || edge.is_repeated) continue;
      if (edge.spec->feedback) continue;
      if (type != nullptr && output_of(draft, edge).type != type) continue;
      type = output_of(draft, edge).type;
      found.push_back(&edge);
      if (seen.insert(edge.to).second) open.push_back(edge.to);
    }
  }
  return found;
}

/// A sender is held back once a full edge has so many bytes, so one more group may be there.
double bytes_on(const Draft& draft, const DraftEdge& edge, const Tenant& tenant, int64_t tokens) {
  const Contract& from = *draft.nodes[static_cast<size_t>(edge.from)].contract;
  int64_t of_token = kTokenBytes;
  if (from.is_teacher && tenant.teacher.is_there())
    of_token += kReferenceBytes + kLikeliestBytes * tenant.teacher.top_k;
  const auto group = static_cast<double>(tenant.group_size * tokens * of_token);
  const auto all = group * static_cast<double>(std::max<int64_t>(edge.spec->capacity, 1));
  return std::min(all, static_cast<double>(edge.spec->bytes_max) + group);
}

}  // namespace

std::vector<MemoryPart> waiting_groups(const Draft& draft, const DraftResource& learner) {
  const auto edges = edges_of_examples(draft);
  if (edges.empty() || learner.model < 0) return {};
  const auto& facts = draft.models[static_cast<size_t>(learner.model)].facts;
  const int64_t positions = facts ? facts->max_position_embeddings : 0;
  std::vector<MemoryPart> parts;
  for (const Tenant& tenant : draft.tenant_values()) {
    const int64_t tokens = positions > 0 ? std::min(tenant.seq_len, positions) : tenant.seq_len;
    double bytes = 0;
    for (const DraftEdge* edge : edges) bytes += bytes_on(draft, *edge, tenant, tokens);
    parts.push_back(
        {fmt::format("groups of examples of tenant '{}' that wait for the trainer", tenant.name),
         bytes});
  }
  return parts;
}

}  // namespace primerl
