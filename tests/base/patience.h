/// Time limits of tests. No test sleeps that long: the limit is reached only if something hangs.
#pragma once

#include <cstdint>

#include "graph/base/clock.h"

namespace primerl {

/// Under a sanitizer everything takes longer, mostly on a busy machine.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int64_t kSlowness = 10;
#else
inline constexpr int64_t kSlowness = 1;
#endif

inline constexpr Duration kPatience = Duration::seconds(60) * kSlowness;

}  // namespace primerl
