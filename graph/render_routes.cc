#include "graph/render_routes.h"

#include <algorithm>
#include <cstdint>
#include <tuple>

namespace primerl {
namespace {

bool is_sideways(Side side) { return side == Side::kLeft || side == Side::kRight; }

Route straight(GridCell from, GridCell to) {
  Route route;
  if (to.column < from.column) std::swap(route.from, route.to);
  return route;
}

/// A forward edge to another row. It goes down or up the gutter after its sender, then into its
/// receiver's side; if the receiver is further away, along the lanes above it.
Route step(GridCell from, GridCell to) {
  Route route;
  route.gutter = from.column + 1;
  if (to.column == from.column + 1) return route;
  route.to = Side::kTop;
  route.first_zone = route.last_zone = zone_above(to.row);
  return route;
}

Route arc(size_t row, bool feedback) {
  Route route;
  route.from = route.to = feedback ? Side::kBottom : Side::kTop;
  route.first_zone = route.last_zone = feedback ? zone_below(row) : zone_above(row);
  return route;
}

/// A feedback edge to another row, between the sides that face each other.
Route across(GridCell from, GridCell to) {
  Route route;
  const bool goes_down = from.row < to.row;
  route.from = goes_down ? Side::kBottom : Side::kTop;
  route.to = goes_down ? Side::kTop : Side::kBottom;
  route.first_zone = zone_below(goes_down ? from.row : from.row - 1);
  route.last_zone = zone_below(goes_down ? to.row - 1 : to.row);
  route.drops = from.column == to.column && route.first_zone == route.last_zone;
  if (route.first_zone != route.last_zone)
    route.gutter = from.column == to.column ? from.column + 1 : std::max(from.column, to.column);
  return route;
}

Route route_of(const Grid& grid, GridCell from, GridCell to, bool feedback) {
  if (from.row == to.row && from.column != to.column) {
    const auto [left, right] =
        std::minmax(from, to, [](GridCell a, GridCell b) { return a.column < b.column; });
    if (grid.sees(left, right)) return straight(from, to);
  }
  if (from.row == to.row) return arc(from.row, feedback);
  return feedback ? across(from, to) : step(from, to);
}

/// Numbers for lines that must not cover each other: each gets the first number that is free over
/// its whole length.
class Tracks {
 public:
  size_t take(size_t first, size_t last) {
    size_t track = 0;
    while (track < taken_.size() && !is_free(track, first, last)) ++track;
    if (track == taken_.size()) taken_.emplace_back();
    taken_[track].push_back({first, last});
    return track;
  }
  size_t size() const { return taken_.size(); }

