/// libFuzzer target: hostile bytes against the frame header and the msgpack reader.
#include "fuzz/frame_fuzz.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  primerl::fuzz_frame(std::as_bytes(std::span(data, size)));
  return 0;
}
