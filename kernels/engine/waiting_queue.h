/// WaitingQueue: the sequences of a BatchScheduler that wait to be admitted, a line for each
/// tenant.
///
/// Next is the lowest priority; of equals, the tenant that is served least by its share
/// (FairShares); of one tenant, who came first. With one tenant that is first come, first served. A
/// tenant is charged for every row that is computed for her.
#pragma once

#include <deque>
#include <vector>

#include "graph/base/fair_shares.h"
#include "graph/base/ids.h"

namespace primerl {

struct Sequence;  // kernels/engine/batch_scheduler.h

class WaitingQueue {
 public:
  /// By tenant slot; empty: all alike.
  explicit WaitingQueue(const std::vector<double>& shares) : shares_(shares) {}

  void insert(Sequence& sequence);
  void remove(Sequence& sequence);
  /// Who is next; null: nobody waits.
  Sequence* next() const {
    return next([](const Sequence&) { return true; });
  }
  /// The same among the tenants whose first one `accept` takes.
  template <class Accept>
  Sequence* next(const Accept& accept) const {
    Sequence* next = nullptr;
    for (const auto& line : lines_)
      if (!line.empty() && accept(*line.front()) &&
          (next == nullptr || is_sooner(*line.front(), *next)))
        next = line.front();
    return next;
  }
  /// Whether `one`, the first of its tenant, is next before `other`, the first of another.
  bool is_sooner(const Sequence& one, const Sequence& other) const;
  bool empty() const { return num_waiting_ == 0; }
  size_t size() const { return num_waiting_; }
  template <class Visit>
  void visit(const Visit& visit) const {
    for (const auto& line : lines_)
      for (Sequence* sequence : line) visit(*sequence);
  }

  /// `tenant` has one more sequence in the engine, or one less, in whatever state.
  void enter(TenantSlot tenant) { shares_.enter(tenant); }
  void leave(TenantSlot tenant) { shares_.leave(tenant); }
  void charge(TenantSlot tenant, int64_t num_tokens) { shares_.charge(tenant, num_tokens); }

 private:
  FairShares shares_;
  std::vector<std::deque<Sequence*>> lines_;  // by tenant slot, each in order
  size_t num_waiting_ = 0;
};

}  // namespace primerl
