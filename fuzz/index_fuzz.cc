/// libFuzzer target: hostile bytes against the reader of trace indices.
#include "fuzz/index_fuzz.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  primerl::fuzz_index(std::as_bytes(std::span(data, size)));
  return 0;
}
