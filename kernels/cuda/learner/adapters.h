/// Adapters of a learner on a CUDA device: the weights that each tenant trains, and their LoRA
/// deltas in a pass, forward and backward.
///
/// y += scaling * (x A') B', where each row has the A and B of its tenant. All adapters have one
/// layout (padded_adapters.h), slot after slot. A pass of many tenants uses one GEMM over all of
/// its rows: _grouped_mm, or add_low_rank_gemms() if it adds to an output. A pass of few tenants,
/// or in fp32, uses one GEMM per tenant. Either way a gradient is a sum over only the rows of its
/// tenant. Dropout has the random numbers of the CPU, recomputed at each use. For experts, the
/// mixture has sorted the rows: those of an expert and a tenant are adjacent, and one GEMM computes
/// all of them (in fp32 one GEMM each, which waits for the device). One thread, under a
/// CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/common/adapter_dropout.h"
#include "kernels/cuda/learner/trained_weights.h"
#include "kernels/cuda/ops/cuda_adapters.h"
#include "kernels/engine/row_batch.h"
#include "kernels/models/padded_adapters.h"
#include "kernels/train/adapter_training.h"

namespace primerl {

class LearnerAdapters {
 public:
  using Matrix = PaddedAdapters::Matrix;
  /// The rows of one adapter.
  struct Run {
    int64_t slot = 0, first = 0, rows = 0;
  };
  /// The rows of a pass as a mixture has sorted them (SortByExpertArgs). Sorting keeps the order
  /// of rows, so within an expert they are in the order of the slots.
  struct ExpertRows {
    at::Tensor ends;               // [experts * slots of the pass] int32: the end of each slot's
                                   // rows in each expert
    std::vector<int64_t> on_host;  // the same on the host, for fp32
    at::Tensor tiles;              // AdapterTile, as bytes
    at::Tensor scalings;           // [pairs, 1] fp32
    at::Tensor dropped;            // DropRow, as bytes; undefined: no adapter has dropout
    at::Tensor experts;            // [pairs] int32, with dropout only
  };

  /// Some rows of a pass, for the head: the rows of an adapter are adjacent.
  struct PickedRows {
    std::vector<Run> runs;
    at::Tensor dropped;  // [rows, bytes of DropRow]; undefined: no adapter has dropout
  };

  /// `adapters` are valid and can_train() accepts them; slot i is adapters[i], and may be free.
  /// Their initial weights are those of initialize_adapter().
  LearnerAdapters(const TensorTable& model, std::span<const AdapterTraining> adapters,
                  at::ScalarType type, const CudaStream& stream);

  /// Why adapters of this model cannot be trained on a device; ok if they can.
  static Status can_train(const ModelConfig& config);
  /// Bytes of weights, gradients and moments; and bytes of `rows` rows of a pass, each sent to
  /// `experts_per_token` experts of a mixture.
  static double bytes_needed(const TensorTable& model, std::span<const AdapterTraining> adapters,
                             at::ScalarType type);
  static double bytes_of_rows(const TensorTable& model, std::span<const AdapterTraining> adapters,
                              at::ScalarType type, int64_t rows, int32_t experts_per_token);

  /// Makes the adapter of a free slot, as at construction; all or nothing. Its rank and targets are
  /// within those of the constructor's. `model` is the constructor's.
  void begin(size_t slot, const TensorTable& model, const AdapterTraining& training);
  /// Frees the slot. Nothing that was launched may use the adapter any more.
  void end(size_t slot);
  bool is_free(size_t slot) const { return adapters_[slot] == nullptr; }

  /// These five are not for a free slot.
  const AdapterTable& table(size_t slot) const { return adapters_[slot]->table; }
  CudaTrainedWeights& trained(size_t slot) { return *adapters_[slot]->trained; }
  /// Null: no adapter targets a linear of that model parameter.
  const Matrix* matrix(size_t parameter) const { return padded_.matrix(parameter); }

