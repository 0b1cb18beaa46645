// Hostile bytes as a safetensors file. The result must be an error, or tensors inside the bytes.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "graph/base/assert.h"
#include "kernels/weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto tensors = primerl::parse_safetensors(nullptr, bytes, "input");
  if (!tensors.ok()) {
    CHECK(!tensors.error().message().empty());
    return 0;
  }
  size_t total = 0;
  unsigned sum = 0;
  for (const auto& tensor : *tensors) {
    size_t expected = primerl::size_in_bytes(tensor.type);
    for (const int64_t extent : tensor.shape) expected *= static_cast<size_t>(extent);
    CHECK(tensor.bytes.size() == expected, tensor.name);
    for (const std::byte byte : tensor.bytes.bytes()) sum += static_cast<unsigned>(byte);
    total += expected;
  }
  CHECK(total <= size && (sum == 0 || total > 0));
  return 0;
}
