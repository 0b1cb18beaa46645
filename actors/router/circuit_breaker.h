/// CircuitBreaker: whether an engine gets new requests, decided by how its last requests ended.
///
///   closed     --10 faults within 120 s, no good end between them-->  open
///   open       --60 s-->                                              half-open
///   half-open  --3 good ends in a row-->                              closed
///   half-open  --a fault-->                                           open
///
/// A fault is a request that the engine could not compute; a good end is a request that it
/// completed. Both arrive as the engine's running totals, so nothing is lost when a newer load
/// replaces an older one. The order of ends within one load is unknown. While the breaker is
/// closed, good ends count as the last ones; while it is half-open, a single fault counts. While it
/// is open, ends change nothing: they belong to earlier requests. A value; the caller passes the
/// time. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "graph/base/clock.h"

namespace primerl {

class CircuitBreaker {
 public:
  static constexpr uint64_t kFaultsToOpen = 10;
  static constexpr uint64_t kGoodEndsToClose = 3;
  static constexpr Duration kWindow = Duration::seconds(120);  // an older fault is forgotten
  static constexpr Duration kOpenFor = Duration::seconds(60);

  enum class State : uint8_t { kClosed, kOpen, kHalfOpen };
  State state(Time now) const;
  /// When the breaker half-opens, or has half-opened; none when closed.
  std::optional<Time> half_opens_at() const { return half_opens_at_; }

  enum class Change : uint8_t { kNone, kOpened, kClosed };
  /// Adds the engine's running totals. A total below the last one comes from a new engine that
  /// began at 0.
  Change take(uint64_t num_good, uint64_t num_faults, Time now);

  template <class F>
  static void fields(F& f) {
    using B = CircuitBreaker;
    f("num_good", &B::num_good_)("num_faults", &B::num_faults_)("faults", &B::faults_)(
        "half_opens_at", &B::half_opens_at_)("num_good_in_a_row", &B::num_good_in_a_row_);
  }

 private:
  Change take_closed(uint64_t good, uint64_t faults, Time now);
  Change take_half_open(uint64_t good, uint64_t faults, Time now);
  Change open(Time now);

  // The totals of the last call.
  uint64_t num_good_ = 0;
  uint64_t num_faults_ = 0;
  std::deque<Time> faults_;            // closed: since the last good end; fewer than kFaultsToOpen
  std::optional<Time> half_opens_at_;  // none: closed
  uint64_t num_good_in_a_row_ = 0;     // half-open
};

}  // namespace primerl
