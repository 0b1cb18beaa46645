#include "actors/router/held_requests.h"

#include <algorithm>
#include <iterator>

namespace primerl {

void HeldRequests::add(HeldRequest held, HeldLane lane) {
  add(Waiting{std::move(held), ++arrivals_}, lane);
}

void HeldRequests::add(Waiting waiting, HeldLane lane) {
  SessionHere& session = sessions_[waiting.held.session()];
  if (session.count++ == 0) session.lane = lane;
  names_[waiting.held.name()] = session.lane;
  lanes_[waiting.held.tenant][session.lane].waiting.push_back(std::move(waiting));
}

HeldRequests::Waiting HeldRequests::remove_from(TenantSlot tenant, Lanes::iterator lane,
                                                std::deque<Waiting>::iterator which) {
  Waiting taken = std::move(*which);
  lane->second.waiting.erase(which);
  Lanes& lanes = lanes_.at(tenant);
  if (lane->second.waiting.empty()) lanes.erase(lane);
  if (lanes.empty()) lanes_.erase(tenant);
  names_.erase(taken.held.name());
  const auto session = sessions_.find(taken.held.session());
  if (--session->second.count == 0) sessions_.erase(session);
  return taken;
}

std::optional<HeldRequest> HeldRequests::take(RequestName name) {
  const auto found = names_.find(name);
  if (found == names_.end()) return std::nullopt;
  const auto lane = lanes_.at(name.tenant).find(found->second);
  auto& waiting = lane->second.waiting;
  const auto which = std::find_if(waiting.begin(), waiting.end(),
                                  [name](const Waiting& each) { return each.held.name() == name; });
  CHECK(which != waiting.end(), "a waiting request is not in its lane");
  return remove_from(name.tenant, lane, which).held;
}

std::vector<HeldRequest> HeldRequests::take_all(
    TenantSlot tenant, const std::function<bool(const HeldRequest&)>& is_wanted) {
  std::vector<std::pair<uint64_t, RequestName>> wanted;  // with the arrival
  if (const auto lanes = lanes_.find(tenant); lanes != lanes_.end())
    for (const auto& [key, lane] : lanes->second)
      for (const Waiting& each : lane.waiting)
        if (is_wanted(each.held)) wanted.emplace_back(each.arrival, each.held.name());
  std::sort(wanted.begin(), wanted.end());
  std::vector<HeldRequest> taken;
  for (const auto& [arrival, name] : wanted) taken.push_back(*take(name));
  return taken;
}

HeldRequests::Lanes::iterator HeldRequests::oldest_open(Lanes& lanes) const {
  auto oldest = lanes.end();
  for (auto lane = lanes.begin(); lane != lanes.end(); ++lane) {
    if (lane->second.refused_in == offers_) continue;
    if (oldest == lanes.end() ||
        lane->second.waiting.front().arrival < oldest->second.waiting.front().arrival)
      oldest = lane;
  }
  return oldest;
}

bool HeldRequests::offer(int64_t most, const std::function<bool(const HeldRequest&)>& go) {
  ++offers_;
  TenantSlot last = served_last_;
  // Ends after one round over all tenants in which none had an open lane.
  for (size_t num_passed = 0; num_passed < lanes_.size();) {
    auto tenant = lanes_.upper_bound(last);
    if (tenant == lanes_.end()) tenant = lanes_.begin();
    const TenantSlot slot = tenant->first;
    const auto lane = oldest_open(tenant->second);
    if (lane == tenant->second.end()) {
      last = slot;
      ++num_passed;
      continue;
    }
    if (most == 0) return true;
    if (!go(lane->second.waiting.front().held)) {
      lane->second.refused_in = offers_;
      continue;
    }
    remove_from(slot, lane, lane->second.waiting.begin());
    last = served_last_ = slot;
    --most;
    num_passed = 0;
  }
  return false;
}

void HeldRequests::assign(const std::function<HeldLane(const HeldRequest&)>& lane_of) {
  std::vector<Waiting> all;
  for (auto& [tenant, lanes] : lanes_)
    for (auto& [key, lane] : lanes)
      std::move(lane.waiting.begin(), lane.waiting.end(), std::back_inserter(all));
  std::sort(all.begin(), all.end(),
            [](const Waiting& a, const Waiting& b) { return a.arrival < b.arrival; });
  lanes_.clear();
  names_.clear();
  sessions_.clear();
  for (Waiting& each : all) {
    const HeldLane lane = lane_of(each.held);
    add(std::move(each), lane);
  }
}

}  // namespace primerl
