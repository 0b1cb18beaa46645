/// libFuzzer target: an attacker between a working connection and its peer.
#include "fuzz/live_connection_fuzz.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)primerl::fuzz_live_connection(std::as_bytes(std::span(data, size)));
  return 0;
}
