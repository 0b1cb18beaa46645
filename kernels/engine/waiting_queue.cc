#include "kernels/engine/waiting_queue.h"

#include <algorithm>
#include <tuple>

#include "kernels/engine/batch_scheduler.h"

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

Sequence* WaitingQueue::next() const {
  Sequence* next = nullptr;
  const auto rank = [this](const Sequence* one) {
    return std::tuple(one->request.priority, shares_.served(one->request.tenant), one->arrival);
  };
  for (const auto& line : lines_)
    if (!line.empty() && (next == nullptr || rank(line.front()) < rank(next))) next = line.front();
  return next;
}

}  // namespace primerl
