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

/// y = x * weight' of a step's rows, bf16 with sums in fp32; gated, y = silu(gate) * up of the two
/// halves of the columns, as swiglu() has it; or in parts of the terms, which rms_norm() adds up in
/// order. A row's result depends on that row alone. It starts while the operation before it ends,
/// and reads the weight then: what writes the weight must be further back, or a copy.
struct SkinnyArgs {
  int64_t rows = 0;     // up to kSkinnyRowsMax
  int64_t terms = 0;    // a multiple of kSkinnyTerms, in each part
  int64_t columns = 0;  // a multiple of kSkinnyColumns, gated of kSkinnyGatedColumns
  const void* x = nullptr;       // [rows, terms]; at addresses of 16 bytes, as all here
  const void* weight = nullptr;  // [columns, terms]; gated: gates first
  bool is_gated = false;
  void* y = nullptr;       // [rows, columns], gated [rows, columns / 2]; or null: parts
  float* parts = nullptr;  // [num_parts, rows, columns], or null
  int32_t num_parts = 1;
};
inline constexpr int64_t kSkinnyRowsMax = 64;
inline constexpr int64_t kSkinnyTerms = 128;
inline constexpr int64_t kSkinnyColumns = 32;
inline constexpr int64_t kSkinnyGatedColumns = 48;
inline constexpr int32_t kSkinnyPartsMax = 8;
Outcome skinny_product(const SkinnyArgs& args, Stream stream);
/// Whether a matrix, in so many parts, is one that it is made for: all blocks are on the device at
/// once, each asks for all that it reads at once, and reading the rows again and again costs less
/// than reading the matrix.
inline bool is_skinny(int64_t terms, int64_t columns, int64_t num_parts, bool is_gated) {
  constexpr int64_t kBlocksMax = 132, kTermsMax = 1024, kTermsOfPartMax = 768;
  const int64_t tile = is_gated ? kSkinnyGatedColumns : kSkinnyColumns;
  return terms > 0 && columns % tile == 0 && columns / tile * num_parts <= kBlocksMax &&
         terms % (kSkinnyTerms * num_parts) == 0 &&
         terms / num_parts <= (num_parts == 1 ? kTermsMax : kTermsOfPartMax);
}
/// Of an answer in parts, how many fill the device best; 0: the matrix is none of these.
inline int32_t skinny_parts(int64_t terms, int64_t columns) {
  int32_t parts = kSkinnyPartsMax;
  while (parts > 0 && !is_skinny(terms, columns, parts, false)) --parts;
  return parts;
}

}  // namespace primerl::cuda
