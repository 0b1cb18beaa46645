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

/// y = x * weight' in FP8, where each row is multiplied by the matrix of its group: e4m3 codes with
/// a scale for each 128 numbers of a row and for each 128 x 128 of a matrix. 128 terms are added by
/// the tensor cores, with about 14 bits; their sums in fp32. The rows of a group are adjacent, and
/// their ends are on the device, so nothing waits. The matrices of all groups are parts of one
/// matrix of codes, `group_rows` rows or `group_terms` terms apart; the other one is 0. A row's
/// result depends only on that row. Compute capability 9.0 only.
struct GroupedFp8Args {
  int64_t rows = 0;
  int64_t terms = 0;             // a multiple of 128
  int64_t columns = 0;           // a multiple of 128
  int32_t num_groups = 0;        // up to kGroupedFp8GroupsMax
  const int32_t* ends = nullptr;  // [num_groups] the end of each group's rows
  int64_t x_code_stride = 0;      // as QuantiseRowsArgs writes them
  const void* x_codes = nullptr;  // [rows, x_code_stride]
  int64_t x_scale_stride = 0;
  const float* x_scales = nullptr;  // [terms / 128, x_scale_stride]
  int64_t group_rows = 0;           // multiples of 128
  int64_t group_terms = 0;
  int64_t code_stride = 0;  // as QuantiseBlocksArgs writes them, transposed or not
  const void* codes = nullptr;
  int64_t scale_stride = 0;
  const float* scales = nullptr;
  void* y = nullptr;  // [rows, columns] bf16
};
inline constexpr int32_t kGroupedFp8GroupsMax = 1024;
Outcome grouped_fp8_gemm(const GroupedFp8Args& args, Stream stream);

}  // namespace primerl::cuda