 private:
  bool is_free(size_t track, size_t first, size_t last) const {
    return std::none_of(taken_[track].begin(), taken_[track].end(), [&](const auto& span) {
      return span.first <= last && first <= span.second;
    });
  }
  std::vector<std::vector<std::pair<size_t, size_t>>> taken_;
};

/// Forward lines get numbers first, so that a row's chain is a straight line along its top.
void take_slots(const Plan& plan, const Grid& grid, Routes& all) {
  std::vector<Tracks> rows(grid.num_rows);
  const auto take = [&](size_t index) {
    const PlanEdge& edge = plan.edges[index];
    Route& route = all.routes[index];
    const GridCell from = grid.cells[edge.from.index()], to = grid.cells[edge.to.index()];
    if (is_sideways(route.from) && is_sideways(route.to) && !route.gutter) {
      const auto [left, right] = std::minmax(from.column, to.column);
      route.from_slot = route.to_slot = rows[from.row].take(left + 1, right);
      return;
    }
    if (is_sideways(route.from))
      route.from_slot = rows[from.row].take(*route.gutter, *route.gutter);
    if (is_sideways(route.to)) route.to_slot = rows[to.row].take(*route.gutter, *route.gutter);
  };
  for (const bool with_run : {false, true})
    for (size_t i = 0; i < plan.edges.size(); ++i)
      if (!plan.edges[i].feedback && all.routes[i].gutter.has_value() == with_run) take(i);
  for (size_t i = 0; i < plan.edges.size(); ++i)
    if (plan.edges[i].feedback) take(i);
  for (const Tracks& row : rows) all.num_slots.push_back(row.size());
}

/// A number for the height at which a run ends, rising from top to bottom: lanes above a row, the
/// row, lanes below it.
size_t height_of(size_t row, std::optional<size_t> zone) {
  return zone ? 3 * (*zone / 2) + 2 * (*zone % 2) : 3 * row + 1;
}

void take_tracks(const Plan& plan, const Grid& grid, Routes& all) {
  std::vector<Tracks> gutters(grid.num_columns + 1);
  for (size_t i = 0; i < plan.edges.size(); ++i) {
    Route& route = all.routes[i];
    if (!route.gutter) continue;
    const PlanEdge& edge = plan.edges[i];
    const size_t begin = height_of(grid.cells[edge.from.index()].row,
                                   is_sideways(route.from) ? std::nullopt : route.first_zone);
    const size_t end = height_of(grid.cells[edge.to.index()].row,
                                 is_sideways(route.to) ? std::nullopt : route.last_zone);
    route.track = gutters[*route.gutter].take(std::min(begin, end), std::max(begin, end));
  }
  for (const Tracks& gutter : gutters) all.num_tracks.push_back(gutter.size());
}

/// One end of an edge at the top or bottom of a node; a vertical line between two nodes is both
/// ends.
struct PortEnd {
  size_t edge;
  bool is_from;
  int64_t ahead;  // columns to the other end of its lane
};

/// Order from left to right: edges that go left, the nearest first; edges that stay; edges that go
/// right, the nearest last. So edges of one node do not cross.
std::tuple<int, int64_t> place_in_pool(const PortEnd& end) {
  const int direction = end.ahead < 0 ? 0 : end.ahead == 0 ? 1 : 2;
  return {direction, -end.ahead};
}

void take_ports(const Plan& plan, const Grid& grid, Routes& all) {
  std::map<PortPool, std::vector<PortEnd>> pools;
  for (size_t i = 0; i < plan.edges.size(); ++i) {
    const Route& route = all.routes[i];
    const GridCell from = grid.cells[plan.edges[i].from.index()];
    const GridCell to = grid.cells[plan.edges[i].to.index()];
    const int64_t ahead = static_cast<int64_t>(to.column) - static_cast<int64_t>(from.column);
    if (!is_sideways(route.from)) pools[pool_of(from, route.from)].push_back({i, true, ahead});
    // A run is left of its column, so its edge arrives from the left.
    if (!is_sideways(route.to) && !route.drops)
      pools[pool_of(to, route.to)].push_back({i, false, -ahead});
  }
  for (auto& [pool, ends] : pools) {
    std::stable_sort(ends.begin(), ends.end(), [](const PortEnd& a, const PortEnd& b) {
      return place_in_pool(a) < place_in_pool(b);
    });
    for (size_t port = 0; port < ends.size(); ++port) {
      Route& route = all.routes[ends[port].edge];
      if (ends[port].is_from) route.from_port = port;
      if (!ends[port].is_from || route.drops) route.to_port = port;
      all.ports[pool].push_back(ends[port].edge);
    }
  }
}

}  // namespace

PortPool pool_of(GridCell cell, Side side) {
  return {cell.column, side == Side::kBottom ? cell.row + 1 : cell.row};
}

Routes routes_of(const Plan& plan, const Grid& grid) {
  Routes all;
  for (const PlanEdge& edge : plan.edges)
    all.routes.push_back(
        route_of(grid, grid.cells[edge.from.index()], grid.cells[edge.to.index()], edge.feedback));
  take_slots(plan, grid, all);
  take_tracks(plan, grid, all);
  take_ports(plan, grid, all);
  return all;
}

}  // namespace primerl
