/// The inputs and outputs of a step on a CUDA device: rows to decode, their sampling settings, and
/// the sampled tokens.
///
/// Owns pinned memory on the host and equal memory on the device, both of fixed size and address: a
/// captured graph reads and writes the latter. The host writes, upload() copies, the step runs,
/// download() copies back, wait() waits for that. The host has two buffers, which steps use
/// alternately: one may be written while the step of the other runs. Before a step begins, its
/// caller has waited for the step before the last. One thread, under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/device/stream.h"
#include "kernels/cuda/ops/cuda_adapters.h"
#include "kernels/engine/batch_scheduler.h"

namespace primerl {

/// Arrays of [rows_max], in host or in device memory.
struct StepArrays {
  cuda::AdapterRow* adapter_rows = nullptr;
  cuda::SamplingRow* settings = nullptr;
  int32_t* indices = nullptr;  // tokens that the sequence has generated before
  int32_t* tokens = nullptr;
  int32_t* positions = nullptr;
  int32_t* slots = nullptr;
  int32_t* lengths = nullptr;  // keys, including the row's own
  int32_t* picked = nullptr;   // rows that are sampled
  int32_t* labels = nullptr;   // tokens that are scored
  cuda::AdapterTile* tiles = nullptr;
  cuda::AdapterTile* runs = nullptr;  // rows of one adapter that adds to experts
};

class StepMemory {
 public:
  /// `stream` must stay valid while it exists. A row has up to `blocks_max` blocks.
  StepMemory(int64_t rows_max, int64_t blocks_max, int64_t vocab_size, const CudaStream& stream);

  int64_t rows_max() const { return rows_max_; }
  const StepArrays& host() const { return buffers_[buffer_index_].arrays; }
  const StepArrays& device() const { return device_; }
  const int32_t* block_table() const { return device_table_.const_data_ptr<int32_t>(); }
  int64_t table_stride() const { return device_table_.size(1); }
  /// On the device: the tokens of the last draw(), row by row.
  const int32_t* drawn() const { return device_drawn_.const_data_ptr<int32_t>(); }

  /// Begins a step: all functions below use its buffer.
  void begin() { buffer_index_ = 1 - buffer_index_; }
  size_t buffer_index() const { return buffer_index_; }

  /// Row `row` samples token `index` of those that `sequence` generates.
  void sample(int64_t row, const Sequence& sequence, int32_t index);
  /// Row `row` is the row of a decoded span: its token, key and length.
  void decode(int64_t row, const RowBatch& batch, const RowSpan& span);
  /// Row `row` is padding: it has no key, and its sampled token is discarded.
  void clear(int64_t row);

  /// All arrays, and the rows of the block table that have changed.
  Status upload();

  /// Samples a token for each of the first `rows` rows of `logits`; kept sets only if `has_kept`.
  Status draw(int64_t rows, const at::Tensor& logits, bool has_kept) const;
  /// Log-probabilities of the labels of the first `rows` rows of `logits`, and the logarithms of
  /// the rows' sums to `normalizers`, device memory.
  Status score(int64_t rows, const at::Tensor& logits, float* normalizers) const;
  Status download(int64_t rows, bool has_kept);

  /// Waits for the download to buffer `buffer_index`: tokens(), logprobs() and kept() of its step.
  Status wait(size_t buffer_index) const { return stream_.wait(buffers_[buffer_index].is_there); }
  std::span<const int32_t> tokens(size_t buffer_index) const;
  std::span<const float> logprobs(size_t buffer_index) const;
  /// [kept_words(vocab_size)]
  std::span<const uint32_t> kept(size_t buffer_index, int64_t row) const;

 private:
  struct HostBuffers {
    at::Tensor bytes;  // the arrays
    StepArrays arrays;
    at::Tensor table;  // [rows_max, blocks_max]; only rows that are sent are up to date
    at::Tensor drawn;  // [2, rows_max] tokens, bits of log-probabilities
    at::Tensor kept;   // [rows_max, words], made on first use
    c10::Event is_there{c10::DeviceType::CUDA};
  };
  /// Rows [begin, end) and columns [0, width) of the block table.
  struct Changed {
    int64_t begin = 0, end = 0, width = 0;
  };

  Status upload_table();

  const int64_t rows_max_;
  const int64_t vocab_size_;
  const CudaStream& stream_;
  std::array<HostBuffers, 2> buffers_;
  size_t buffer_index_ = 0;
  std::vector<int32_t> table_;  // the device's table after all launched work is done
  Changed changed_;             // the part of it that was not sent yet
  at::Tensor device_bytes_;
  StepArrays device_;
  at::Tensor device_table_;
  at::Tensor device_drawn_;
  at::Tensor device_kept_;
  at::Tensor workspace_;  // of the sampler
};

}  // namespace primerl
