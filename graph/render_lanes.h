/// Lanes of one zone of a plan's picture: horizontal lines with their labels, in tracks; and the
/// lines that a label should not cover.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "graph/render_drawing.h"

namespace primerl {

/// Vertical lines, by x.
class Obstacles {
 public:
  void add_line(const std::vector<DrawnPoint>& corners);
  void add_sides(const DrawnBox& box);
  void sort();
  /// Sets `label`.x between `left` and `right` so that few lines cross the label; the first such
  /// position from the left, or from the right.
  void set_clear(int left, int right, bool from_left, DrawnBox& label) const;

 private:
  struct Upright {
    int x, top, bottom;
  };
  size_t count(const DrawnBox& label) const;
  std::vector<Upright> lines_;
};

struct EdgeLane {
  size_t edge = 0;
  int begin = 0, end = 0;  // x of both ends, in its direction
  int label_width = 0;     // 0: its label is somewhere else
  bool is_arc = false;     // both ends are in the row beside its zone
  int left() const;
  int right() const;
  /// x of the label's middle until a better position is known.
  int label_left() const;
};

class Zone {
 public:
  void add(const EdgeLane& lane) { lanes_.push_back(lane); }
  /// Assigns tracks. Arcs get the tracks nearest to the row, short ones first, so that they nest.
  void take_tracks();
  /// Sets the upper end of the zone, and whether its row is below it.
  void place(int top, bool is_above);
  int height() const;
  int y_of(size_t edge) const { return y_.at(edge); }
  bool has_label(size_t edge) const;
  void set_label(size_t edge, const Obstacles& obstacles, DrawnBox& label) const;

 private:
  std::vector<EdgeLane> lanes_;
  std::vector<size_t> tracks_;  // by lane; 0 is nearest to the row
  size_t num_tracks_ = 0;
  std::map<size_t, int> y_;  // by edge
};

}  // namespace primerl
