/// A reward for short answers: 1 up to `free` characters of the last turn, then falling evenly to 0
/// at `most` characters.
#pragma once

#include <cstdint>
#include <memory>

#include "actors/env/reward.h"

namespace primerl {

struct LengthOptions {
  int64_t free = 256;   // characters (code points) without a loss
  int64_t most = 1024;  // from here on the reward is 0
};

OptionSet length_options();
/// Refuses `most` that is not above `free`.
Result<std::unique_ptr<Reward>> make_length(const LengthOptions& options);

}  // namespace primerl
