// Checks that forward edges form no cycle. Then some node can always continue, because a full edge
// only stops the node that feeds it.
#include <algorithm>
#include <span>

#include "graph/check/rules.h"

namespace primerl {
namespace {

/// One forward edge.
struct Arc {
  int32_t from = 0, to = 0;
  const DraftEdge* edge = nullptr;
};

/// Finds one cycle through every node that is in a cycle. Iterative, because a chain may be long.
class CycleFinder {
 public:
  CycleFinder(size_t num_nodes, const std::vector<Arc>& arcs)
      : leaving_(num_nodes), state_(num_nodes, State::kNew), is_reported_(num_nodes) {
    for (const auto& arc : arcs) leaving_[static_cast<size_t>(arc.from)].push_back(&arc);
  }

  /// The arcs of each cycle found: one cycle for each set of nodes that wait for each other.
  std::vector<std::vector<const Arc*>> find() {
    for (size_t node = 0; node < state_.size(); ++node)
      if (state_[node] == State::kNew) visit(static_cast<int32_t>(node));
    return std::move(cycles_);
  }

 private:
  enum class State : uint8_t { kNew, kOpen, kDone };
  struct Frame {
    int32_t node = 0;
    size_t next = 0;
  };

  void visit(int32_t start) {
    std::vector<Frame> stack{{start, 0}};
    std::vector<const Arc*> path;
    state_[static_cast<size_t>(start)] = State::kOpen;
    while (!stack.empty()) {
      Frame& top = stack.back();
      const auto& leaving = leaving_[static_cast<size_t>(top.node)];
      if (top.next == leaving.size()) {
        state_[static_cast<size_t>(top.node)] = State::kDone;
        stack.pop_back();
        if (!path.empty()) path.pop_back();
        continue;
      }
      const Arc* arc = leaving[top.next++];
      State& target = state_[static_cast<size_t>(arc->to)];
      if (target == State::kNew) {
        target = State::kOpen;
        path.push_back(arc);
        stack.push_back({arc->to, 0});
      } else if (target == State::kOpen) {
        close(path, arc);
      }
    }
  }

  void close(const std::vector<const Arc*>& path, const Arc* last) {
    auto first = path.end();
    while (first != path.begin() && (*(first - 1))->to != last->to) --first;
    // `first` is now at the first arc that leaves last->to.
    std::vector<const Arc*> cycle(first, path.end());
    cycle.push_back(last);
    const bool is_known = std::any_of(cycle.begin(), cycle.end(), [this](const Arc* arc) {
      return is_reported_[static_cast<size_t>(arc->to)];
    });
    if (is_known) return;
    for (const Arc* arc : cycle) is_reported_[static_cast<size_t>(arc->to)] = true;
    cycles_.push_back(std::move(cycle));
  }

  std::vector<std::vector<const Arc*>> leaving_;
  std::vector<State> state_;
  std::vector<bool> is_reported_;
  std::vector<std::vector<const Arc*>> cycles_;
};

std::string name_of(const Draft& draft, int32_t node) {
  return draft.nodes[static_cast<size_t>(node)].spec->name;
}

void report(Draft& draft, const std::vector<const Arc*>& cycle) {
  constexpr size_t kStepsShown = 12;
  std::vector<std::string> steps;
  for (const Arc* arc : std::span(cycle).last(std::min(cycle.size(), kStepsShown)))
    steps.push_back(fmt::format("{} -> {}", name_of(draft, arc->from), name_of(draft, arc->to)));
  draft.diagnostics
      .error("G036", cycle.back()->edge->spec->path->span, "this forward edge closes a cycle: {}{}",
             cycle.size() > kStepsShown ? "..., " : "", fmt::join(steps, ", "))
      .note("when every forward edge of a cycle is full, none of its nodes can continue")
      .suggest("make one of them a feedback edge");
}

}  // namespace

void check_forward_cycles(Draft& draft) {
  std::vector<Arc> arcs;
  arcs.reserve(draft.edges.size());
  for (const auto& edge : draft.edges)
    if (edge.from >= 0 && edge.to >= 0 && !edge.spec->feedback)
      arcs.push_back({edge.from, edge.to, &edge});
  for (const auto& cycle : CycleFinder(draft.nodes.size(), arcs).find()) report(draft, cycle);
}

}  // namespace primerl
