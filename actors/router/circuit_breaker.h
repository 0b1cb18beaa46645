/// CircuitBreaker: whether an engine should get new requests, by how those before have ended.
///
///   closed     --10 faults within 120 s, no good end between them-->  open
///   open       --60 s-->                                              half-open
///   half-open  --3 good ends in a row-->                              closed
///   half-open  --a fault-->                                           open
///
/// A fault is a request that the engine could not compute; a good end is one that it answered as
/// was asked. Both come as the engine's running totals, so that nothing is lost when a load is
/// overwritten by a newer one. In which order the ends of one load came is not known: while closed
/// the good ones count as the last, while half-open a fault alone counts. Ends while it is open
/// change nothing: the engine owed them. A value; time comes from whoever asks. Not thread-safe.
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
  static constexpr Duration kWindow = Duration::seconds(120);  // a fault of that age is forgotten
  static constexpr Duration kOpenFor = Duration::seconds(60);

  enum class State : uint8_t { kClosed, kOpen, kHalfOpen };
  State state(Time now) const;
  /// While it is open, and after; none when closed.
  std::optional<Time> half_opens_at() const { return half_opens_at_; }

  enum class Change : uint8_t { kNone, kOpened, kClosed };
  /// Running totals of the engine. Lower ones than before are those of an engine that was made
  /// anew, and begin at 0.
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

  // As they were told last.
  uint64_t num_good_ = 0;
  uint64_t num_faults_ = 0;
  std::deque<Time> faults_;            // closed: since the last good end; fewer than kFaultsToOpen
  std::optional<Time> half_opens_at_;  // none: closed
  uint64_t num_good_in_a_row_ = 0;     // half-open
};

}  // namespace primerl
