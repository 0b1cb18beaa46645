#include "kernels/cuda/engine/decode_graphs.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/ops/cuda_ops.h"

namespace primerl {

int64_t graph_rows(int64_t rows, int64_t rows_max) {
  int64_t padded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  if (rows > 16) {
    const int64_t step = rows > 64 ? 32 : 8;
    padded = (rows + step - 1) / step * step;
  }
  return std::min(padded, rows_max);
}

Status DecodeGraphs::run(const Kind& kind, const std::function<Status()>& launch) {
  if (!cuda::has_own_kernels()) return launch();  // only these can be captured
  if (const auto found = graphs_.find(kind); found != graphs_.end()) {
    found->second->replay();
    return ok();
  }
  RETURN_IF_ERROR(launch());
  if (graphs_.size() >= kDecodeGraphsMax) return ok();
  auto graph = std::make_unique<at::cuda::CUDAGraph>();
  RETURN_IF_ERROR(capture(*graph, launch));
  graphs_.emplace(kind, std::move(graph));
  return ok();
}

/// Thread-local: allocations of other threads do not matter.
Status DecodeGraphs::capture(at::cuda::CUDAGraph& graph, const std::function<Status()>& launch) {
  graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
  Status captured;
  try {
    captured = launch();
  } catch (...) {
    try {
      graph.capture_end();
    } catch (const std::exception&) {
      // Report the first error.
    }
    throw;
  }
  graph.capture_end();
  return captured;
}

}  // namespace primerl
