// Computes the largest number of messages that can wait on an edge, per source and target instance.
//
// A forward edge is full at its capacity. While it is full, its sender gets no forward input and no
// work call. More messages may still arrive: the rest of the burst that filled it, one work call
// that started just before, and what the sender emits for feedback and timers, which are never held
// back.
#include <algorithm>
#include <limits>

#include "graph/resolve.h"

namespace primerl {
namespace {

constexpr int64_t kBoundMax = std::numeric_limits<int64_t>::max() / 4;

int64_t plus(int64_t a, int64_t b) { return a >= kBoundMax - b ? kBoundMax : a + b; }
int64_t times(int64_t a, int64_t b) { return a > 0 && b > kBoundMax / a ? kBoundMax : a * b; }

/// Instances of `from` that send to one instance of `to`: the same tenant slot if both have slots,
/// and the same replica if they share a place.
int64_t count_senders(const Draft& draft, const DraftNode& from, const DraftNode& to) {
  int64_t senders = count_instances(draft, from);
  if (from.common.per_tenant && to.common.per_tenant)
    senders /= static_cast<int64_t>(draft.num_slots());
  return from.place == to.place ? senders / place_replicas(draft, from) : senders;
}

/// For each node, the feedback messages that may be in flight to one instance, summed over its
/// inputs.
std::vector<int64_t> feedback_inputs(const Draft& draft, const std::vector<Tenant>& tenants) {
  // By node and input. A bound that the input states counts once, however many edges end there;
  // bounds of outputs and of latest_wins count for every sender.
  std::vector<std::vector<int64_t>> by_input(draft.nodes.size());
  for (size_t i = 0; i < draft.nodes.size(); ++i)
    by_input[i].resize(draft.nodes[i].contract->inputs.size());
  for (const auto& edge : draft.edges) {
    if (!edge.spec->feedback) continue;
    const auto& from = draft.nodes[static_cast<size_t>(edge.from)];
    const auto& to = draft.nodes[static_cast<size_t>(edge.to)];
    const auto& input = to.contract->inputs[static_cast<size_t>(edge.input)];
    auto& sum = by_input[static_cast<size_t>(edge.to)][static_cast<size_t>(edge.input)];
    if (input.at_most && !input.latest_wins) {
      sum = input.at_most->value(to.options.get(), tenants);
      continue;
    }
    const auto number = feedback_number(draft, edge, tenants);
    sum = plus(sum, times(number.at_most, count_senders(draft, from, to)));
  }
  std::vector<int64_t> totals;
  totals.reserve(by_input.size());
  for (const auto& inputs : by_input) {
    int64_t total = 0;
    for (const int64_t input : inputs) total = plus(total, input);
    totals.push_back(total);
  }
  return totals;
}

/// Raises at_most and bound of every edge to what these tenants need.
void raise_bounds(const Draft& draft, const PlanOrder& order, const std::vector<Tenant>& tenants,
                  Plan& plan) {
  const auto feedback = feedback_inputs(draft, tenants);
  for (size_t i = 0; i < plan.edges.size(); ++i) {
    const auto& from_draft = draft.edges[static_cast<size_t>(order.edges[i])];
    PlanEdge& edge = plan.edges[i];
    if (edge.feedback) {
      const auto number = feedback_number(draft, from_draft, tenants);
      edge.latest_wins = number.latest_wins;
      edge.at_most = std::max(edge.at_most, number.at_most);
      edge.bound = edge.at_most;
      continue;
    }
    const auto& node = draft.nodes[static_cast<size_t>(from_draft.from)];
    const auto& output = node.contract->outputs[edge.output];
    const int64_t burst = output.burst.value(node.options.get(), tenants);
    const int64_t work_burst = output.work_burst.value(node.options.get(), tenants);
    const auto timers = static_cast<int64_t>(node.contract->timers.size());
    const int64_t unheld = plus(feedback[static_cast<size_t>(from_draft.from)], timers);
    edge.bound = std::max(edge.bound, plus(plus(edge.capacity, std::max<int64_t>(burst, 1) - 1),
                                           plus(times(unheld, burst), work_burst)));
  }
}

}  // namespace

void bound_edges(const Draft& draft, const PlanOrder& order, Plan& plan) {
  raise_bounds(draft, order, draft.tenant_values(), plan);
  if (!draft.any_tenant) return;
  // Some amounts grow with the size of a group, others with the number of groups of a batch.
  raise_bounds(draft, order, draft.limit_values(), plan);
  raise_bounds(draft, order, draft.limit_values([](Tenant& slot) { slot.group_size = 1; }), plan);
}

}  // namespace primerl
