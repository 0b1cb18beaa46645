/// What a step on a CUDA device is told and what it answers: rows to decode, how they are sampled,
/// and the tokens that were drawn.
///
/// Owns pinned memory on the host and its like on the device, both of fixed size and address: a
/// captured graph reads and writes the device's. The host writes, upload() copies, the step runs,
/// download() copies back; between two steps CardStream::wait() is called, so that neither side
/// overtakes the other. One thread, under a CardStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "kernels/engine/batch_scheduler.h"
#include "kernels/torch/cuda/stream.h"

namespace primerl {

/// Arrays of [rows_max], in host or in device memory.
struct StepArrays {
  cuda::SamplingRow* settings = nullptr;
  int32_t* indices = nullptr;  // tokens that the sequence has generated before
  int32_t* tokens = nullptr;
  int32_t* positions = nullptr;
  int32_t* slots = nullptr;
  int32_t* lengths = nullptr;  // keys, the row's own among them
  int32_t* picked = nullptr;   // rows that are sampled
  int32_t* labels = nullptr;   // tokens that are scored
  cuda::AdapterTile* tiles = nullptr;
};

class StepMemory {
 public:
  /// `stream` outlives it. A row has up to `blocks_max` blocks.
  StepMemory(int64_t rows_max, int64_t blocks_max, int64_t vocab_size, const CardStream& stream);

  int64_t rows_max() const { return rows_max_; }
  const StepArrays& host() const { return host_; }
  const StepArrays& device() const { return device_; }
  const int32_t* block_table() const { return device_table_.const_data_ptr<int32_t>(); }
  int64_t table_stride() const { return host_table_.size(1); }

  /// Row `row` samples for `sequence`; nothing is drawn for a row that is cleared.
  void sample(int64_t row, const Sequence& sequence);
  /// Row `row` is that of a decoded span: its token, key and length.
  void decode(int64_t row, const RowBatch& batch, const RowSpan& span);
  /// A row that pads a batch: it has no key, and what is drawn from it is nobody's.
  void clear(int64_t row);

  /// All arrays, and the first rows of the block table where one of them has changed.
  Status upload(int64_t table_rows);

  /// Draws a token for each of the first `rows` rows of `logits`; kept sets only if wanted.
  Status draw(int64_t rows, const at::Tensor& logits, bool has_kept) const;
  /// Log-probabilities of the labels of the first `rows` rows of `logits`.
  Status score(int64_t rows, const at::Tensor& logits) const;
  /// Until the device is done; then tokens(), logprobs() and kept() are those of the step.
  Status download(int64_t rows, bool has_kept);

  std::span<const int32_t> tokens() const;
  std::span<const float> logprobs() const;
  /// [kept_words(vocab_size)]
  std::span<const uint32_t> kept(int64_t row) const;

 private:
  const int64_t rows_max_;
  const int64_t vocab_size_;
  const CardStream& stream_;
  at::Tensor host_bytes_, device_bytes_;  // the arrays
  StepArrays host_, device_;
  at::Tensor host_table_, device_table_;  // [rows_max, blocks_max]
  int64_t table_width_ = 0;               // of what differs from the device's
  at::Tensor host_drawn_, device_drawn_;  // [2, rows_max] tokens, bits of log-probabilities
  at::Tensor host_kept_, device_kept_;    // [rows_max, words]
  at::Tensor workspace_;                  // of the sampler
};

}  // namespace primerl
