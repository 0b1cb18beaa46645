/// libFuzzer target: the answers of a hostile verifiers server.
#include "fuzz/verifiers_fuzz.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)primerl::fuzz_verifiers({reinterpret_cast<const char*>(data), size});
  return 0;
}
