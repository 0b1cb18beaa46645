/// How long tests wait for what must happen. Nothing sleeps so long: only a hang gets there.
#pragma once

#include <cstdint>

#include "graph/base/clock.h"

namespace primerl {

/// Under a sanitizer everything takes longer, most of all on a machine that has more to do.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int64_t kSlowness = 10;
#else
inline constexpr int64_t kSlowness = 1;
#endif

inline constexpr Duration kPatience = Duration::seconds(60) * kSlowness;

}  // namespace primerl
