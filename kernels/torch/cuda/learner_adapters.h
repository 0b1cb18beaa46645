/// Adapters of a learner on a CUDA device: what each tenant trains, and what all of them add to the
/// products of a pass, forward and backward.
///
/// y += scaling * (x A') B', where each row has the A and B of its tenant. The numbers of all
/// adapters lie in one layout (padded_adapters.h), slot after slot: a pass of many tenants takes
/// one product over all of its rows (_grouped_mm; add_narrow_products() where it is added to what
/// is there), a pass of few, and fp32, one product a tenant.
/// Either way a gradient is a sum over the rows of its tenant alone. Dropout is the CPU's, drawn
/// anew wherever it is needed. One thread, under a CardStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/engine/row_batch.h"
#include "kernels/models/padded_adapters.h"
#include "kernels/torch/adapter_dropout.h"
#include "kernels/torch/cuda/learner_weights.h"
#include "kernels/train/adapter_training.h"

namespace primerl {

class LearnerAdapters {
 public:
  using Matrix = PaddedAdapters::Matrix;

  /// `adapters` are valid and can_train() them; slot i is that of adapters[i]. They begin as
  /// initialize_adapter() has it.
  LearnerAdapters(const TensorTable& model, std::span<const AdapterTraining> adapters,
               at::ScalarType type, const CardStream& stream);

  /// Why adapters of this model cannot be trained on a device; ok where they can.
  static Status can_train(const ModelConfig& config);
  /// Bytes of weights, gradients and moments; and of `rows` rows of a pass.
  static double bytes_needed(const TensorTable& model, std::span<const AdapterTraining> adapters,
                             at::ScalarType type);
  static double bytes_of_rows(const TensorTable& model, std::span<const AdapterTraining> adapters,
                              at::ScalarType type, int64_t rows);

  const AdapterTable& table(size_t slot) const { return adapters_[slot]->table; }
  CardTrained& trained(size_t slot) { return *adapters_[slot]->trained; }
  /// Null: no adapter has a linear of that parameter of the model.
  const Matrix* matrix(size_t parameter) const { return padded_.matrix(parameter); }

  /// Of the adapter in the passes from now on, whose rows are named then (RowBatch::draws).
  /// Returns what it was before.
  AdapterDropout drop(size_t slot, const AdapterDropout& dropout) {
    return std::exchange(adapters_[slot]->dropout, dropout);
  }
  /// Takes the rows of the next pass: each is of an adapter (RowSpan::adapter), and the rows of an
  /// adapter follow each other, in the order of the slots.
  Status begin(const RowBatch& batch);
  /// y [rows, columns] += what the adapters add to the product of x [rows, inputs].
  void forward(const Matrix& matrix, const at::Tensor& x, const at::Tensor& y);
  /// Adds the gradients of A and B, and that of x to `dx`. Once after each forward pass.
  void backward(const Matrix& matrix, const at::Tensor& x, const at::Tensor& dy,
                const at::Tensor& dx);
  /// Gives back what a pass has left.
  void release() { between_.clear(); }

 private:
  struct Adapter {
    AdapterTable table;
    std::unique_ptr<CardTrained> trained;
    float scaling = 0;
    AdapterDropout dropout;
  };
  using Part = PaddedAdapters::Part;
  /// The rows of one adapter.
  struct Run {
    int64_t slot = 0, first = 0, rows = 0;
  };
  /// Runs whose slots follow each other.
  struct Neighbours {
    int64_t first_run = 0, first_slot = 0, count = 0;
  };

  /// [slots, rows, width] of the numbers at `offset`, a view.
  at::Tensor of_slots(const at::Tensor& flat, int64_t offset, int64_t rows, int64_t width) const;
  /// The same of the slots of this pass, from its first to its last.
  at::Tensor of_pass(int64_t offset, int64_t rows, int64_t width) const;
  int64_t width_of(const Matrix& matrix) const { return std::ssize(matrix.parts) * rank_; }

  void forward_one(const Run& run, const Matrix& matrix, const at::Tensor& x,
                   const at::Tensor& y) const;
  void backward_one(const Run& run, const Matrix& matrix, const at::Tensor& x, const at::Tensor& dy,
                    const at::Tensor& dx) const;
  void forward_together(const Matrix& matrix, const at::Tensor& x, const at::Tensor& y);
  void backward_together(const Matrix& matrix, const at::Tensor& x, const at::Tensor& dy,
                         const at::Tensor& dx);
  /// y [rows, columns] += x [rows, terms] times the weights at `offset`, [columns, terms] of a slot
  /// or, transposed, [terms, columns].
  void add_narrow(const at::Tensor& x, int64_t offset, bool is_transposed,
                  const at::Tensor& y) const;
  /// Where one has dropout each linear reads what is left of x for it: the parts are taken apart.
  std::vector<Matrix> apart(const Matrix& matrix) const;
  void name_rows(const RowBatch& batch);
  /// What is left of x [rows, width] for the only part of `matrix`, or x; rows from `first` on.
  at::Tensor left_of(const Matrix& matrix, int64_t first, const at::Tensor& x) const;
  /// y = what is left of x, or y += that.
  void drop_rows(const Matrix& matrix, int64_t first, const at::Tensor& x, const at::Tensor& y,
                 bool adds) const;
  std::span<const Run> one_by_one() const;
  /// gradient += scaling * a b, in fp32.
  void add_product(const at::Tensor& gradient, const at::Tensor& a, const at::Tensor& b,
                   double scaling) const;
  /// `made` [runs, rows, width] reaches the gradients at `offset`.
  void add_gradients(int64_t offset, int64_t rows, int64_t width, const at::Tensor& made) const;

  // Constant after construction.
  const at::ScalarType type_;
  const CardStream& stream_;
  const PaddedAdapters padded_;
  const int64_t rank_;
  // [slots, padded_.tensors().count()]
  at::Tensor weights_;    // those that products read
  at::Tensor gradients_;  // fp32
  std::vector<std::unique_ptr<Adapter>> adapters_;
  // Of the pass.
  std::vector<Run> runs_;
  std::vector<Neighbours> neighbours_;
  bool is_together_ = false;
  at::Tensor ends_;      // [slots of the pass] where the rows of each end
  at::Tensor run_ends_;  // [runs]
  at::Tensor scalings_;  // [rows, 1] fp32
  at::Tensor tiles_;     // NarrowTile, as int32
  /// scaling * x A' of a forward pass, [rows, parts * rank], by the offset of A.
  std::map<int64_t, at::Tensor> between_;
  at::Tensor dropped_;   // DropRow, as int32; undefined: no adapter has dropout
};

}  // namespace primerl
