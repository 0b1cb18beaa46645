/// libFuzzer target: the body of a request to the gateway.
#include "fuzz/gateway_body_fuzz.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)primerl::fuzz_gateway_body({reinterpret_cast<const char*>(data), size});
  return 0;
}
