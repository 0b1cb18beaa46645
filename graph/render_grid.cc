#include "graph/render_grid.h"

#include <algorithm>
#include <limits>

#include "graph/render_layout.h"

namespace primerl {
namespace {

constexpr size_t kNone = std::numeric_limits<size_t>::max();

using Chain = std::vector<size_t>;  // nodes, each fed by the one before it

/// For each node, the next node of its longest forward chain within its place.
std::vector<size_t> next_in_chain(const Plan& plan) {
  std::vector<size_t> length(plan.nodes.size(), 1), next(plan.nodes.size(), kNone);
  // Edges are sorted by source in forward order. Going from the last edge back, the length of every
  // target is final.
  for (size_t i = plan.edges.size(); i-- > 0;) {
    const auto& edge = plan.edges[i];
    const size_t from = edge.from.index(), to = edge.to.index();
    if (edge.feedback || plan.nodes[from].process != plan.nodes[to].process) continue;
    // Of equally long chains the first edge is used, which comes last here.
    if (length[to] + 1 < length[from]) continue;
    length[from] = length[to] + 1;
    next[from] = to;
  }
  return next;
}

/// All nodes as chains, each within one place. A chain begins at the first node that has no chain
/// yet.
std::vector<Chain> chains_of(const Plan& plan) {
  std::vector<Chain> chains;
  std::vector<bool> is_taken(plan.nodes.size());
  std::vector<size_t> next = next_in_chain(plan);
  for (size_t node = 0; node < plan.nodes.size(); ++node) {
    if (is_taken[node]) continue;
    Chain& chain = chains.emplace_back();
    for (size_t at = node; at != kNone && !is_taken[at]; at = next[at]) {
      chain.push_back(at);
      is_taken[at] = true;
    }
  }
  return chains;
}

/// The rows of one place. Each chain is put into the first row where its columns are free.
struct PlaceRows {
  struct Span {
    size_t first, last;
    bool meets(const Span& other) const { return first <= other.last && other.first <= last; }
  };
  std::vector<std::vector<Span>> rows;

  size_t add(Span span) {
    const auto is_free = [&span](const std::vector<Span>& row) {
      return std::none_of(row.begin(), row.end(), [&](const Span& one) { return one.meets(span); });
    };
    auto row = std::find_if(rows.begin(), rows.end(), is_free);
    if (row == rows.end()) row = rows.emplace(rows.end());
    row->push_back(span);
    return static_cast<size_t>(row - rows.begin());
  }
};

/// Moves an area down to the first row where it overlaps no earlier area.
void move_to_free_row(std::vector<GridArea>& areas, size_t index) {
  GridArea& area = areas[index];
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t other = 0; other < index; ++other) {
      if (!area.meets(areas[other])) continue;
      const size_t height = area.last_row - area.first_row;
      area.first_row = areas[other].last_row + 1;
      area.last_row = area.first_row + height;
      moved = true;
    }
  }
}

}  // namespace

std::optional<size_t> Grid::node_at(GridCell cell) const {
  return nodes[cell.row * num_columns + cell.column];
}

bool Grid::sees(GridCell left, GridCell right) const {
  for (size_t column = left.column + 1; column < right.column; ++column)
    if (node_at({left.row, column})) return false;
  return true;
}

Grid grid_of(const Plan& plan) {
  Grid grid;
  grid.cells.resize(plan.nodes.size());
  const auto layers = layers_of(plan);
  for (size_t layer = 0; layer < layers.size(); ++layer)
    for (const size_t node : layers[layer]) grid.cells[node].column = layer;
  std::vector<PlaceRows> places(plan.processes.size());
  std::vector<size_t> order;  // of processes, in the order of their first nodes
  for (const Chain& chain : chains_of(plan)) {
    const size_t process = plan.nodes[chain.front()].process.index();
    if (places[process].rows.empty()) order.push_back(process);
    const size_t row =
        places[process].add({grid.cells[chain.front()].column, grid.cells[chain.back()].column});
    for (const size_t node : chain) grid.cells[node].row = row;
  }
  std::vector<size_t> area_of(plan.processes.size());
  for (const size_t process : order) {
    GridArea area{process, 0, places[process].rows.size() - 1, kNone, 0};
    for (const auto& row : places[process].rows)
      for (const auto& span : row) {
        area.first_column = std::min(area.first_column, span.first);
        area.last_column = std::max(area.last_column, span.last);
      }
    area_of[process] = grid.areas.size();
    grid.areas.push_back(area);
    move_to_free_row(grid.areas, grid.areas.size() - 1);
    grid.num_rows = std::max(grid.num_rows, grid.areas.back().last_row + 1);
  }
  grid.num_columns = layers.size();
  grid.nodes.resize(grid.num_rows * grid.num_columns);
  for (size_t node = 0; node < plan.nodes.size(); ++node) {
    GridCell& cell = grid.cells[node];
    cell.row += grid.areas[area_of[plan.nodes[node].process.index()]].first_row;
    grid.nodes[cell.row * grid.num_columns + cell.column] = node;
  }
  return grid;
}

}  // namespace primerl
