/// TokenBudget: how many tokens a second a tenant may have from the engines
/// (`tokens_per_second` of [graph.tenant_limits]).
///
/// Work is charged when it has been done, by the tokens that it took. New work may begin while the
/// time that all charges need has passed. So the rate holds in the long run, and beyond it are at
/// most the tokens of the work that is in flight and kBurst.
///
/// A value in an actor's state. It reads no clock: times are those of services().now(), which a
/// replay repeats.
#pragma once

#include <algorithm>
#include <cstdint>

#include "graph/base/clock.h"

namespace primerl {

class TokenBudget {
 public:
  /// A tenant that was idle may have this time's tokens at once.
  static constexpr Duration kBurst = Duration::seconds(1);

  /// `rate` in tokens a second; 0: there is no limit.
  void charge(int64_t num_tokens, int64_t rate, Time now) {
    if (rate <= 0 || num_tokens <= 0) return;
    const int64_t from = std::max(paid_until_ns_, now.to_nanoseconds() - kBurst.to_nanoseconds());
    // 2^24 tokens, the longest trajectory, at one a second are 2^54 ns.
    if (from > INT64_MAX / 4) return;  // centuries
    paid_until_ns_ = from + std::min<int64_t>(num_tokens, int64_t{1} << 24) * 1'000'000'000 / rate;
  }
  /// The time until new work may begin; zero: it may now.
  Duration wait(int64_t rate, Time now) const {
    if (rate <= 0) return {};
    return Duration::nanoseconds(std::max<int64_t>(paid_until_ns_ - now.to_nanoseconds(), 0));
  }

  template <class F>
  static void fields(F& f) {
    f("paid_until_ns", &TokenBudget::paid_until_ns_);
  }

 private:
  int64_t paid_until_ns_ = INT64_MIN / 2;
};

}  // namespace primerl
