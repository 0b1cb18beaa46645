/// WaitingQueue: the waiting sequences of a BatchScheduler, one queue for each tenant.
///
/// The lowest priority is next; among equals, the tenant that was served least relative to its
/// share (FairShares); within a tenant, the oldest sequence. With one tenant that is first come,
/// first served. A tenant is charged for every row computed for it.
#pragma once

#include <deque>
#include <vector>

#include "graph/base/fair_shares.h"
#include "graph/base/ids.h"

namespace primerl {

struct Sequence;  // kernels/engine/sequence.h

class WaitingQueue {
 public:
  /// By tenant slot; empty: equal shares.
  explicit WaitingQueue(const std::vector<double>& shares) : shares_(shares) {}

  void insert(Sequence& sequence);
  void remove(Sequence& sequence);
  /// The next sequence; null: the queue is empty.
  Sequence* next() const {
    return next([](const Sequence&) { return true; });
  }
  /// The same, among tenants whose first sequence `accept` accepts.
  template <class Accept>
  Sequence* next(const Accept& accept) const {
    Sequence* next = nullptr;
    for (const auto& line : lines_)
      if (!line.empty() && accept(*line.front()) &&
          (next == nullptr || is_sooner(*line.front(), *next)))
        next = line.front();
    return next;
  }
  /// Whether `one`, the first of its tenant, comes before `other`, the first of another.
  bool is_sooner(const Sequence& one, const Sequence& other) const;
  bool empty() const { return num_waiting_ == 0; }
  size_t size() const { return num_waiting_; }
  template <class Visit>
  void visit(const Visit& visit) const {
    for (const auto& line : lines_)
      for (Sequence* sequence : line) visit(*sequence);
  }

  /// `tenant` has one sequence more (enter) or less (leave) in the engine, in any state.
  void enter(TenantSlot tenant) { shares_.enter(tenant); }
  void leave(TenantSlot tenant) { shares_.leave(tenant); }
  void set_share(TenantSlot tenant, double share) { shares_.set_share(tenant, share); }
  /// It has none left, and another one begins in its slot.
  void forget(TenantSlot tenant) { shares_.forget(tenant); }
  void charge(TenantSlot tenant, int64_t num_tokens) { shares_.charge(tenant, num_tokens); }

 private:
  FairShares shares_;
  std::vector<std::deque<Sequence*>> lines_;  // by tenant slot, each in order
  size_t num_waiting_ = 0;
};

}  // namespace primerl
