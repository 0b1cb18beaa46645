/// Options of weight channels, the same for every backend, as the catalog documents them.
#pragma once

#include <cstdint>

namespace primerl {

struct WeightChannelOptions {
  int32_t versions_max = 2;  // newest versions of a key kept
};

}  // namespace primerl
