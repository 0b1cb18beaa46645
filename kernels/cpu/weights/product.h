/// The GEMMs of a decoder, forward and backward, dense and grouped by expert: engine and learner
/// compute every GEMM here.
///
/// With FP8 numbers the GEMMs of FP8 matrices (fp8_matrices.h) read rounded rows: the numbers that
/// e4m3 codes with a scale for each 128 stand for. The matrices are rounded too (weights.h).
/// Backward takes rounding as the identity: gradients are those of the GEMM of the rounded numbers.
///
/// With bf16 numbers the GEMMs of bf16 matrices (bf16_matrices.h) are linear_bf16 (ops.h), forward
/// and backward, with either numerics: each reads its operands rounded to bf16, and sums in fp32.
///
/// Other invariant GEMMs are linear_rows (ops.h), also backward: a gradient does not depend on the
/// number of threads. Fast ones are libtorch's, or linear_rows if that is faster (weights.h). Work
/// is divided over the compute threads of the calling thread. Pointers are to row-major fp32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/weights/weights.h"

namespace primerl {

/// Rows of x by group: group g has rows [ends[g - 1], ends[g]). One group: a dense GEMM.
using GroupEnds = std::span<const int64_t>;

/// The arguments of linear_rows for all panels of y = x * weight' of group `group`.
LinearRowsArgs forward_args(int64_t rows, const float* x, const Matrix& weight, int64_t group,
                            float* y);
/// dx = dy * weight of group `group`: the GEMM's columns are the weight's terms.
LinearRowsArgs input_args(int64_t rows, const float* dy, const Matrix& weight, int64_t group,
                          float* dx);
/// dweight += dy' * x: the GEMM's rows are the weight's columns, its terms the rows of the batch.
LinearRowsArgs weight_args(int64_t rows, const float* dy, const float* x, const Matrix& weight,
                           float* dweight);

class Gemms {
 public:
  explicit Gemms(Numerics numerics) : ops_(cpu_ops()), numerics_(numerics) {}

  Numerics numerics() const { return numerics_; }

  /// Computes all of `tasks`, which must write to separate memory.
  void run(const std::vector<LinearRowsArgs>& tasks);

  /// y = residual + bias + x * weight'; `bias` and `residual` may be null, `y` may be `residual`.
  void linear(int64_t rows, const float* x, const Matrix& weight, const float* bias,
              const float* residual, float* y);
  /// The same for each group, without bias and residual.
  void grouped(GroupEnds ends, const float* x, const Matrix& weight, float* y);

  /// Backward of y = x * weight': dx = dy * weight, or added to dx if `adds`.
  void input_gradient(int64_t rows, const float* dy, const Matrix& weight, float* dx, bool adds);
  void grouped_input_gradient(GroupEnds ends, const float* dy, const Matrix& weight, float* dx);
  /// dweight += dy' * x, of the weight's shape.
  void weight_gradient(int64_t rows, const float* dy, const float* x, const Matrix& weight,
                       float* dweight);
  void grouped_weight_gradient(GroupEnds ends, const float* dy, const float* x,
                               const Matrix& weight, float* dweight);
  /// dbias += the sum of each column of dy.
  void bias_gradient(int64_t rows, int64_t columns, const float* dy, float* dbias);

 private:
  /// Weights that an engine packed use linear_rows with either numerics.
  bool uses_vendor_gemm(const Matrix& weight) const {
    return numerics_ == Numerics::kFast && !weight.is_packed() && !weight.is_bf16;
  }
  void compute(const LinearRowsArgs& task) const {
    if (task.is_bf16) return ops_.linear_bf16(task);
    ops_.linear_rows(task);
  }
  /// The rows that a GEMM with `weight` reads: x, or x rounded.
  const float* read(int64_t rows, const float* x, const Matrix& weight);

  const CpuOps& ops_;
  const Numerics numerics_;
  // Scratch.
  std::vector<float> rounded_;  // [rows, terms]
  std::vector<LinearRowsArgs> tasks_;
  std::vector<LinearRowsArgs> parts_;
  std::vector<float> sums_;
};

}  // namespace primerl
