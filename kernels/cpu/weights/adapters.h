/// Adapters at work: what they add to the products of a decoder, forward and backward.
///
/// AdapterWeights is one adapter as products read it; AdapterProducts adds those of a step's rows.
/// Each row has the adapter of its span's slot, or none, and its result depends on that adapter and
/// that row alone: each adapter's products are linear_rows (ops.h) of its own rank, in fast
/// numerics as well. What a base product gave comes first, then the adapter's part is added to it:
/// y = (residual + bias + x W') + (scaling * x A') B'; in a training step with dropout A reads what
/// is left of x (adapter_dropout.h). One thread, which shares work out over its compute threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/common/adapter_dropout.h"
#include "kernels/cpu/weights/product.h"
#include "kernels/cpu/weights/weights.h"
#include "kernels/engine/row_batch.h"
#include "kernels/models/adapter.h"

namespace primerl {

class AdapterWeights {
 public:
  /// One targeted linear: columns [column, column + b.columns) of a matrix of the model.
  struct Part {
    int64_t column = 0;
    Matrix a;             // [rank, inputs]
    Matrix b;             // [outputs, rank]
    float* da = nullptr;  // their gradients, of a learner
    float* db = nullptr;
    uint64_t module = 0;  // names the linear to dropout
  };

  /// All numbers are 0: it adds nothing.
  AdapterWeights(AdapterTable table, DecoderWeights::Use use);
  AdapterWeights(const AdapterWeights&) = delete;
  AdapterWeights& operator=(const AdapterWeights&) = delete;

  const AdapterTable& table() const { return table_; }
  float scaling() const {
    return *weights_.vector(table_.tensors().parameters().size() - 1);  // the last
  }
  /// Of group `group` of the model's parameter of index `parameter`; none where it has no target.
  std::span<const Part> parts(size_t parameter, int64_t group) const;

  /// Takes what a folder or a snapshot has; all or nothing.
  Status load(const std::vector<WeightTensor>& tensors) { return weights_.load(tensors); }
  /// The same in parts (DecoderWeights::begin_load): `tensors` live until load_more() is true.
  Status begin_load(const std::vector<WeightTensor>& tensors) {
    return weights_.begin_load(tensors);
  }
  bool load_more(int64_t count) { return weights_.load_more(count); }
  /// The flat buffer that gradients are added to, in the layout of table().tensors().
  void bind_gradients(float* flat);
  /// [table().tensors().count()]: of a learner.
  at::Tensor& flat() { return weights_.flat(); }

 private:
  struct Range {
    size_t first = 0, per_group = 0;
  };

  const AdapterTable table_;
  DecoderWeights weights_;
  std::vector<Part> parts_;    // as table_.linears()
  std::vector<Range> ranges_;  // by parameter of the model
};

/// Rows [first, first + rows) of one group of a product, with one adapter.
struct AdapterRun {
  int32_t slot = 0;
  int64_t group = 0;
  int64_t first = 0;
  int64_t rows = 0;
};

class AdapterProducts {
 public:
  explicit AdapterProducts(Products& products) : products_(products) {}

  /// The adapter of a slot from the next begin() on, which outlives its use; null: none. With
  /// `dropout` the batches of begin() name their rows (RowBatch::draws).
  void set(int32_t slot, const AdapterWeights* adapter, AdapterDropout dropout = {});
  /// Which rows of the step have which adapter; the fewer runs, the faster.
  void begin(const RowBatch& batch);
  std::span<const AdapterRun> runs() const { return runs_; }

  /// A row's kind is 0 without an adapter, else 1 + its slot: for who sorts rows.
  int64_t num_kinds() const { return runs_.empty() ? 1 : 1 + std::ssize(slots_); }
  int64_t kind_of(int64_t row) const {
    return runs_.empty() ? 0 : kinds_[static_cast<size_t>(row)];
  }

  /// y += what the adapters of `runs` add to x * weight'. `sources`: the row of the step that each
  /// row of x is of; null: they are the same.
  void forward(const Matrix& weight, std::span<const AdapterRun> runs, const float* x, float* y,
               const int32_t* sources = nullptr);
  /// Adds the gradients of A and B, and that of x to `dx`. The rows of one adapter and group are
  /// one run.
  void backward(const Matrix& weight, std::span<const AdapterRun> runs, const float* x,
                const float* dy, float* dx, const int32_t* sources = nullptr);

 private:
  using Part = AdapterWeights::Part;
  /// One part of one run.
  struct Job {
    AdapterRun run;
    const Part* part = nullptr;
    float scaling = 0;
    size_t index = 0;  // of the part in its run
    AdapterDropout dropout;
    const float* x = nullptr;  // [rows, terms], what A reads
    // With dropout:
    float* left = nullptr;      // where that lies: scratch from then on
    uint64_t* keys = nullptr;   // [rows]
    uint16_t* draws = nullptr;  // [rows, drawn_columns(terms)]
    float* u = nullptr;         // [rows, rank]
    float* du = nullptr;
  };
  struct Slot {
    const AdapterWeights* adapter = nullptr;
    AdapterDropout dropout;
  };

  /// Fills keys_.
  void make_keys(const RowBatch& batch);
  /// Fills jobs_; those of a run follow each other.
  void list_jobs(const Matrix& weight, std::span<const AdapterRun> runs, const float* x,
                 const int32_t* sources, bool is_backward);
  /// What is left of x for those with dropout.
  void list_dropped(int64_t terms, const int32_t* sources);
  /// dx += what is left of a job's gradient.
  static void add_left(const Job& job, int64_t terms, float* dx);
  void scale(bool is_backward);

  Products& products_;
  std::vector<Slot> slots_;
  // Of the step.
  std::vector<AdapterRun> runs_;
  std::vector<int32_t> kinds_;  // by row, where there is a run
  std::vector<uint64_t> keys_;  // by row, of those with dropout
  // Scratch.
  std::vector<Job> jobs_;
  std::vector<LinearRowsArgs> tasks_;
  std::vector<float> room_;
  std::vector<float> left_;
  std::vector<uint64_t> keys_of_jobs_;
  std::vector<uint16_t> draws_;
};

}  // namespace primerl
