/// libFuzzer target: hostile bytes against the reader of trace segments, raw and packed.
#include "fuzz/trace_fuzz.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  primerl::fuzz_trace(std::as_bytes(std::span(data, size)));
  return 0;
}
