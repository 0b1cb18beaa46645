/// Options of weight channels, equal for every backend, as documented in the catalog.
#pragma once

#include <cstdint>

namespace primerl {

struct WeightChannelOptions {
  int32_t versions_max = 2;  // number of newest versions kept per key
};

}  // namespace primerl
