/// MemoryPart: something that an engine or a learner keeps in memory for as long as it lives, and
/// its bytes. `check` adds parts up before anything is made. Plain values, any thread.
#pragma once

#include <numeric>
#include <span>
#include <string>

namespace primerl {

struct MemoryPart {
  std::string what;  // "base weights", "adapter of tenant 'a' (rank 8), gradients and moments"
  double bytes = 0;  // whole, and exact below 2^53
};

inline double sum_of(std::span<const MemoryPart> parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0,
                         [](double sum, const MemoryPart& part) { return sum + part.bytes; });
}

/// "1.5 MiB".
std::string memory_text(double bytes);

}  // namespace primerl
