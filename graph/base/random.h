/// Counter-based random numbers: each is a pure function of a key and an index.
///
/// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
/// SC'11). There is no state that timing could change. Other rows of a batch, threads and message
/// order therefore never change a random number, and a replay computes it again instead of
/// recording it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace primerl {

/// One Philox 4x32-10 block.
std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// A 64-bit mix of text and numbers, stable across machines and builds (FNV-1a, then a finalizer).
uint64_t stable_hash(std::string_view text, uint64_t seed = 0);
uint64_t mix(uint64_t a, uint64_t b);

/// The random numbers 0, 1, 2, ... of one key. A copy continues at the same position.
class RandomStream {
 public:
  explicit RandomStream(uint64_t key) : key_(key) {}

  uint64_t next();
  /// Uniform in [0, 1), 53 bits.
  double uniform();
  /// Uniform in [0, bound), without bias. bound >= 1.
  uint64_t below(uint64_t bound);

 private:
  uint64_t key_;
  uint64_t index_ = 0;
};

/// The uniform number in [0, 1) that samples the token at `position` of the request with `seed`.
double sampling_uniform(uint64_t seed, uint64_t position);

}  // namespace primerl
