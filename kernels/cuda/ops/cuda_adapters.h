/// LoRA adapters: the terms that they add to the GEMMs of linear layers. All promises of cuda_ops.h
/// hold.
///
/// If many rows have an adapter, add_adapters() adds to the output of the GEMM. In a decode step
/// launches take longer than the work: shrink_adapters() computes u = A x while the GEMM runs. The
/// operation that reads the output of the GEMM computes B u: rms_norm(), swiglu(), rotary() or
/// rope_decode_attention().
#pragma once

#include "kernels/cuda/ops/cuda_ops.h"

namespace primerl::cuda {

/// Rows [first, first + rows) of a step or of a pass that have one adapter; in device memory.
struct AdapterTile {
  int32_t first = 0;
  int32_t rows = 0;      // up to the limit of the operation; 0: an empty tile
  int32_t slot = 0;      // index of the adapter's weights
  int32_t rank = 0;      // up to rank_max of the operation; 0: no adapter
  uint32_t targets = 0;  // bits of the parts that it adds to
  float scaling = 0;
  int32_t group = 0;  // of the matrix: the expert of these rows
};
inline constexpr int64_t kAdapterTileRows = 64;
inline constexpr int32_t kAdapterRowsRankMax = 64;

/// Columns of a matrix that have an A [rank, terms] and a B [columns, rank] of their own. Both are
/// dense. They begin `a * rank` and `b * rank` elements after the beginning of a slot.
struct AdapterPart {
  int64_t column = 0;  // the first
  int64_t columns = 0;
  int64_t a = 0;  // a and b are multiples of 8
  int64_t b = 0;
  uint32_t target = 1;  // its bit
};
inline constexpr int32_t kAdapterPartsMax = 3;

/// y += scaling * (x A') B' of each part that a row's adapter has, beside the GEMM of a linear. A
/// row's result depends only on that row and its adapter, not on its position in a tile. Rows
/// without a tile do not change. Contents of tiles are not checked; no two tiles may share a row.
struct AddAdaptersArgs {
  int64_t terms = 0;    // a multiple of 8; x and slots at addresses of 16 bytes
  int64_t columns = 0;  // of y
  Type type = Type::kFloat32;  // of x and slots
  bool has_fp32_y = false;     // y is fp32 for any type, as the logits of a head; else of `type`
  int64_t num_tiles = 0;
  const AdapterTile* tiles = nullptr;  // [num_tiles]
  int32_t rank_max = kAdapterRowsRankMax;
  int32_t num_parts = 0;  // up to kAdapterPartsMax
  AdapterPart parts[kAdapterPartsMax] = {};
  const void* slots = nullptr;  // [any, slot_stride]
  int64_t slot_stride = 0;      // elements, a multiple of 8
  int64_t group_stride = 0;     // elements from one group to the next of A and B, per rank; a
                                // multiple of 8
  /// The elements [next * rank, (next + next_size) * rank) of the tiles' slots are read soon and
  /// are prefetched. Nothing is prefetched if next_size is 0.
  int64_t next = 0;
  int64_t next_size = 0;
  const void* x = nullptr;     // [rows, terms]
  void* y = nullptr;           // [rows, columns], added to
  float* workspace = nullptr;  // [adapters_workspace()], at an address of 16 bytes
};
Outcome add_adapters(const AddAdaptersArgs& args, Stream stream);
int64_t adapters_workspace(const AddAdaptersArgs& args);  // floats

/// The adapter of a row of a decode step; in device memory, at an address of 16 bytes.
struct alignas(16) AdapterRow {
  int32_t slot = 0;
  int32_t rank = 0;  // 0: none
  uint32_t targets = 0;
  float scaling = 0;
};

/// The LoRA delta of a decode step's GEMM: scaling * B u in fp32. The operation that reads the
/// output of the GEMM computes it from u. Tiles and rows describe the same adapters: each row is in
/// one tile, and rows without an adapter are in tiles without one. `of.group_stride` and `of.y` are
/// not read; `of.workspace` is [lora_delta_workspace()]. A row's result depends only on that row
/// and its adapter. The adding operation reads slots, tiles and rows while the operation before it
/// ends.
struct LoraDelta {
  AddAdaptersArgs of = {};
  int64_t num_rows = 0;
  const AdapterRow* rows = nullptr;  // [num_rows]
};
/// u = A x of all rows.
Outcome shrink_adapters(const LoraDelta& lora_delta, Stream stream);
int64_t lora_delta_workspace(const LoraDelta& lora_delta);  // floats

}  // namespace primerl::cuda
