#include "graph/render_drawing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/render_lanes.h"
#include "graph/render_layout.h"
#include "graph/render_routes.h"

namespace primerl {
namespace {

constexpr int kMargin = 24, kHeadingHeight = 34, kLegendHeight = 30;
constexpr int kNodeWidthMin = 130, kNodePadding = 12, kNodeHeightMin = 46;
constexpr int kSlotPitch = 20, kTrackPitch = 12, kPortPitch = 14;
constexpr int kGutterPadding = 26;               // on both sides, for the borders of places
constexpr int kPlacePadding = 14;                // from a node to the border
constexpr int kPlaceStrip = 26, kPlaceGap = 14;  // height of a place's name; gap between two places
constexpr int kTraitHeight = 13;

/// Makes a Drawing step by step. Each step reads only results of earlier steps.
class Draftsman {
 public:
  explicit Draftsman(const Plan& plan)
      : plan_(plan), grid_(grid_of(plan)), routes_(routes_of(plan, grid_)) {}

  Drawing draw() {
    drawing_.nodes.resize(plan_.nodes.size());
    drawing_.edges.resize(plan_.edges.size());
    name_places();
    set_columns();
    set_lanes();
    set_rows();
    set_boxes();
    for (size_t edge = 0; edge < plan_.edges.size(); ++edge) set_line(edge);
    set_labels();
    return std::move(drawing_);
  }

 private:
  struct Column {
    int x = 0, width = kNodeWidthMin;
  };
  struct Gutter {
    int x = 0, label_width = 0, width = 0;
  };
  struct Row {
    int top = 0, height = kNodeHeightMin;  // height of its nodes
  };

  void name_places();
  void set_columns();
  void place_columns();
  void set_lanes();
  void set_rows();
  void set_boxes();
  void set_line(size_t edge);
  void set_labels();

  GridCell from(size_t edge) const { return grid_.cells[plan_.edges[edge].from.index()]; }
  GridCell to(size_t edge) const { return grid_.cells[plan_.edges[edge].to.index()]; }
  int label_width(size_t edge) const {
    return text_width(output_name(plan_, plan_.edges[edge]), kLabelSize) + 4;
  }
  bool has_slot_label(size_t edge) const { return routes_.routes[edge].from <= Side::kRight; }
  int port_x(const PortPool& pool, size_t port) const;
  int pool_width(const PortPool& pool) const;
  int run_x(const Route& route) const;
  int slot_y(size_t row, size_t slot) const;
  int from_x(size_t edge) const;
  int to_x(size_t edge) const;

