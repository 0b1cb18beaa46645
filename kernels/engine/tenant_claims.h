/// TenantClaims: how much each tenant may use of a limited resource of an engine: running slots of
/// its batch, or KV blocks.
///
/// Each tenant has a part: its share of the total. A tenant claims as much as it recently used or
/// waited for at once, up to its part. The unused rest of a claim is reserved for it; everything
/// else is lent, first come, first served. So a tenant that floods the engine gets what the others
/// leave, but not what another releases between two of its batches. Sequences admitted there would
/// make all steps longer, and delay the returning tenant until they end. A tenant that is alone may
/// use everything. A tenant that uses nothing may always reserve, however much it needs, so every
/// tenant makes progress.
///
/// "Recently" is the current window of kWindow engine steps and the one before. Until the end of
/// the first window every tenant claims its whole part: all of them are about to start, and
/// otherwise the first would fill the parts of the others for as long as its sequences last.
///
/// With Waiting::kTakesItsTurn, the queue alone decides between waiting tenants, so nothing is
/// reserved for a tenant that waits. A value; not thread-safe. Grows with the largest tenant slot
/// that it was given.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graph/base/ids.h"

namespace primerl {

class TenantClaims {
 public:
  static constexpr int32_t kWindow = 1024;  // engine steps

  /// Whether a claim is reserved for a tenant that waits for more.
  enum class Waiting : uint8_t { kTakesItsTurn, kKeepsItsClaim };

  /// `shares` by tenant slot. With fewer than two shares nothing is divided.
  TenantClaims(const std::vector<double>& shares, int32_t total, Waiting waiting);

  /// `tenant` uses or waits for `count` more; fewer if `count` is negative.
  void want(TenantSlot tenant, int32_t count);
  /// The part of that which `tenant` uses changes by `count`.
  void take(TenantSlot tenant, int32_t count);
  /// `tenant`, which uses nothing and waits for nothing, has left: nothing is reserved for it.
  void end(TenantSlot tenant);
  /// Another tenant is about to start in a slot that was left: until the end of the next window it
  /// claims its whole part.
  void begin(TenantSlot tenant);
  /// The part of `tenant` is this share of the total from now on. What it has beyond stays until
  /// its sequences end.
  void set_share(TenantSlot tenant, double share);
  /// Call once per planned engine step.
  void step();

  /// Whether `tenant` may have `count` more of what is free, or will be. True if it stays within
  /// its part, uses nothing yet, or enough is free that is not reserved for others.
  bool may_take(TenantSlot tenant, int32_t count) const;
  int32_t num_free() const { return total_ - num_taken_; }
  int32_t num_taken() const { return num_taken_; }  // used by all tenants
  int32_t num_taken(TenantSlot tenant) const {
    return tenant.index() < tenants_.size() ? tenants_[tenant.index()].num_taken : 0;
  }
  /// What it uses beyond its part; negative: what it is below. 0 if nothing is divided.
  int32_t num_beyond(TenantSlot tenant) const;

 private:
  struct One {
    int32_t part = 0;  // of the total
    int32_t num_wanted = 0, num_taken = 0;
    int32_t peak = 0, peak_before = 0;  // of num_wanted, in this window and the previous one
  };

  int32_t num_kept(const One& one) const;
  template <class Change>
  void change(TenantSlot tenant, const Change& change);

  int32_t total_ = 0;
  Waiting waiting_ = Waiting::kTakesItsTurn;
  bool is_divided_ = false;
  int32_t num_taken_ = 0;
  int32_t num_kept_ = 0;   // reserved for all tenants
  int32_t num_steps_ = 0;  // in this window
  std::vector<One> tenants_;
};

}  // namespace primerl
