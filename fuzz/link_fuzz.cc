/// libFuzzer target: hostile bytes against the frames, parcels and pieces of a link.
#include "fuzz/link_fuzz.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  primerl::fuzz_link(std::as_bytes(std::span(data, size)));
  return 0;
}
