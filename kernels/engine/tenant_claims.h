/// TenantClaims: how much each tenant may have of what an engine has so many of: places in its
/// batch, or KV blocks.
///
/// A tenant claims as much as it had or waited for at once lately, and at most its part, which is
/// its share of all. What it claims and does not have is kept for it; the rest is lent to whoever
/// comes first. So a tenant that floods the engine has what the others leave, but not what one of
/// them lets go between two of its batches: what ran there would make all steps longer, and hold up
/// whoever comes back, until it ends. Alone, a tenant has everything. One that has nothing may
/// always take, however much it needs: so each goes on.
///
/// "Lately" is this window of kWindow engine steps and the one before. Until the end of the first
/// window everybody claims a whole part: all are about to come, and whoever came first would fill
/// the parts of the others for as long as its sequences last.
///
/// Where something is given by a queue alone, which decides between tenants that wait, nothing is
/// kept for one that waits. A value; not thread-safe. Grows with the largest tenant slot that it
/// was told of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graph/base/ids.h"

namespace primerl {

class TenantClaims {
 public:
  static constexpr int32_t kWindow = 1024;  // engine steps

  /// What is kept for a tenant that waits for more.
  enum class Waiting : uint8_t { kTakesItsTurn, kKeepsItsClaim };

  /// `shares` by tenant slot. With less than two of them there is nothing to divide.
  TenantClaims(const std::vector<double>& shares, int32_t total, Waiting waiting);

  /// What `tenant` has and waits for is `count` more; or less, where that is negative.
  void want(TenantSlot tenant, int32_t count);
  /// Of that, what it has.
  void take(TenantSlot tenant, int32_t count);
  /// A step of the engine is planned.
  void step();

  /// Whether `count` more of what is free, or will be, is for `tenant`: it stays within its part,
  /// or has nothing yet, or so much is free that is kept for nobody else.
  bool may_take(TenantSlot tenant, int32_t count) const;
  int32_t num_free() const { return total_ - num_taken_; }
  int32_t num_taken() const { return num_taken_; }  // by all
  int32_t num_taken(TenantSlot tenant) const {
    return tenant.index() < tenants_.size() ? tenants_[tenant.index()].num_taken : 0;
  }
  /// What it has beyond its part; negative: what it has less. 0 where nothing is divided.
  int32_t num_beyond(TenantSlot tenant) const;

 private:
  struct One {
    int32_t part = 0;  // of all
    int32_t num_wanted = 0, num_taken = 0;
    int32_t peak = 0, peak_before = 0;  // of num_wanted, in this window and the one before
  };

  int32_t num_kept(const One& one) const;
  template <class Change>
  void change(TenantSlot tenant, const Change& change);

  int32_t total_ = 0;
  Waiting waiting_ = Waiting::kTakesItsTurn;
  bool is_divided_ = false;
  int32_t num_taken_ = 0;
  int32_t num_kept_ = 0;   // for all
  int32_t num_steps_ = 0;  // of this window
  std::vector<One> tenants_;
};

}  // namespace primerl