  const Plan& plan_;
  const Grid grid_;
  const Routes routes_;
  std::vector<Column> columns_;
  std::vector<Gutter> gutters_;
  std::vector<Row> rows_;
  std::vector<Zone> zones_;
  Drawing drawing_;
};

std::vector<std::string> wrapped(const std::string& traits, int width) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < traits.size();) {
    size_t end = traits.find(", ", begin);
    end = end == std::string::npos ? traits.size() : end + 2;
    const std::string trait = traits.substr(begin, end - begin);
    if (!lines.empty() && text_width(lines.back() + trait, kTraitSize) <= width)
      lines.back() += trait;
    else
      lines.push_back(trait);
    begin = end;
  }
  for (auto& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

int widest_trait(const std::string& traits) {
  int width = 0;
  for (const auto& line : wrapped(traits, 0)) width = std::max(width, text_width(line, kTraitSize));
  return width;
}

/// For example "inference on cuda:0, 2 replicas, machine gpu1".
void Draftsman::name_places() {
  for (const GridArea& area : grid_.areas) {
    const PlanProcess& process = plan_.processes[area.process];
    Drawing::Place place;
    place.process = area.process;
    place.text =
        fmt::format("{} on {}", process.name.substr(0, process.name.find('#')), process.device);
    const auto replicas = std::count_if(plan_.processes.begin(), plan_.processes.end(),
                                        [&process](const PlanProcess& other) {
                                          return process.place >= 0 && other.place == process.place;
                                        });
    if (replicas > 1) place.text += fmt::format(", {} replicas", replicas);
    if (!process.machine.empty()) place.text += ", machine " + process.machine;
    drawing_.places.push_back(std::move(place));
  }
}

void Draftsman::set_columns() {
  columns_.resize(grid_.num_columns);
  for (size_t node = 0; node < plan_.nodes.size(); ++node) {
    const int width = std::max(text_width(plan_.nodes[node].name, kNameSize),
                               widest_trait(traits_of(plan_, plan_.nodes[node])));
    Column& column = columns_[grid_.cells[node].column];
    column.width = std::max(column.width, width + 2 * kNodePadding);
  }
  for (const auto& [pool, ports] : routes_.ports) {
    Column& column = columns_[pool.column];
    column.width = std::max(column.width, pool_width(pool) + 2 * kNodePadding);
  }
  gutters_.resize(grid_.num_columns + 1);
  int widest = 0;
  for (size_t edge = 0; edge < plan_.edges.size(); ++edge) {
    widest = std::max(widest, label_width(edge));
    if (!has_slot_label(edge)) continue;
    Gutter& gutter = gutters_[std::min(from(edge).column, to(edge).column) + 1];
    gutter.label_width = std::max(gutter.label_width, label_width(edge) + 14);
  }
  for (size_t i = 0; i < gutters_.size(); ++i)
    gutters_[i].width = 2 * kGutterPadding + gutters_[i].label_width +
                        kTrackPitch * static_cast<int>(routes_.num_tracks[i]);
  // A label that is longer than its lane extends on both sides.
  for (Gutter* outer : {&gutters_.front(), &gutters_.back()})
    outer->width = std::max(outer->width, widest / 2);
  place_columns();
  // The box of a place is at least as wide as its name.
  for (size_t i = 0; i < grid_.areas.size(); ++i) {
    const GridArea& area = grid_.areas[i];
    Column& last = columns_[area.last_column];
    const int width = last.x + last.width - columns_[area.first_column].x;
    const int missing = text_width(drawing_.places[i].text, kPlaceSize + 1) + 8 - width;
    if (missing <= 0) continue;
    last.width += missing;
    place_columns();
  }
}

void Draftsman::place_columns() {
  int x = kMargin;
  for (size_t i = 0; i < gutters_.size(); ++i) {
    gutters_[i].x = x;
    x += gutters_[i].width;
    if (i == columns_.size()) break;
    columns_[i].x = x;
    x += columns_[i].width;
  }
  drawing_.width = x + kMargin;
}

/// A label beside a vertical line makes its pool wider.
int Draftsman::pool_width(const PortPool& pool) const {
  int width = 0;
  for (const size_t edge : routes_.ports.at(pool))
    width += kPortPitch + (routes_.routes[edge].drops ? label_width(edge) : 0);
  return width;
}

int Draftsman::port_x(const PortPool& pool, size_t port) const {
  const Column& column = columns_[pool.column];
  int x = column.x + (column.width - pool_width(pool)) / 2 + kPortPitch / 2;
  const auto& edges = routes_.ports.at(pool);
  for (size_t i = 0; i < port; ++i)
    x += kPortPitch + (routes_.routes[edges[i]].drops ? label_width(edges[i]) : 0);
  return x;
}

int Draftsman::run_x(const Route& route) const {
  const Gutter& gutter = gutters_[*route.gutter];
  return gutter.x + kGutterPadding + gutter.label_width + kTrackPitch / 2 +
         kTrackPitch * static_cast<int>(route.track);
}

int Draftsman::from_x(size_t edge) const {
  const Route& route = routes_.routes[edge];
  const Column& column = columns_[from(edge).column];
  if (route.from == Side::kLeft) return column.x;
  if (route.from == Side::kRight) return column.x + column.width;
  return port_x(pool_of(from(edge), route.from), route.from_port);
}

int Draftsman::to_x(size_t edge) const {
  const Route& route = routes_.routes[edge];
  const Column& column = columns_[to(edge).column];
  if (route.to == Side::kLeft) return column.x;
  if (route.to == Side::kRight) return column.x + column.width;
  return port_x(pool_of(to(edge), route.to), route.to_port);
}

void Draftsman::set_lanes() {
  zones_.resize(2 * grid_.num_rows);
  for (size_t edge = 0; edge < plan_.edges.size(); ++edge) {
    const Route& route = routes_.routes[edge];
    if (!route.first_zone) continue;
    const bool has_two = route.first_zone != route.last_zone;
    const int begin = has_slot_label(edge) ? run_x(route) : from_x(edge);
    const int middle = has_two ? run_x(route) : to_x(edge);
    const int end = to_x(edge);
    const bool is_arc = !route.gutter && from(edge).row == to(edge).row;
    // The label is on the longer lane.
    const bool on_last = has_two && std::abs(end - middle) > std::abs(middle - begin);
    const int label = has_slot_label(edge) ? 0 : label_width(edge);
    zones_[*route.first_zone].add({edge, begin, middle, on_last ? 0 : label, is_arc});
    if (has_two) zones_[*route.last_zone].add({edge, middle, end, on_last ? label : 0, false});
  }
  for (size_t i = 0; i < zones_.size(); ++i) zones_[i].take_tracks();
}

void Draftsman::set_rows() {
  rows_.resize(grid_.num_rows);
  for (size_t row = 0; row < rows_.size(); ++row)
    rows_[row].height = std::max(
        rows_[row].height, kSlotPitch * static_cast<int>(routes_.num_slots[row]) + kNodePadding);
  for (size_t node = 0; node < plan_.nodes.size(); ++node) {
    const GridCell cell = grid_.cells[node];
    drawing_.nodes[node].traits = wrapped(traits_of(plan_, plan_.nodes[node]),
                                          columns_[cell.column].width - 2 * kNodePadding);
    const int text = 36 + kTraitHeight * static_cast<int>(drawing_.nodes[node].traits.size());
    rows_[cell.row].height = std::max(rows_[cell.row].height, text);
  }
  int y = kHeadingHeight + kMargin;
  drawing_.heading = {kMargin, kMargin + 10};
  for (size_t row = 0; row < rows_.size(); ++row) {
    const bool begins_place = std::any_of(grid_.areas.begin(), grid_.areas.end(),
                                          [row](const GridArea& a) { return a.first_row == row; });
    if (begins_place) y += kPlaceGap + kPlaceStrip;
    zones_[zone_above(row)].place(y, true);
    y += zones_[zone_above(row)].height();
    rows_[row].top = y;
    y += rows_[row].height;
    zones_[zone_below(row)].place(y, false);
    y += std::max(zones_[zone_below(row)].height(), kPlacePadding);
  }
  drawing_.height = y + kLegendHeight + kMargin;
}

void Draftsman::set_boxes() {
  for (size_t node = 0; node < plan_.nodes.size(); ++node) {
    const GridCell cell = grid_.cells[node];
    drawing_.nodes[node].box = {columns_[cell.column].x, rows_[cell.row].top,
                                columns_[cell.column].width, rows_[cell.row].height};
  }
  for (size_t i = 0; i < grid_.areas.size(); ++i) {
    const GridArea& area = grid_.areas[i];
    const Column& last = columns_[area.last_column];
    const size_t below = zone_below(area.last_row);
    DrawnBox& box = drawing_.places[i].box;
    box.x = columns_[area.first_column].x - kPlacePadding;
    box.y = rows_[area.first_row].top - zones_[zone_above(area.first_row)].height() - kPlaceStrip;
    box.width = last.x + last.width + kPlacePadding - box.x;
    box.height = rows_[area.last_row].top + rows_[area.last_row].height +
                 std::max(zones_[below].height(), kPlacePadding) - box.y;
  }
}

int Draftsman::slot_y(size_t row, size_t slot) const {
  const int lines = static_cast<int>(routes_.num_slots[row]);
  return rows_[row].top + (rows_[row].height - kSlotPitch * (lines - 1)) / 2 +
         kSlotPitch * static_cast<int>(slot);
}

void Draftsman::set_line(size_t edge) {
  const Route& route = routes_.routes[edge];
  const auto side_y = [this](Side side, GridCell cell, size_t slot) {
    if (side == Side::kTop) return rows_[cell.row].top;
    if (side == Side::kBottom) return rows_[cell.row].top + rows_[cell.row].height;
    return slot_y(cell.row, slot);
  };
  const DrawnPoint begin{from_x(edge), side_y(route.from, from(edge), route.from_slot)};
  const DrawnPoint end{to_x(edge), side_y(route.to, to(edge), route.to_slot)};
  auto& line = drawing_.edges[edge].line;
  line = {begin};
  DrawnPoint at = begin;
  const auto go = [&](int x, int y) {
    if (x == at.x && y == at.y) return;
    line.push_back(at = {x, y});
  };
  if (route.first_zone && route.from >= Side::kTop && !route.drops)
    go(at.x, zones_[*route.first_zone].y_of(edge));
  if (route.gutter) {
    go(run_x(route), at.y);
    go(at.x, route.last_zone ? zones_[*route.last_zone].y_of(edge) : end.y);
  }
  go(end.x, at.y);
  go(end.x, end.y);
}

void Draftsman::set_labels() {
  Obstacles obstacles;
  for (const auto& edge : drawing_.edges) obstacles.add_line(edge.line);
  for (const auto& place : drawing_.places) obstacles.add_sides(place.box);
  obstacles.sort();
  for (size_t edge = 0; edge < plan_.edges.size(); ++edge) {
    DrawnBox& label = drawing_.edges[edge].label;
    label.width = label_width(edge);
    label.height = kLabelSize + 2;
    const Route& route = routes_.routes[edge];
    if (has_slot_label(edge)) {
      const Gutter& gutter = gutters_[std::min(from(edge).column, to(edge).column) + 1];
      label.x = gutter.x + kGutterPadding + (gutter.label_width - label.width) / 2;
      label.y = slot_y(from(edge).row, route.from_slot) - label.height - 3;
      continue;
    }
    const Zone& first = zones_[*route.first_zone];
    const Zone& zone = first.has_label(edge) ? first : zones_[*route.last_zone];
    zone.set_label(edge, obstacles, label);
  }
  for (auto& place : drawing_.places) {
    place.label = {0, place.box.y + 5, text_width(place.text, kPlaceSize + 1), kPlaceSize + 4};
    obstacles.set_clear(place.box.x + 10, place.box.right() - 6, true, place.label);
  }
}

}  // namespace

int text_width(std::string_view text, int font_size) {
  double ems = 0;
  for (const char c : text) {
    if (std::string_view("ijl.,:;'|!()[] ").find(c) != std::string_view::npos)
      ems += 0.38;
    else if (std::string_view("frt-/\"").find(c) != std::string_view::npos)
      ems += 0.44;
    else if (std::string_view("mwMW@%").find(c) != std::string_view::npos)
      ems += 0.98;
    else
      ems += c >= 'A' && c <= 'Z' ? 0.74 : 0.64;
  }
  return static_cast<int>(std::ceil(ems * font_size));
}

Drawing draw(const Plan& plan) { return Draftsman(plan).draw(); }

}  // namespace primerl
