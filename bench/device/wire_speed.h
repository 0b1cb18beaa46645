/// The speed of the hardware without this project. The bench of weights on devices compares its own
/// figures with it. Prints each with its spread, in GB/s.
#pragma once

#include <cstdint>

#include "kernels/weights/device_memory.h"

namespace primerl::bench {

/// The bound of a stop: a copy within cuda:0 of `num_bytes`, by the rate of a part of it.
void copy_alone(uint64_t num_bytes);

/// Copies of a buffer of another process and CUDA device to cuda:0, at once and in parts.
void copy_from(const DeviceBuffer& buffer);

/// Peer copies and NCCL's broadcasts from cuda:1 to cuda:0, of `num_bytes` and of 1 GiB; and what
/// share of the broadcasts `num_bytes` in `seconds` are.
void compare(uint64_t num_bytes, double seconds);

}  // namespace primerl::bench
