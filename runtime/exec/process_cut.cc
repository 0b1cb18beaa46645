#include "runtime/exec/process_cut.h"

namespace primerl {

CutCollector::CutCollector(std::shared_ptr<const Plan> plan, std::shared_ptr<const Wiring> wiring,
                           ProcessId process, std::function<void(ProcessCut&&)> done)
    : plan_(std::move(plan)),
      wiring_(std::move(wiring)),
      process_(process),
      done_(std::move(done)),
      parts_(plan_->groups.size()) {}

uint64_t CutCollector::begin() {
  const std::lock_guard lock(mutex_);
  is_open_ = true;
  in_transit_.clear();
  for (auto& part : parts_) part.reset();
  return ++number_;
}

bool CutCollector::is_open() const {
  const std::lock_guard lock(mutex_);
  return is_open_;
}

void CutCollector::abandon() {
  const std::lock_guard lock(mutex_);
  is_open_ = false;
}

void CutCollector::add_part(uint64_t number, GroupState&& state) {
  std::optional<ProcessCut> complete;
  {
    const std::lock_guard lock(mutex_);
    if (!is_open_ || number != number_) return;
    auto& part = parts_[state.group.index()];
    part = std::move(state);
    complete = take_complete();
  }
  if (complete) done_(std::move(*complete));
}

void CutCollector::add_in_transit(uint64_t number, SavedMessage&& message) {
  std::optional<ProcessCut> complete;
  {
    const std::lock_guard lock(mutex_);
    if (!is_open_ || number != number_) return;
    in_transit_.push_back(std::move(message));
    complete = take_complete();
  }
  if (complete) done_(std::move(*complete));
}

/// Whether every message that was shipped within the process was received or is in transit_.
bool CutCollector::is_complete() const {
  for (const GroupId group : plan_->process(process_).groups)
    if (!parts_[group.index()]) return false;
  uint64_t num_shipped = 0, num_received = in_transit_.size();
  for (const WiredLink& link : wiring_->links) {
    const auto& from = parts_[link.sender_group.index()];
    const auto& to = parts_[link.target_group.index()];
    if (!from || !to) continue;
    // Per link, neither count is ahead: a receiver does not know messages that were not sent.
    num_shipped += from->out_links[link.out_index].num_shipped;
    num_received += to->in_links[link.in_index].num_received_incarnation;
  }
  return num_shipped == num_received;
}

std::optional<ProcessCut> CutCollector::take_complete() {
  if (!is_complete()) return std::nullopt;
  is_open_ = false;
  ProcessCut cut;
  cut.number = number_;
  for (const GroupId group : plan_->process(process_).groups)
    cut.groups.push_back(std::move(*parts_[group.index()]));
  cut.in_transit = std::move(in_transit_);
  in_transit_.clear();
  return cut;
}

}  // namespace primerl