  /// Sets the dropout of the adapter for later passes, whose rows must have random keys
  /// (RowBatch::draws). Returns the previous value.
  AdapterDropout drop(size_t slot, const AdapterDropout& dropout) {
    return std::exchange(adapters_[slot]->dropout, dropout);
  }
  /// Sets the factor of what the adapter adds in later passes. Returns the previous value.
  float scale(size_t slot, float scaling) {
    return std::exchange(adapters_[slot]->scaling, scaling);
  }
  /// Prepares the rows of the next pass: each has an adapter (RowSpan::adapter), and the rows of an
  /// adapter are adjacent, in the order of the slots.
  Status begin(const RowBatch& batch);
  /// y [rows, columns] += the LoRA deltas of the GEMM of x [rows, inputs].
  void forward(const Matrix& matrix, const at::Tensor& x, const at::Tensor& y);
  /// Adds the gradients of A and B, and that of x to `dx`. Call once after each forward pass.
  void backward(const Matrix& matrix, const at::Tensor& x, const at::Tensor& dy,
                const at::Tensor& dx);

  /// The slot of a row of the pass.
  int64_t slot_of(int32_t row) const;
  /// Prepares some rows of the pass, in any order, in which the rows of a slot are adjacent.
  PickedRows pick(std::span<const int32_t> rows) const;
  /// The same for these rows: x [picked rows, inputs], and so on; y may be fp32.
  void forward(const Matrix& matrix, const PickedRows& picked, const at::Tensor& x,
               const at::Tensor& y) const;
  void backward(const Matrix& matrix, const PickedRows& picked, const at::Tensor& x,
                const at::Tensor& dy, const at::Tensor& dx) const;

  /// Prepares the sorted rows of the pass: `sources` and `ends` are those of SortByExpertArgs.
  Result<ExpertRows> sort_rows(const at::Tensor& sources, const at::Tensor& ends) const;
  /// The same for a matrix of experts, whose rows are sorted: x [sorted rows, inputs], and so on.
  void forward(const Matrix& matrix, const ExpertRows& expert_rows, const at::Tensor& x,
               const at::Tensor& y);
  /// `weights` [pairs, 1]: factor of a row's gradient in the gradients of A and B; the gradient of
  /// x already includes it. Undefined: 1.
  void backward(const Matrix& matrix, const ExpertRows& expert_rows, const at::Tensor& x,
                const at::Tensor& dy, const at::Tensor& dx, const at::Tensor& weights);
  /// Frees the memory of a pass.
  void release() { between_.clear(); }

 private:
  struct Adapter {
    AdapterTable table;
    std::unique_ptr<CudaTrainedWeights> trained;
    float scaling = 0;
    AdapterDropout dropout;
  };
  using Part = PaddedAdapters::Part;
  /// Runs of adjacent slots.
  struct SlotRange {
    int64_t first_run = 0, first_slot = 0, count = 0;
  };

  /// A view [slots, rows, width] of the values at `offset`.
  at::Tensor of_slots(const at::Tensor& flat, int64_t offset, int64_t rows, int64_t width) const;
  /// The same for the slots of this pass, from its first to its last.
  at::Tensor of_pass(int64_t offset, int64_t rows, int64_t width) const;
  int64_t width_of(const Matrix& matrix) const { return std::ssize(matrix.parts) * rank_; }

  /// `dropped`: DropRow of all rows, of which the run is a part, or undefined.
  void forward_one(const Run& run, const Matrix& matrix, const at::Tensor& dropped,
                   const at::Tensor& x, const at::Tensor& y) const;
  void backward_one(const Run& run, const Matrix& matrix, const at::Tensor& dropped,
                    const at::Tensor& x, const at::Tensor& dy, const at::Tensor& dx) const;
  void forward_together(const Matrix& matrix, const at::Tensor& x, const at::Tensor& y);
  void backward_together(const Matrix& matrix, const at::Tensor& x, const at::Tensor& dy,
                         const at::Tensor& dx);
  /// The range of a slot that is one matrix, or one matrix per expert.
  struct Block {
    int64_t offset = 0;
    int64_t stride = 0;  // elements from one expert to the next
    int64_t rows = 0, width = 0;
  };
  Block block_of(const Matrix& matrix) const {
    return {matrix.a, matrix.a_stride, width_of(matrix), matrix.inputs};
  }
  Block block_of(const Part& part) const {
    return {part.b, part.outputs * rank_, part.outputs, rank_};
  }
  /// y [rows, columns] += x [rows, terms] times the weights of each tile's slot and expert, which
  /// are [columns, terms] or, transposed, [terms, columns].
  void add_low_rank(const at::Tensor& tiles, const Block& block, bool is_transposed,
                    const at::Tensor& x, const at::Tensor& y) const;

