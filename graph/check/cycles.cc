// Forward edges form no cycle, neither of nodes nor of host groups: then some host can always move.
#include <algorithm>

#include "graph/check/rules.h"

namespace primerl {
namespace {

/// One forward edge between two groups.
struct Arc {
  int32_t from = 0, to = 0;
  const DraftEdge* edge = nullptr;
};

/// Finds for every group of a cycle one way round. Iterative: a chain may be long.
class CycleFinder {
 public:
  CycleFinder(size_t num_groups, const std::vector<Arc>& arcs)
      : leaving_(num_groups), state_(num_groups, State::kNew) {
    for (const auto& arc : arcs) leaving_[static_cast<size_t>(arc.from)].push_back(&arc);
  }

  /// The arcs of each cycle found; one cycle for each set of groups that depend on each other.
  std::vector<std::vector<const Arc*>> find() {
    for (size_t group = 0; group < state_.size(); ++group)
      if (state_[group] == State::kNew) visit(static_cast<int32_t>(group));
    return std::move(cycles_);
  }

 private:
  enum class State : uint8_t { kNew, kOpen, kDone };
  struct Frame {
    int32_t group = 0;
    size_t next = 0;
  };

  void visit(int32_t start) {
    std::vector<Frame> stack{{start, 0}};
    std::vector<const Arc*> path;
    state_[static_cast<size_t>(start)] = State::kOpen;
    while (!stack.empty()) {
      Frame& top = stack.back();
      const auto& leaving = leaving_[static_cast<size_t>(top.group)];
      if (top.next == leaving.size()) {
        state_[static_cast<size_t>(top.group)] = State::kDone;
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
    // `first` now stands at the first arc that leaves last->to.
    std::vector<const Arc*> cycle(first, path.end());
    cycle.push_back(last);
    const bool is_known = std::any_of(cycle.begin(), cycle.end(), [this](const Arc* arc) {
      return std::find(reported_.begin(), reported_.end(), arc->to) != reported_.end();
    });
    if (is_known) return;
    for (const Arc* arc : cycle) reported_.push_back(arc->to);
    cycles_.push_back(std::move(cycle));
  }

  std::vector<std::vector<const Arc*>> leaving_;
  std::vector<State> state_;
  std::vector<int32_t> reported_;
  std::vector<std::vector<const Arc*>> cycles_;
};

std::string name_of(const Draft& draft, int32_t node) {
  return draft.nodes[static_cast<size_t>(node)].spec->name;
}

void report(Draft& draft, std::string_view code, const std::vector<const Arc*>& cycle,
            bool of_groups) {
  const DraftEdge& last = *cycle.back()->edge;
  std::vector<std::string> steps;
  for (const Arc* arc : cycle)
    steps.push_back(
        fmt::format("{} -> {}", name_of(draft, arc->edge->from), name_of(draft, arc->edge->to)));
  auto& found =
      draft.diagnostics.error(code, last.spec->path->span, "this forward edge closes a cycle{}: {}",
                              of_groups ? " of threads" : "", fmt::join(steps, ", "));
  if (of_groups)
    found.note(
        "nodes that share an engine or learner run on one thread, which waits as a whole "
        "while one of its forward edges is full");
  else
    found.note("when every forward edge of a cycle is full, no node of it can move");
  found.suggest("make one of them a feedback edge");
}

void search(Draft& draft, std::string_view code, const std::vector<int32_t>& group,
            bool of_groups) {
  std::vector<Arc> arcs;
  arcs.reserve(draft.edges.size());
  for (const auto& edge : draft.edges) {
    if (edge.from < 0 || edge.to < 0 || edge.spec->feedback) continue;
    const int32_t from = group[static_cast<size_t>(edge.from)];
    const int32_t to = group[static_cast<size_t>(edge.to)];
    if (of_groups && from == to) continue;
    arcs.push_back({from, to, &edge});
  }
  for (const auto& cycle : CycleFinder(draft.nodes.size(), arcs).find())
    report(draft, code, cycle, of_groups);
}

}  // namespace

void check_forward_cycles(Draft& draft) {
  std::vector<int32_t> alone(draft.nodes.size());
  for (size_t i = 0; i < alone.size(); ++i) alone[i] = static_cast<int32_t>(i);
  const size_t before = draft.diagnostics.num_errors();
  search(draft, "G036", alone, false);
  if (draft.diagnostics.num_errors() > before) return;
  search(draft, "G039", host_groups(draft), true);
}

}  // namespace primerl
