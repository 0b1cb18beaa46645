/// libFuzzer target: hostile schemas and bodies against the reader of messages without their
/// struct.
#include "fuzz/schema_fuzz.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  primerl::fuzz_schema(std::as_bytes(std::span(data, size)));
  return 0;
}
