/// Drawing: the position of everything in a plan's picture, before it is written as SVG. Numbers
/// are pixels from the top left corner.
///
/// Nodes are in columns along the forward edges, in rows of chains, inside the box of their place.
/// Lines between neighbours of a row are straight. All others go around: forward edges above their
/// rows or down the gutters, feedback edges below. No line crosses a node, no line covers another,
/// and no labels overlap; labels are where the fewest lines cross them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "graph/plan.h"

namespace primerl {

struct DrawnPoint {
  int x = 0, y = 0;
  bool operator==(const DrawnPoint&) const = default;
};

struct DrawnBox {
  int x = 0, y = 0, width = 0, height = 0;
  int right() const { return x + width; }
  int bottom() const { return y + height; }
  bool overlaps(const DrawnBox& other) const {
    return x < other.right() && other.x < right() && y < other.bottom() && other.y < bottom();
  }
  bool contains(const DrawnBox& other) const {
    return x <= other.x && other.right() <= right() && y <= other.y && other.bottom() <= bottom();
  }
};

struct Drawing {
  struct Place {
    size_t process = 0;  // of the plan; its first replica
    DrawnBox box;
    DrawnBox label;
    std::string text;  // "inference on cuda:0, 2 replicas"
  };
  struct Node {
    DrawnBox box;
    std::vector<std::string> traits;  // lines
  };
  struct Edge {
    std::vector<DrawnPoint> line;  // corners, from the sender's box to the receiver's
    DrawnBox label;
  };
  int width = 0, height = 0;
  DrawnPoint heading;  // of the graph: where its text begins
  std::vector<Place> places;
  std::vector<Node> nodes;  // by node of the plan
  std::vector<Edge> edges;  // by edge of the plan
};

/// Font sizes; names of nodes and places are bold.
inline constexpr int kNameSize = 14, kTraitSize = 10, kLabelSize = 11, kPlaceSize = 12;

Drawing draw(const Plan& plan);

/// A lower bound of the width of a text in pixels, in the widest of the common sans-serif fonts.
int text_width(std::string_view text, int font_size);

}  // namespace primerl
