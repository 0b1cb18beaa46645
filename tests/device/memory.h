/// The memory of a test's buffers: on the current CUDA device (cuda_memory.cc), or, for ATen
/// operations on a machine without one, on the host (host_memory.cc). A failure of the device ends
/// the test with its name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/cuda/ops/cuda_ops.h"

namespace primerl::cuda_test {

void* take_memory(size_t size);
void free_memory(void* memory);
void write_memory(void* memory, std::span<const std::byte> bytes);
std::vector<std::byte> read_memory(const void* memory, size_t size);

/// Launches on a stream and waits.
void run(const std::function<void(cuda::Stream)>& launch);
/// Captures `launch` in a CUDA graph; body(replay) may replay it; each replay waits.
void with_graph(const std::function<void(cuda::Stream)>& launch,
                const std::function<void(const std::function<void()>& replay)>& body);

/// How many of the `all` random cases of an operation a test makes. A device computes all of them.
/// A host computes the first 8, or as many as PRIMERL_OPS_SEEDS says.
uint64_t num_seeds(uint64_t all);

}  // namespace primerl::cuda_test
