/// The peer of the edge benchmarks: minimal CAF actors written by hand. No CAF type in this header.
#pragma once

#include <cstdint>

namespace primerl {

/// Two actors, `count` numbers from one to the other, at most `window` unacknowledged, credit
/// returned at half a window. Returns the seconds from the first send to the last arrival.
double bare_pair_seconds(int64_t count, int64_t window, int64_t pool_threads);

/// `count` requests with `request().then`, one at a time. Returns seconds.
double bare_request_seconds(int64_t count, int64_t pool_threads);

/// One shared message of `num_bytes` to `num_actors` actors, `count` times, waiting for all after
/// each. Returns seconds.
double bare_broadcast_seconds(int64_t count, int64_t num_actors, int64_t num_bytes,
                              int64_t pool_threads);

}  // namespace primerl
