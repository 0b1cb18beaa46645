/// CUDA graphs of decode steps, one for each number of rows, number of parts of the context,
/// whether kept sets are made, whether adapters add to rows, and whether they do to experts.
///
/// The first step of a kind is launched directly, which also allocates libtorch's workspaces. Then
/// the kind is captured, and later steps replay it. All graphs share one memory pool, since no two
/// of them run at once. One thread, under a CudaStream::Use.
#pragma once

#include <ATen/cuda/CUDAGraph.h>

#include <compare>
#include <functional>
#include <map>
#include <memory>

#include "graph/base/result.h"

namespace primerl {

/// Kinds beyond this number are launched directly.
inline constexpr size_t kDecodeGraphsMax = 128;

class DecodeGraphs {
 public:
  struct Kind {
    int64_t rows = 0;
    int32_t num_splits = 1;
    bool has_kept = false;
    bool has_adapters = false;
    bool has_expert_adapters = false;

    friend auto operator<=>(const Kind&, const Kind&) = default;
  };

  /// `launch` always launches the same for a kind.
  Status run(const Kind& kind, const std::function<Status()>& launch);

  size_t size() const { return graphs_.size(); }

 private:
  Status capture(at::cuda::CUDAGraph& graph, const std::function<Status()>& launch);

  std::map<Kind, std::unique_ptr<at::cuda::CUDAGraph>> graphs_;
  decltype(at::cuda::graph_pool_handle()) pool_ = at::cuda::graph_pool_handle();
};

/// The rows of the graph that takes a batch of `rows`: powers of two to 16, then multiples of 8 to
/// 64 and of 32, at most `rows_max`.
int64_t graph_rows(int64_t rows, int64_t rows_max);

}  // namespace primerl
