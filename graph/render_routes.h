/// The route of each edge of a plan's picture through the space between its nodes, before
/// coordinates are known.
///
///   slot   a horizontal line between the facing sides of neighbours in a row
///   lane   a horizontal line above a row (forward) or below it (feedback)
///   run    a vertical line in the gutter left of a column
///   port   where a vertical line meets the top or bottom of a node
///
/// Lines cross only at right angles: no two share a slot, a track of a run or a port. Lanes get
/// their tracks when their ends have coordinates (graph/render_drawing.cc).
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "graph/render_grid.h"

namespace primerl {

enum class Side { kLeft, kRight, kTop, kBottom };

struct Route {
  Side from = Side::kRight, to = Side::kLeft;
  size_t from_slot = 0, to_slot = 0;            // in the row; for kLeft and kRight
  size_t from_port = 0, to_port = 0;            // in the pool; for kTop and kBottom
  std::optional<size_t> first_zone, last_zone;  // of its lanes; equal if it has one lane
  std::optional<size_t> gutter;                 // of its run
  size_t track = 0;                             // of its run
  bool drops = false;                           // a straight line to the node below or above: one
                                                // port
};

/// Zones of lanes: two per row.
inline size_t zone_above(size_t row) { return 2 * row; }
inline size_t zone_below(size_t row) { return 2 * row + 1; }

/// Ports of nodes in one column that face each other: the bottoms of row `level` - 1 and the tops
/// of row `level`.
struct PortPool {
  size_t column = 0, level = 0;
  bool operator<(const PortPool& other) const {
    return std::pair(column, level) < std::pair(other.column, other.level);
  }
};
PortPool pool_of(GridCell cell, Side side);

struct Routes {
  std::vector<Route> routes;       // by edge
  std::vector<size_t> num_slots;   // by row
  std::vector<size_t> num_tracks;  // by gutter: one left of each column, one after the last
  std::map<PortPool, std::vector<size_t>> ports;  // the edges of each pool
};

Routes routes_of(const Plan& plan, const Grid& grid);

}  // namespace primerl
