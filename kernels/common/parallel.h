/// Divides work over the compute threads of the calling thread (boundary.h). The division never
/// changes a result: parts must write to separate memory.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace primerl {

/// Cost, in multiply-adds, that justifies waking another thread.
inline constexpr int64_t kWorkPerThread = int64_t{1} << 18;

/// Threads for `work` multiply-adds, at most `parts`.
inline int64_t threads_for(int64_t work, int64_t parts) {
  return std::max<int64_t>(
      1, std::min({int64_t{at::get_num_threads()}, work / kWorkPerThread, parts}));
}

/// Calls body(begin, end) for equal parts of [0, count); each but the last is a multiple of
/// `multiple`.
template <class Body>
void share(int64_t count, int64_t work, Body&& body, int64_t multiple = 1) {
  const int64_t units = (count + multiple - 1) / multiple;
  const int64_t num_threads = threads_for(work, units);
  if (num_threads < 2) return body(int64_t{0}, count);
  at::parallel_for(
      0, units, (units + num_threads - 1) / num_threads,
      [&](int64_t begin, int64_t end) { body(begin * multiple, std::min(count, end * multiple)); });
}

/// Calls body(i) for each i of [0, count): each idle thread gets the next i. For parts of unequal
/// work.
template <class Body>
void share_tasks(int64_t count, int64_t work, Body&& body) {
  const int64_t num_threads = threads_for(work, count);
  if (num_threads < 2) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, num_threads, 1, [&](int64_t, int64_t) {
    for (int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i);
  });
}

/// Rows per partial sum of a gradient. Partial sums are added in order, independent of threads.
inline constexpr int64_t kRowsOfSum = 256;

/// sums[0, width) += the sums over parts of kRowsOfSum rows, in order; body(begin, end, to) adds
/// rows [begin, end) to `to`, which is 0 before. A null `sums` means the sums are not needed.
/// `room`: scratch, grown as needed.
template <class Room, class Body>
void share_sums(int64_t rows, int64_t width, int64_t work, Room& room, float* sums, Body&& body) {
  const int64_t parts = (rows + kRowsOfSum - 1) / kRowsOfSum;
  room.assign(static_cast<size_t>(parts * width), 0.0F);
  share(parts, work, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part)
      body(part * kRowsOfSum, std::min(rows, (part + 1) * kRowsOfSum), room.data() + part * width);
  });
  for (int64_t part = 0; part < parts && sums != nullptr; ++part) {
    const float* from = room.data() + part * width;
    for (int64_t i = 0; i < width; ++i) sums[i] += from[i];
  }
}

}  // namespace primerl
