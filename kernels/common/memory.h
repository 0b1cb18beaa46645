/// Memory of an engine or a learner: large buffers, reusable buffers, and a check, before anything
/// is allocated, whether the machine has enough memory. Without the check the system might kill the
/// process much later. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// Refuses `bytes` beyond the memory that this process may use (machine_memory.h); `what` names
/// their use in the error.
Status check_memory(std::string_view what, double bytes);

/// [count] zeros in untouched pages: a page is allocated when it is first written, by the thread
/// that writes it, as a huge page if the system has them. Throws std::bad_alloc.
at::Tensor zero_floats(int64_t count);
/// The same, [rows, width].
inline at::Tensor zero_floats(int64_t rows, int64_t width) {
  return zero_floats(rows * width).view({rows, width});
}

/// Buffers of one size that are lent. A buffer returns when its last owner releases it, on any
/// thread. A reused buffer already has its pages: otherwise the kernel would clear each page again.
class BufferPool {
 public:
  /// Free buffers kept for reuse; more are returned to the system.
  static constexpr size_t kFreeMax = 2;

  explicit BufferPool(int64_t count) : count_(count) {}

  /// [count] floats with undefined values. Throws std::bad_alloc.
  std::shared_ptr<float> take();

 private:
  struct Free;
  int64_t count_;
  std::shared_ptr<Free> free_;  // null before the first take()
};

}  // namespace primerl
