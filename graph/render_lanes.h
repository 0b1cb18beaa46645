/// Lanes of one zone of a plan's picture: horizontal lines with their labels, in tracks; and what a
/// label should not lie on.
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
  /// Sets `label`.x between `left` and `right` so that few lines cross it; the first such place
  /// from the left, or from the right.
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
  int begin = 0, end = 0;  // x; it leads from begin to end
  int label_width = 0;     // 0: its label is elsewhere
  bool is_arc = false;     // both ends in the row beside its zone
  int left() const;
  int right() const;
  /// x of the label's middle while no better place is known.
  int label_left() const;
};

class Zone {
 public:
  void add(const EdgeLane& lane) { lanes_.push_back(lane); }
  /// The tracks nearest to the row for arcs, short ones first: they nest.
  void take_tracks();
  /// Its upper end; whether its row lies below it.
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
