/// GEMMs of a few rows with a weight matrix. Libraries are tuned for many rows and are slower here.
/// All promises of cuda_ops.h hold.
#pragma once

#include "kernels/cuda/ops/cuda_ops.h"

namespace primerl::cuda {

/// y = x * weight' + bias of a few rows. The vendor's library is tuned for many rows and does not
/// use the full bandwidth here. A row's result depends only on that row.
struct FewRowsArgs {
  int64_t rows = 0;   // up to kFewRowsMax
  int64_t terms = 0;  // a multiple of 8; x and weight at addresses of 16 bytes
  int64_t columns = 0;
  const void* x = nullptr;       // [rows, terms] bf16
  const void* weight = nullptr;  // [columns, terms] bf16
  const void* bias = nullptr;    // [columns] bf16, or null
  void* y = nullptr;             // [rows, columns] of `type`
  Type type = Type::kBfloat16;   // of y
};
inline constexpr int64_t kFewRowsMax = 4;
Outcome few_rows_gemm(const FewRowsArgs& args, Stream stream);

/// Split-K parts of x * weight' of up to 64 rows in bf16. Each part covers some of the terms; sums
/// are fp32, and rms_norm() adds the parts in order. With parts a matrix of few columns has enough
/// blocks for a device. A row's result depends only on that row. The operation starts while the one
/// before it ends, and reads the weight then. The writer of the weight must be an earlier
/// operation, or a copy.
struct SmallMGemmArgs {
  int64_t rows = 0;              // up to kSmallMRowsMax
  int64_t terms = 0;             // a multiple of kSmallMTerms, in each part
  int64_t columns = 0;           // a multiple of kSmallMColumns
  const void* x = nullptr;       // [rows, terms]; at addresses of 16 bytes, as all here
  const void* weight = nullptr;  // [columns, terms]
  int32_t num_parts = 1;         // up to kSmallMPartsMax
  float* parts = nullptr;        // [num_parts, rows, columns]
};
inline constexpr int64_t kSmallMRowsMax = 64;
inline constexpr int64_t kSmallMTerms = 128;
inline constexpr int64_t kSmallMColumns = 32;
inline constexpr int32_t kSmallMPartsMax = 8;
Outcome small_m_gemm(const SmallMGemmArgs& args, Stream stream);

}  // namespace primerl::cuda
