/// libFuzzer target: hostile bytes against the greeting and the frames of an agent.
#include "fuzz/agent_fuzz.h"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  primerl::fuzz_agent(std::as_bytes(std::span(data, size)));
  return 0;
}
