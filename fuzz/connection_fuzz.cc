/// libFuzzer target: hostile bytes against the frames, batches and pieces of a connection.
#include "fuzz/connection_fuzz.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  primerl::fuzz_connection(std::as_bytes(std::span(data, size)));
  return 0;
}
