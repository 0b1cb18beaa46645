/// Attention of training over packed rows on a CUDA device, forward and backward.
///
/// A long document without a shared prompt uses dense cuDNN, padded to one of few lengths, since
/// each new length needs a plan. All other bf16 documents go through libtorch's flash attention of
/// variable lengths, with gathered keys where a prompt is shared. fp32, which neither supports,
/// uses GEMMs and a softmax. Forward keeps its output and a Kept for each part for backward. One
/// thread, under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/cuda/device/stream.h"
#include "kernels/engine/row_batch.h"
#include "kernels/models/config.h"

namespace primerl {

/// Queries, keys and values of all rows of a batch: [rows, heads * head_dim], rows may be apart.
struct AttentionRows {
  at::Tensor queries, keys, values;
};

class TrainingAttention {
 public:
  /// The state of one part of a batch.
  struct Kept {
    at::Tensor log_sum_exp, seed, offset;
  };
  using KeptParts = std::vector<Kept>;

  /// Both must stay valid while it exists. `is_repeatable`: do not use cuDNN, whose backward adds
  /// in any order.
  TrainingAttention(const AttentionSpec& spec, const CudaStream& stream, bool is_repeatable)
      : spec_(spec), stream_(stream), is_repeatable_(is_repeatable) {}

  /// Prepares for a batch whose blocks are of one row, as pack() makes it.
  void begin(const RowBatch& batch, at::ScalarType type);
  /// Computes the batch of the last begin(). `attended` [rows, num_heads * head_dim] is written.
  KeptParts forward(const AttentionRows& rows, const at::Tensor& attended) const;
  /// The gradients of `rows`, all dense, from `dattended`.
  Result<AttentionRows> backward(const AttentionRows& rows, const at::Tensor& attended,
                                 const KeptParts& kept, const at::Tensor& dattended) const;

 private:
  /// Consecutive rows with the keys that they attend to.
  struct Document {
    int64_t first_row = 0, num_queries = 0, num_cached = 0;
    int64_t kv_offset = 0;  // of its keys in the batch, unless they directly precede the rows
    bool is_plain() const { return num_cached == 0; }
    int64_t num_keys() const { return num_cached + num_queries; }
  };
  /// Documents that are computed in one call.
  struct Part {
    std::vector<Document> documents;
    bool is_dense = false;
    bool is_gathered = false;
    int64_t first_row = 0, num_rows = 0, num_keys = 0;
    int64_t queries_max = 0, keys_max = 0;
    at::Tensor query_ends, key_ends;  // [documents + 1] on the device
    at::Tensor key_rows;              // [num_keys] if they are gathered
    // Data to add the gradients of a row's key, grouped by row.
    int64_t num_ids = 0;
    at::Tensor sums;  // ids, offsets, row indices (EmbeddingBackwardArgs)
  };

  std::vector<Document> documents_of(const RowBatch& batch) const;
  bool is_dense(const Document& document, at::ScalarType type) const;
  void finish(Part part, const RowBatch& batch);
  at::Tensor heads(const at::Tensor& rows, const Part& part, int64_t num_heads) const;
  at::Tensor keys_of(const at::Tensor& rows, const Part& part) const;
  at::Tensor padded(const at::Tensor& rows, const Part& part, int64_t num_heads) const;

  Kept forward_dense(const Part& part, const AttentionRows& rows, at::Tensor to) const;
  Kept forward_packed(const Part& part, const AttentionRows& rows, at::Tensor to) const;
  void forward_exact(const Part& part, const AttentionRows& rows, const at::Tensor& to) const;
  /// Only the part's rows and keys: [any, heads, head_dim].
  AttentionRows backward_part(const Part& part, const AttentionRows& rows,
                              const at::Tensor& attended, const Kept& kept,
                              const at::Tensor& dattended) const;
  AttentionRows backward_dense(const Part& part, const AttentionRows& rows,
                               const at::Tensor& attended, const Kept& kept,
                               const at::Tensor& dattended) const;
  AttentionRows backward_packed(const Part& part, const AttentionRows& rows,
                                const at::Tensor& attended, const Kept& kept,
                                const at::Tensor& dattended) const;
  AttentionRows backward_exact(const Part& part, const AttentionRows& rows,
                               const at::Tensor& attended, const at::Tensor& dattended) const;
  Status add_keys(const Part& part, const at::Tensor& from, const at::Tensor& to) const;
  double scale() const;

  const AttentionSpec& spec_;
  const CudaStream& stream_;
  const bool is_repeatable_;
  // For the current batch.
  std::vector<Part> parts_;
  bool has_gathered_ = false;
};

/// Rounds up so that there are at most 8 lengths between two powers of two.
int64_t dense_length(int64_t num_rows);

/// Groups the indices of equal numbers for EmbeddingBackwardArgs: the numbers in order, then their
/// offsets (one more than numbers), then the indices.
struct GroupedIndices {
  std::vector<int32_t> all;
  int64_t num_ids = 0;
};
GroupedIndices group_indices(const std::vector<int32_t>& numbers);

}  // namespace primerl
