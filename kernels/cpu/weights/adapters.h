/// The LoRA deltas of a decoder's linear layers, forward and backward.
///
/// AdapterWeights is one adapter in the layout of the GEMMs; AdapterGemms adds the deltas of a
/// step's rows. Each row has the adapter of its span's slot, or none; its result depends only on
/// that adapter and that row. Each adapter's GEMMs are linear_rows (ops.h) of its own rank, also
/// with fast numerics. The delta is added to the result of the base GEMM: y = (residual + bias + x
/// W') + (scaling * x A') B'. In a training step with dropout, A reads x after dropout
/// (adapter_dropout.h). One thread calls; work is shared over its compute threads.
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
    float* da = nullptr;  // their gradients, in a learner
    float* db = nullptr;
    uint64_t module = 0;  // identifies the linear for dropout
  };

  /// All weights are 0: it adds nothing.
  AdapterWeights(AdapterTable table, DecoderWeights::Use use);
  AdapterWeights(const AdapterWeights&) = delete;
  AdapterWeights& operator=(const AdapterWeights&) = delete;

  const AdapterTable& table() const { return table_; }
  float scaling() const {
    return *weights_.vector(table_.tensors().parameters().size() - 1);  // the last parameter
  }
  /// The parts of group `group` of the model parameter with index `parameter`; empty if it is not
  /// targeted.
  std::span<const Part> parts(size_t parameter, int64_t group) const;

  /// Loads the tensors of a folder or a snapshot; all or nothing.
  Status load(const std::vector<WeightTensor>& tensors) { return weights_.load(tensors); }
  /// The same in parts (DecoderWeights::begin_load): `tensors` must stay valid until load_more() is
  /// true.
  Status begin_load(const std::vector<WeightTensor>& tensors) {
    return weights_.begin_load(tensors);
  }
  bool load_more(int64_t count) { return weights_.load_more(count); }
  /// The flat buffer that gradients are added to, in the layout of table().tensors().
  void bind_gradients(float* flat);
  /// [table().tensors().count()]: only in a learner.
  at::Tensor& flat() { return weights_.flat(); }

 private:
  struct Range {
    size_t first = 0, per_group = 0;
  };

  const AdapterTable table_;
  DecoderWeights weights_;
  std::vector<Part> parts_;    // in the order of table_.linears()
  std::vector<Range> ranges_;  // by model parameter
};

/// Rows [first, first + rows) of one group of a GEMM, with one adapter.
struct AdapterRun {
  int32_t slot = 0;
  int64_t group = 0;
  int64_t first = 0;
  int64_t rows = 0;
};

class AdapterGemms {
 public:
  explicit AdapterGemms(Gemms& products) : products_(products) {}

  /// Sets the adapter of a slot from the next begin() on; it must stay valid while it is used.
  /// Null: none. With `dropout`, the batches of begin() must have random keys (RowBatch::draws).
  void set(int32_t slot, const AdapterWeights* adapter, AdapterDropout dropout = {});
  /// Sets the adapter of each row of the step; fewer runs are faster.
  void begin(const RowBatch& batch);
  std::span<const AdapterRun> runs() const { return runs_; }
  /// The runs of rows that are gathered from the step, as those of the head: the i-th is row
  /// `rows[i]` of the step. Valid until the next call.
  std::span<const AdapterRun> gathered(std::span<const int32_t> rows);

  /// The kind of a row, for sorting rows: 0 without an adapter, else 1 + its slot.
  int64_t num_kinds() const { return runs_.empty() ? 1 : 1 + std::ssize(slots_); }
  int64_t kind_of(int64_t row) const {
    return runs_.empty() ? 0 : kinds_[static_cast<size_t>(row)];
  }

  /// y += the LoRA deltas of x * weight' for `runs`. `sources`: the step's row of each row of x;
  /// null: the same row.
  void forward(const Matrix& weight, std::span<const AdapterRun> runs, const float* x, float* y,
               const int32_t* sources = nullptr);
  /// Adds the gradients of A and B, and that of x to `dx`. Rows of one adapter and group must form
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
    size_t index = 0;  // index of the part in its run
    AdapterDropout dropout;
    const float* x = nullptr;  // [rows, terms], the input of A
    // Only with dropout:
    float* left = nullptr;      // x after dropout; scratch after its use
    uint64_t* keys = nullptr;   // [rows]
    uint16_t* draws = nullptr;  // [rows, drawn_columns(terms)]
    float* u = nullptr;         // [rows, rank]
    float* du = nullptr;
  };
  struct Slot {
    const AdapterWeights* adapter = nullptr;
    AdapterDropout dropout;
  };

  /// Fills keys_ with the random keys of rows with dropout.
  void make_keys(const RowBatch& batch);
  /// Fills jobs_; the jobs of a run are adjacent.
  void list_jobs(const Matrix& weight, std::span<const AdapterRun> runs, const float* x,
                 const int32_t* sources, bool is_backward);
  /// Computes x after dropout for the jobs with dropout.
  void list_dropped(int64_t terms, const int32_t* sources);
  /// dx += the gradient of a job's x after dropout.
  static void add_left(const Job& job, int64_t terms, float* dx);
  void scale(bool is_backward);

  Gemms& products_;
  std::vector<Slot> slots_;
  // For the current step.
  std::vector<AdapterRun> runs_;
  std::vector<AdapterRun> gathered_;
  std::vector<int32_t> kinds_;  // by row, if there are runs
  std::vector<uint64_t> keys_;  // by row, of rows with dropout
  // Scratch.
  std::vector<Job> jobs_;
  std::vector<LinearRowsArgs> tasks_;
  std::vector<float> room_;
  std::vector<float> left_;
  std::vector<uint64_t> keys_of_jobs_;
  std::vector<uint16_t> draws_;
};

}  // namespace primerl
