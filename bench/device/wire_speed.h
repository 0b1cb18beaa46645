/// The speed of the hardware without this project. The bench of weights on devices compares its
/// results with it. Prints each with its spread, in GB/s.
#pragma once

#include <cstdint>

#include "kernels/weights/device_memory.h"

namespace primerl::bench {

/// The bound of a stop: a copy of `num_bytes` within cuda:0, from the rate of a part of it.
void copy_alone(uint64_t num_bytes);

/// Copies a buffer of another process and CUDA device to cuda:0, at once and in parts.
void copy_from(const DeviceBuffer& buffer);

/// Peer copies and NCCL's broadcasts from cuda:1 to cuda:0, of `num_bytes` and of 1 GiB; and the
/// share of the broadcast's rate that `num_bytes` in `seconds` reaches.
void compare(uint64_t num_bytes, double seconds);

}  // namespace primerl::bench