  void begin_together();
  void begin_experts();
  int64_t num_slots() const { return runs_.back().slot - runs_.front().slot + 1; }
  /// [experts, slots of the pass, rows, width], a view.
  at::Tensor of_experts(const at::Tensor& flat, const Matrix& matrix, const Block& block) const;
  /// Calls body(first, count, expert, slot of the pass) for each group with rows; only in fp32.
  template <class Body>
  void for_each_run(const Matrix& matrix, const ExpertRows& expert_rows, Body&& body) const;
  /// x times the weights of each row's expert and slot, likewise transposed or not.
  at::Tensor grouped(const Matrix& matrix, const Block& block, bool is_transposed,
                     const ExpertRows& expert_rows, const at::Tensor& x) const;
  /// y += that.
  void add_grouped(const Matrix& matrix, const Block& block, bool is_transposed,
                   const ExpertRows& expert_rows, const at::Tensor& x, const at::Tensor& y) const;
  /// Their gradients += dy' x.
  void add_grouped_gradients(const Matrix& matrix, const Block& block,
                             const ExpertRows& expert_rows, const at::Tensor& dy,
                             const at::Tensor& x) const;
  /// x after dropout for the only part of `matrix`, or x.
  at::Tensor left_of(const Matrix& matrix, const ExpertRows& expert_rows, const at::Tensor& x);
  void drop_rows(const Matrix& matrix, const ExpertRows& expert_rows, const at::Tensor& x,
                 const at::Tensor& y, bool adds);
  /// With dropout each linear reads its own x after dropout: the parts are computed one by one.
  std::vector<Matrix> apart(const Matrix& matrix) const;
  void name_rows(const RowBatch& batch);
  /// x [rows, width] after dropout for the only part of `matrix`, or x; rows from `first` on.
  at::Tensor left_of(const Matrix& matrix, const at::Tensor& dropped, int64_t first,
                     const at::Tensor& x) const;
  /// y = x after dropout, or y += that.
  void drop_rows(const Matrix& matrix, const at::Tensor& dropped, int64_t first,
                 const at::Tensor& x, const at::Tensor& y, bool adds) const;
  std::span<const Run> one_by_one() const;
  /// gradient += scaling * a b, in fp32.
  void add_gemm(const at::Tensor& gradient, const at::Tensor& a, const at::Tensor& b,
                double scaling) const;
  /// Adds `made` [runs, rows, width] to the gradients at `offset`.
  void add_gradients(int64_t offset, int64_t rows, int64_t width, const at::Tensor& made) const;

  // Constant after construction.
  const at::ScalarType type_;
  const CudaStream& stream_;
  const PaddedAdapters padded_;
  const int64_t rank_;
  const bool has_experts_;  // whether experts are targeted
  // [slots, padded_.tensors().count()]
  at::Tensor weights_;                              // weights that GEMMs read
  at::Tensor gradients_;                            // fp32
  std::vector<std::unique_ptr<Adapter>> adapters_;  // by slot; null: it is free
  // For the current pass.
  std::vector<Run> runs_;
  std::vector<SlotRange> slot_ranges_;
  bool is_together_ = false;
  at::Tensor ends_;      // [slots of the pass] the end of the rows of each slot
  at::Tensor run_ends_;  // [runs]
  at::Tensor scalings_;  // [rows, 1] fp32
  at::Tensor tiles_;     // AdapterTile, as bytes
  /// scaling * x A' of a forward pass, [rows, parts * rank], by the offset of A.
  std::map<int64_t, at::Tensor> between_;
  at::Tensor dropped_;       // DropRow, as bytes; undefined: no adapter has dropout
  at::Tensor slot_runs_;     // of each slot of the pass: AdapterTile, as bytes
  at::Tensor row_scalings_;  // [rows] fp32
  /// [experts] ids of an expert's linear for dropout, as int64, by the offset of B.
  std::map<int64_t, at::Tensor> modules_;
};

}  // namespace primerl
