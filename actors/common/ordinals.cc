#include "actors/common/ordinals.h"

#include <iterator>

namespace primerl {

void OrdinalSet::add(uint64_t ordinal) {
  if (contains(ordinal)) return;
  auto after = ranges_.upper_bound(ordinal);
  uint64_t first = ordinal;
  uint64_t last = ordinal;
  if (after != ranges_.begin()) {
    const auto before = std::prev(after);
    if (before->second + 1 == ordinal) {
      first = before->first;
      ranges_.erase(before);
    }
  }
  if (after != ranges_.end() && after->first == ordinal + 1) {
    last = after->second;
    ranges_.erase(after);
  }
  ranges_[first] = last;
}

bool OrdinalSet::contains(uint64_t ordinal) const {
  const auto after = ranges_.upper_bound(ordinal);
  return after != ranges_.begin() && std::prev(after)->second >= ordinal;
}

uint64_t OrdinalSet::next_free(uint64_t from) const {
  const auto after = ranges_.upper_bound(from);
  if (after == ranges_.begin()) return from;
  const auto range = std::prev(after);
  return range->second >= from ? range->second + 1 : from;
}

uint64_t OrdinalSet::size() const {
  uint64_t sum = 0;
  for (const auto& [first, last] : ranges_) sum += last - first + 1;
  return sum;
}

Json OrdinalSet::to_json() const {
  Json json = Json::array();
  for (const auto& [first, last] : ranges_) json.push_back(Json(Json::Array{first, last}));
  return json;
}

Result<OrdinalSet> OrdinalSet::from_json(const Json& json) {
  const auto broken = [] {
    return error(Code::kCorrupt, "consumed ordinals are not [[first, last], ...] in rising order");
  };
  if (!json.is_array()) return broken();
  OrdinalSet set;
  bool is_first = true;
  int64_t previous = 0;
  for (const Json& range : json.as_array()) {
    if (!range.is_array() || range.as_array().size() != 2) return broken();
    const auto& ends = range.as_array();
    if (!ends[0].is_integer() || !ends[1].is_integer()) return broken();
    const int64_t first = ends[0].as_int();
    const int64_t last = ends[1].as_int();
    if (first < 0 || last < first || last == INT64_MAX) return broken();
    if (!is_first && first <= previous + 1) return broken();
    set.ranges_[static_cast<uint64_t>(first)] = static_cast<uint64_t>(last);
    previous = last;
    is_first = false;
  }
  return set;
}

}  // namespace primerl
