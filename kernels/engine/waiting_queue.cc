#include "kernels/engine/waiting_queue.h"

#include <algorithm>
#include <tuple>

#include "kernels/engine/sequence.h"

namespace primerl {

void WaitingQueue::insert(Sequence& sequence) {
  const size_t slot = sequence.request.tenant.index();
  if (slot >= lines_.size()) lines_.resize(slot + 1);
  auto& line = lines_[slot];
  line.insert(std::upper_bound(line.begin(), line.end(), &sequence, is_before), &sequence);
  ++num_waiting_;
}

void WaitingQueue::remove(Sequence& sequence) {
  auto& line = lines_[sequence.request.tenant.index()];
  line.erase(std::find(line.begin(), line.end(), &sequence));
  --num_waiting_;
}

bool WaitingQueue::is_sooner(const Sequence& one, const Sequence& other) const {
  const auto rank = [this](const Sequence& each) {
    return std::tuple(each.request.priority, shares_.served(each.request.tenant), each.arrival);
  };
  return rank(one) < rank(other);
}

}  // namespace primerl
