/// Products of a few rows with a matrix of the weights, which libraries, made for many rows, leave
/// time over in. All promises of cuda_ops.h hold.
#pragma once

#include "kernels/ops/cuda_ops.h"

namespace primerl::cuda {

/// y = x * weight' + bias of a few rows: what a vendor's library, made for many, leaves bandwidth
/// over. A row's result depends on that row alone.
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
Outcome few_rows_product(const FewRowsArgs& args, Stream stream);

/// Parts of x * weight' of up to 64 rows, bf16: each of some of the terms, all sums fp32, which
/// rms_norm() adds up in order. So a matrix of few columns has blocks enough for a device. A row's
/// result depends on that row alone. It starts while the operation before it ends, and reads the
/// weight then: what writes the weight must be further back, or a copy.
struct SkinnyArgs {
  int64_t rows = 0;     // up to kSkinnyRowsMax
  int64_t terms = 0;    // a multiple of kSkinnyTerms, in each part
  int64_t columns = 0;  // a multiple of kSkinnyColumns
  const void* x = nullptr;       // [rows, terms]; at addresses of 16 bytes, as all here
  const void* weight = nullptr;  // [columns, terms]
  int32_t num_parts = 1;         // up to kSkinnyPartsMax
  float* parts = nullptr;        // [num_parts, rows, columns]
};
inline constexpr int64_t kSkinnyRowsMax = 64;
inline constexpr int64_t kSkinnyTerms = 128;
inline constexpr int64_t kSkinnyColumns = 32;
inline constexpr int32_t kSkinnyPartsMax = 8;
Outcome skinny_product(const SkinnyArgs& args, Stream stream);
/// The parts of a matrix that fill a device best, where all blocks are on it at once and each asks
/// for all that it reads at once: then it is faster than a library's product. 0: the matrix is none
/// of these.
inline int32_t skinny_parts(int64_t terms, int64_t columns) {
  constexpr int64_t kBlocksMax = 132, kTermsOfPartMax = 768;
  if (terms < 1 || columns % kSkinnyColumns != 0) return 0;
  for (int32_t parts = kSkinnyPartsMax; parts > 0; --parts)
    if (columns / kSkinnyColumns * parts <= kBlocksMax && terms % (kSkinnyTerms * parts) == 0 &&
        terms / parts <= kTermsOfPartMax)
      return parts;
  return 0;
}

}  // namespace primerl::cuda
