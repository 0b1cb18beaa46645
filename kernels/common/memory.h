/// Memory of an engine or a learner: whether this machine can hold it, asked before it is made
/// (memory that the system promised and does not have ends a process much later), large buffers,
/// and buffers that are used again. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// Refuses `bytes` beyond the memory that this process may use (machine_memory.h); `what` says what
/// they are for.
Status check_memory(std::string_view what, double bytes);

/// [count] zeros that nobody has touched: a page comes when it is first written, by the thread that
/// writes it, and a large one where the system has them. Throws std::bad_alloc.
at::Tensor zero_floats(int64_t count);

/// Buffers of one size that are lent, and come back when the last who holds one lets go, on any
/// thread. One that is used again has its pages already: the kernel would clear each of them anew.
class BufferPool {
 public:
  /// Buffers that wait here to be used again; more are given back to the system.
  static constexpr size_t kFreeMax = 2;

  explicit BufferPool(int64_t count) : count_(count) {}

  /// [count] numbers, whatever they are. Throws std::bad_alloc.
  std::shared_ptr<float> take();

 private:
  struct Free;
  int64_t count_;
  std::shared_ptr<Free> free_;  // null before the first take()
};

}  // namespace primerl
