/// Memory of an engine or a learner: whether this machine can hold it, asked before it is made
/// (memory that the system promised and does not have ends a process much later), and large
/// buffers. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// Refuses `bytes` beyond the memory of this machine; `what` says what they are for.
Status check_memory(std::string_view what, double bytes);

/// [count] zeros that nobody has touched: a page comes when it is first written, by the thread that
/// writes it, and a large one where the system has them. Throws std::bad_alloc.
at::Tensor zero_floats(int64_t count);

}  // namespace primerl
