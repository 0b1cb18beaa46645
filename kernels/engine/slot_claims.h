/// SlotClaims: how many of an engine's `max_running` sequences each tenant may have admitted.
///
/// A tenant claims as many as it had in the engine at once lately, those that waited among them,
/// and at most its share of all. What it claims and does not use is kept for it as long as nobody
/// of it waits; the rest is lent to whoever comes first in the waiting queue, which alone decides
/// between tenants that wait. So a tenant that floods the engine runs in what the others leave, but
/// not in what one of them lets go between two of its batches: what ran there would make all steps
/// longer, and hold up whoever comes back, until it ends. Alone, a tenant has everything.
///
/// "Lately" is this window of kWindow engine steps and the one before. Until the end of the first
/// window everybody claims a whole share: all are about to come, and whoever came first would fill
/// the places of the others for as long as its sequences last. A value; not thread-safe. Grows with
/// the largest slot it was told of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graph/base/ids.h"

namespace primerl {

class SlotClaims {
 public:
  static constexpr int32_t kWindow = 1024;  // engine steps

  /// `shares` by tenant slot. With less than two of them there is nothing to divide.
  SlotClaims(const std::vector<double>& shares, int32_t max_running);

  /// `tenant` has one more sequence in the engine, or one less, in whatever state.
  void enter(TenantSlot tenant);
  void leave(TenantSlot tenant);
  /// One of them is admitted, or is no more.
  void admit(TenantSlot tenant);
  void release(TenantSlot tenant);
  /// A step of the engine is planned.
  void step();

  /// Whether one more of `tenant` may be admitted: it has less than it claims, or something is left
  /// that is kept for nobody.
  bool may_admit(TenantSlot tenant) const;

 private:
  struct One {
    int32_t part = 0;  // of max_running
    int32_t num_here = 0, num_admitted = 0;
    int32_t peak = 0, peak_before = 0;  // of num_here, in this window and the one before

    int32_t num_unused() const {
      return std::max(std::min(part, std::max(peak, peak_before)) - num_admitted, 0);
    }
    /// Of them, those that are kept for it.
    int32_t num_kept() const { return num_here > num_admitted ? 0 : num_unused(); }
  };

  template <class Change>
  void change(TenantSlot tenant, const Change& change);

  int32_t max_running_ = 0;
  bool is_divided_ = false;
  int32_t num_admitted_ = 0;
  int32_t num_kept_ = 0;   // for all
  int32_t num_steps_ = 0;  // of this window
  std::vector<One> tenants_;
};

}  // namespace primerl
