#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tests/device/memory.h"

namespace primerl::cuda_test {
namespace {

// The tests' computations are small: the library's second thread would only spin, using a core that
// other tests need.
[[maybe_unused]] const bool kHasOneThread = [] {
  at::set_num_threads(1);
  return true;
}();

}  // namespace

void* take_memory(size_t size) {
  constexpr size_t kAlignment = 64;
  return std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
}
void free_memory(void* memory) { std::free(memory); }

void write_memory(void* memory, std::span<const std::byte> bytes) {
  if (!bytes.empty()) std::memcpy(memory, bytes.data(), bytes.size());
}
std::vector<std::byte> read_memory(const void* memory, size_t size) {
  const auto* begin = static_cast<const std::byte*>(memory);
  return {begin, begin + size};
}

uint64_t num_seeds(uint64_t all) {
  const char* const given = std::getenv("PRIMERL_OPS_SEEDS");
  return std::min<uint64_t>(all, given != nullptr ? std::strtoull(given, nullptr, 10) : 8);
}

void run(const std::function<void(cuda::Stream)>& launch) { launch(nullptr); }

void with_graph(const std::function<void(cuda::Stream)>&,
                const std::function<void(const std::function<void()>&)>&) {
  throw std::logic_error("there are no CUDA graphs on a host");
}

}  // namespace primerl::cuda_test
