/// Attention of a step's rows over the paged cache of a CUDA device.
///
/// The first rows, one query per sequence, use the decode operation if it supports the model's
/// heads and the cache's blocks. The keys of all others are gathered from the cache, in groups of
/// bounded size. bf16 uses libtorch's flash attention; fp32, which that does not support, uses
/// GEMMs and a softmax. One thread, under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/cuda/engine/decoder.h"
#include "kernels/engine/row_batch.h"

namespace primerl {

/// Whether decode_attention() supports the heads of a model with blocks of that many tokens.
bool has_decode_attention(const AttentionSpec& spec, int32_t block_size);

/// The decode operation's part of a step; device memory.
struct DecodeRows {
  int64_t count = 0;
  const int32_t* block_table = nullptr;  // [count, table_stride]
  int64_t table_stride = 0;
  const int32_t* lengths = nullptr;  // [count]
  int64_t keys_max = 0;              // of them, as the host knows it
  int32_t num_splits = 1;
  float* workspace = nullptr;
};

class CudaAttention {
 public:
  /// All arguments must stay valid while it exists.
  CudaAttention(const AttentionSpec& spec, const CudaStream& stream)
      : spec_(spec), stream_(stream) {}

  Status decode(const DecodeRows& rows, const CudaKvCache& cache, size_t layer, cuda::Type type,
                const at::Tensor& queries, const at::Tensor& attended) const;
  /// The same for rows to which `rope` applies RoPE and which it writes to the cache before.
  Status rope_and_decode(const cuda::PagedRotaryArgs& rope, const DecodeRows& rows,
                         const CudaKvCache& cache, size_t layer, const at::Tensor& attended) const;

  /// Prepares attend() for all spans of `batch` but the first `num_decoded`.
  void begin(const RowBatch& batch, size_t num_decoded);
  void attend(const CudaKvCache& cache, size_t layer, const at::Tensor& queries,
              const at::Tensor& attended) const;

 private:
  struct SpanGroup {
    std::vector<RowSpan> spans;
    int64_t first_row = 0, num_rows = 0, num_keys = 0;
    int64_t queries_max = 0, keys_max = 0;
    int64_t first_slot = -1;  // if the keys are adjacent in the cache
    at::Tensor slots;         // [num_keys] otherwise
    at::Tensor query_ends;    // [spans + 1] on the device
    at::Tensor key_ends;
  };

  void finish(SpanGroup group, const std::vector<int32_t>& slots);
  at::Tensor gathered(const SpanGroup& group, const at::Tensor& layer) const;
  void attend_exactly(const SpanGroup& group, const at::Tensor& queries, const at::Tensor& keys,
                      const at::Tensor& values, const at::Tensor& attended) const;
  float scale() const;
  cuda::DecodeAttentionArgs decode_args(const DecodeRows& rows, const CudaKvCache& cache,
                                        size_t layer, cuda::Type type,
                                        const at::Tensor& attended) const;

  const AttentionSpec& spec_;
  const CudaStream& stream_;
  std::vector<SpanGroup> groups_;  // of the step
};

}  // namespace primerl
