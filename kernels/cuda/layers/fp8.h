/// GEMMs of bf16 rows with a matrix in FP8 on a CUDA device, by libtorch's scaled GEMMs: a scale
/// for each 128 numbers of a row, and for each 128 x 128 of the matrix; sums are fp32.
///
/// For `products = "fp8"`: the matrices of attention and of a dense MLP, forward, and backward for
/// the gradients of rows. Terms are padded with zeros to a multiple of 512, where libtorch's two
/// layouts of a matrix's scales are equal. The matrices of experts have a GEMM of our own
/// (grouped_fp8_gemm) in builds with nvcc. Otherwise, and for shared experts, GEMMs read the bf16
/// numbers nearest to those that the codes stand for. One thread, under a CudaStream::Use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/cuda/device/stream.h"
#include "kernels/models/config.h"
#include "kernels/models/tensors.h"

namespace primerl {

/// A matrix [columns, terms] as such a GEMM reads it.
struct Fp8Matrix {
  at::Tensor codes;   // [columns, padded terms] e4m3
  at::Tensor scales;  // [columns / 128, padded terms / 128]
};

struct Fp8Weight {
  Fp8Matrix forward;
  Fp8Matrix backward;  // transposed, for backward; undefined if it is not trained
};

/// Zeroed memory for `weight` [columns, terms], both multiples of 128. Terms are padded to a
/// multiple of `multiple`.
Fp8Weight make_fp8(const at::Tensor& weight, bool is_trained, int64_t multiple = 512);
/// Computes the codes of `weight`.
Status quantise(const at::Tensor& weight, const Fp8Weight& to, const CudaStream& stream);

/// Rows that a GEMM of `rows` rows writes; those after `rows` are padding.
constexpr int64_t fp8_rows(int64_t rows) { return (rows + 15) / 16 * 16; }
/// y = x * matrix' of the first `rows` rows; y, of bf16, has fp8_rows(rows) rows or more. Throws as
/// libtorch's GEMMs do.
void fp8_gemm(int64_t rows, const at::Tensor& x, const Fp8Matrix& matrix, const at::Tensor& y,
              const CudaStream& stream);

/// The matrices of a mixture's experts: the codes of one matrix [experts * columns, terms], and of
/// its transpose.
struct Fp8Experts {
  Fp8Weight codes;
  int64_t columns = 0, terms = 0;  // of an expert
};
/// Rows as codes.
struct Fp8Rows {
  at::Tensor codes;   // [rows, terms] e4m3
  at::Tensor scales;  // [terms / 128, rows]
};
/// Row i is x[sources[i]], or x[i] without `sources`; `rows` rows. Throws as libtorch does.
Fp8Rows quantised_rows(int64_t rows, const at::Tensor& x, const CudaStream& stream,
                       const int32_t* sources = nullptr);
/// [rows, columns]: the rows of each expert, which end at `ends`, times its matrix'. Or, for
/// `is_backward`, [rows, terms]: rows of `columns` numbers times its matrix. Throws likewise.
at::Tensor grouped_fp8(const Fp8Rows& rows, const Fp8Experts& experts, const at::Tensor& ends,
                       bool is_backward, const CudaStream& stream);

/// The codes of matrices at fixed addresses.
class Fp8Weights {
 public:
  /// Adds `weight` [columns, terms]; the next quantise_all() computes its codes.
  std::shared_ptr<const Fp8Weight> add(const at::Tensor& weight, bool is_trained);
  /// Adds `weight` [experts, columns, terms].
  std::shared_ptr<const Fp8Experts> add_experts(const at::Tensor& weight, bool is_trained);
  /// Adds `weight` [columns, terms] or [experts, columns, terms]. Returns a tensor of its shape and
  /// type, which the next quantise_all() fills with the rounded numbers.
  at::Tensor add_rounded(const at::Tensor& weight);
  /// Recomputes all codes; must be called after every change of the matrices.
  Status quantise_all(const CudaStream& stream) const;

 private:
  struct Coded {
    at::Tensor weight;
    std::shared_ptr<const Fp8Weight> codes;
  };
  struct Rounded {
    at::Tensor weight, to;
  };
  std::vector<Coded> all_;
  std::vector<Rounded> rounded_;
};

/// The first `rows` rows of x [.., width], rounded: a scale for each 128 numbers of a row.
at::Tensor rounded_rows(int64_t rows, const at::Tensor& x, const CudaStream& stream);

/// How GEMMs with a parameter of a model read FP8 numbers.
enum class Fp8Use : uint8_t { kNone, kCodes, kExperts, kRounded };
Fp8Use fp8_use(const Parameter& parameter);
/// Bytes of all FP8 matrices of a model, and of what rounding them and `rows` rows of a mixture
/// allocates for a time.
double fp8_bytes(const ModelConfig& config, bool is_trained, int64_t rows);
/// Why FP8 GEMMs, requested by `products`, are not available for a model on a CUDA device; ok if
/// `products` requests none.
Status check_products(std::string_view products, std::string_view dtype, const ModelConfig& config,
                      std::string_view device);

}  // namespace primerl
