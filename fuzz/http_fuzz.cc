/// libFuzzer target: the bytes of a hostile HTTP client.
#include "fuzz/http_fuzz.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)primerl::fuzz_http({reinterpret_cast<const char*>(data), size});
  return 0;
}
