#include "graph/render_lanes.h"

#include <algorithm>
#include <numeric>

namespace primerl {
namespace {

constexpr int kLanePitch = 20, kZonePadding = 14;
constexpr int kLaneGap = 10;   // between two lanes in one track
constexpr int kCornerGap = 7;  // between a label and the end of its lane
constexpr int kClearance = 4;  // between a label and a line beside it
constexpr int kTries = 64;     // positions tried for a label

}  // namespace

void Obstacles::add_line(const std::vector<DrawnPoint>& corners) {
  for (size_t i = 1; i < corners.size(); ++i)
    if (corners[i].x == corners[i - 1].x)
      lines_.push_back({corners[i].x, std::min(corners[i].y, corners[i - 1].y),
                        std::max(corners[i].y, corners[i - 1].y)});
}

void Obstacles::add_sides(const DrawnBox& box) {
  lines_.push_back({box.x, box.y, box.bottom()});
  lines_.push_back({box.right(), box.y, box.bottom()});
}

void Obstacles::sort() {
  std::stable_sort(lines_.begin(), lines_.end(),
                   [](const Upright& a, const Upright& b) { return a.x < b.x; });
}

size_t Obstacles::count(const DrawnBox& label) const {
  const auto begin = std::lower_bound(lines_.begin(), lines_.end(), label.x - kClearance,
                                      [](const Upright& line, int x) { return line.x < x; });
  size_t crossing = 0;
  for (auto line = begin; line != lines_.end() && line->x <= label.right() + kClearance; ++line)
    crossing += line->top < label.bottom() && label.y < line->bottom ? 1 : 0;
  return crossing;
}

void Obstacles::set_clear(int left, int right, bool from_left, DrawnBox& label) const {
  const int room = std::max(0, right - left - label.width);
  size_t fewest = SIZE_MAX;
  for (int i = 0; i <= kTries && fewest > 0; ++i) {
    DrawnBox tried = label;
    tried.x = from_left ? left + room * i / kTries : left + room - room * i / kTries;
    const size_t crossing = count(tried);
    if (crossing >= fewest) continue;
    fewest = crossing;
    label = tried;
  }
}

int EdgeLane::label_left() const {
  if (begin == end) return begin + 4;  // vertical: the label is to its right
  return (begin + end - label_width) / 2;
}
int EdgeLane::left() const {
  const int line = std::min(begin, end);
  return label_width == 0 ? line : std::min(line, label_left());
}
int EdgeLane::right() const {
  const int line = std::max(begin, end);
  return label_width == 0 ? line : std::max(line, label_left() + label_width);
}

void Zone::take_tracks() {
  std::vector<size_t> order(lanes_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [this](size_t a, size_t b) {
    const EdgeLane &one = lanes_[a], &two = lanes_[b];
    if (one.is_arc != two.is_arc) return one.is_arc;
    const int length = one.right() - one.left(), other = two.right() - two.left();
    return one.is_arc ? length < other : length > other;
  });
  tracks_.resize(lanes_.size());
  std::vector<std::vector<size_t>> taken;  // lanes by track
  for (const size_t index : order) {
    const EdgeLane& lane = lanes_[index];
    const auto fits = [&](const std::vector<size_t>& track) {
      return std::none_of(track.begin(), track.end(), [&](size_t other) {
        return lane.left() < lanes_[other].right() + kLaneGap &&
               lanes_[other].left() < lane.right() + kLaneGap;
      });
    };
    auto track = std::find_if(taken.begin(), taken.end(), fits);
    if (track == taken.end()) track = taken.emplace(taken.end());
    track->push_back(index);
    tracks_[index] = static_cast<size_t>(track - taken.begin());
  }
  num_tracks_ = taken.size();
}

int Zone::height() const {
  return num_tracks_ == 0 ? 0 : kLanePitch * static_cast<int>(num_tracks_) + kZonePadding;
}

void Zone::place(int top, bool is_above) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    // Labels are on their lanes.
    const int depth =
        kLanePitch * static_cast<int>(is_above ? num_tracks_ - tracks_[i] : tracks_[i] + 1);
    y_[lanes_[i].edge] = top + depth;
  }
}

bool Zone::has_label(size_t edge) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [edge](const EdgeLane& lane) {
    return lane.edge == edge && lane.label_width > 0;
  });
}

void Zone::set_label(size_t edge, const Obstacles& obstacles, DrawnBox& label) const {
  const auto lane = std::find_if(lanes_.begin(), lanes_.end(),
                                 [edge](const EdgeLane& one) { return one.edge == edge; });
  label.y = y_of(edge) - label.height - 3;
  label.x = lane->label_left();
  const int left = std::min(lane->begin, lane->end), right = std::max(lane->begin, lane->end);
  if (right - left < label.width + 2 * kCornerGap) return;
  obstacles.set_clear(left + kCornerGap, right - kCornerGap, lane->begin < lane->end, label);
}

}  // namespace primerl
