#include "tests/graph/drawing_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

namespace primerl::testing {
namespace {

struct Segment {
  size_t edge;
  DrawnPoint begin, end;
  bool is_upright() const { return begin.x == end.x; }
  DrawnBox box() const {
    const auto [left, right] = std::minmax(begin.x, end.x);
    const auto [top, bottom] = std::minmax(begin.y, end.y);
    return {left, top, right - left, bottom - top};
  }
};

std::vector<Segment> segments_of(const Drawing& drawing) {
  std::vector<Segment> segments;
  for (size_t edge = 0; edge < drawing.edges.size(); ++edge) {
    const auto& line = drawing.edges[edge].line;
    for (size_t i = 1; i < line.size(); ++i) segments.push_back({edge, line[i - 1], line[i]});
  }
  return segments;
}

/// Whether the line has a point inside the box; the border does not count as inside.
bool crosses(const Segment& line, const DrawnBox& box) {
  const DrawnBox own = line.box();
  return own.x < box.right() && box.x < own.right() + (own.width == 0 ? 1 : 0) &&
         own.y < box.bottom() && box.y < own.bottom() + (own.height == 0 ? 1 : 0) &&
         (own.width > 0 || own.x > box.x) && (own.height > 0 || own.y > box.y);
}

bool is_on_border(DrawnPoint at, const DrawnBox& box) {
  const bool is_within =
      box.x <= at.x && at.x <= box.right() && box.y <= at.y && at.y <= box.bottom();
  return is_within &&
         (at.x == box.x || at.x == box.right() || at.y == box.y || at.y == box.bottom());
}

class Check {
 public:
  Check(const Plan& plan, const Drawing& drawing) : plan_(plan), drawing_(drawing) {}

  std::string run() {
    check_labels();
    check_lines();
    check_overlaps();
    check_places();
    return std::move(faults_);
  }

 private:
  template <class... Args>
  void fault(fmt::format_string<Args...> text, Args&&... args) {
    faults_ += fmt::format(text, std::forward<Args>(args)...) + "\n";
  }
  const std::string& node(size_t index) const { return plan_.nodes[index].name; }
  const std::string& edge(size_t index) const { return plan_.edges[index].name; }

  void check_labels() {
    std::vector<std::pair<std::string, DrawnBox>> labels;
    for (size_t i = 0; i < drawing_.edges.size(); ++i)
      labels.emplace_back(edge(i), drawing_.edges[i].label);
    for (const auto& place : drawing_.places) labels.emplace_back(place.text, place.label);
    const DrawnBox all{0, 0, drawing_.width, drawing_.height};
    for (const auto& [name, label] : labels) {
      if (label.width <= 0) fault("no room for the label of {}", name);
      if (!all.contains(label)) fault("the label of {} leaves the picture", name);
      for (size_t i = 0; i < drawing_.nodes.size(); ++i)
        if (drawing_.nodes[i].box.overlaps(label)) fault("{}'s label lies on {}", name, node(i));
    }
    std::sort(labels.begin(), labels.end(),
              [](const auto& a, const auto& b) { return a.second.x < b.second.x; });
    for (size_t i = 0; i < labels.size(); ++i)
      for (size_t j = i + 1; j < labels.size() && labels[j].second.x < labels[i].second.right();
           ++j)
        if (labels[i].second.overlaps(labels[j].second))
          fault("the labels of {} and {} overlap", labels[i].first, labels[j].first);
  }

  void check_lines() {
    const DrawnBox all{0, 0, drawing_.width, drawing_.height};
    for (const Segment& line : segments_of(drawing_)) {
      if (line.begin.x != line.end.x && line.begin.y != line.end.y)
        fault("{} has a slanting line", edge(line.edge));
      if (!all.contains(line.box())) fault("{} leaves the picture", edge(line.edge));
      for (size_t i = 0; i < drawing_.nodes.size(); ++i)
        if (crosses(line, drawing_.nodes[i].box)) fault("{} crosses {}", edge(line.edge), node(i));
    }
    for (size_t i = 0; i < drawing_.edges.size(); ++i) {
      const auto& line = drawing_.edges[i].line;
      if (line.size() < 2) return fault("{} has no line", edge(i));
      if (!is_on_border(line.front(), drawing_.nodes[plan_.edges[i].from.index()].box))
        fault("{} does not begin at its sender", edge(i));
      if (!is_on_border(line.back(), drawing_.nodes[plan_.edges[i].to.index()].box))
        fault("{} does not end at its receiver", edge(i));
    }
  }

  /// Two horizontal lines at the same height, or two vertical ones at the same x, must not touch.
  void check_overlaps() {
    std::map<std::pair<bool, int>, std::vector<Segment>> by_axis;
    for (const Segment& line : segments_of(drawing_))
      by_axis[{line.is_upright(), line.is_upright() ? line.begin.x : line.begin.y}].push_back(line);
    for (auto& [axis, lines] : by_axis) {
      const auto ends = [upright = axis.first](const Segment& line) {
        return upright ? std::minmax(line.begin.y, line.end.y)
                       : std::minmax(line.begin.x, line.end.x);
      };
      std::sort(lines.begin(), lines.end(),
                [&](const Segment& a, const Segment& b) { return ends(a).first < ends(b).first; });
      for (size_t i = 1; i < lines.size(); ++i)
        if (lines[i].edge != lines[i - 1].edge && ends(lines[i]).first <= ends(lines[i - 1]).second)
          fault("{} and {} lie on each other", edge(lines[i].edge), edge(lines[i - 1].edge));
    }
  }

  void check_places() {
    for (size_t i = 0; i < plan_.nodes.size(); ++i) {
      const auto own = std::find_if(
          drawing_.places.begin(), drawing_.places.end(),
          [&](const auto& place) { return place.process == plan_.nodes[i].process.index(); });
      if (own == drawing_.places.end() || !own->box.contains(drawing_.nodes[i].box))
        fault("{} is not in its place", node(i));
      for (size_t j = 0; j < i; ++j)
        if (drawing_.nodes[i].box.overlaps(drawing_.nodes[j].box))
          fault("{} lies on {}", node(i), node(j));
    }
    for (size_t i = 0; i < drawing_.places.size(); ++i)
      for (size_t j = 0; j < drawing_.places.size(); ++j) {
        const auto &one = drawing_.places[i], &two = drawing_.places[j];
        if (i < j && one.box.overlaps(two.box)) fault("{} meets {}", one.text, two.text);
        if (i == j && !one.box.contains(one.label)) fault("the name leaves {}", one.text);
      }
  }

  const Plan& plan_;
  const Drawing& drawing_;
  std::string faults_;
};

}  // namespace

std::string drawing_faults(const Plan& plan, const Drawing& drawing) {
  return Check(plan, drawing).run();
}

size_t num_crossed_labels(const Drawing& drawing) {
  const auto segments = segments_of(drawing);
  return static_cast<size_t>(
      std::count_if(drawing.edges.begin(), drawing.edges.end(), [&](const auto& edge) {
        return std::any_of(segments.begin(), segments.end(),
                           [&](const Segment& line) { return crosses(line, edge.label); });
      }));
}

}  // namespace primerl::testing
