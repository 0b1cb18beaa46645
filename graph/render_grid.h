/// Cells for the nodes of a plan's picture: a column for each layer, rows of forward chains, and
/// for each place a rectangle of cells with only its own nodes.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "graph/plan.h"

namespace primerl {

struct GridCell {
  size_t row = 0, column = 0;
  bool operator==(const GridCell&) const = default;
};

/// The cells of a place, both ends included.
struct GridArea {
  size_t process = 0;  // the first replica
  size_t first_row = 0, last_row = 0;
  size_t first_column = 0, last_column = 0;
  bool meets(const GridArea& other) const {
    return first_row <= other.last_row && other.first_row <= last_row &&
           first_column <= other.last_column && other.first_column <= last_column;
  }
};

struct Grid {
  size_t num_rows = 0, num_columns = 0;
  std::vector<GridCell> cells;  // by node
  std::vector<GridArea> areas;  // of places that have nodes, by process

  /// The node of a cell; empty if it has none.
  std::optional<size_t> node_at(GridCell cell) const;
  /// Whether there is no node between two cells of a row.
  bool sees(GridCell left, GridCell right) const;

  std::vector<std::optional<size_t>> nodes;  // row-major
};

Grid grid_of(const Plan& plan);

}  // namespace primerl
