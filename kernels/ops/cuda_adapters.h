/// What adapters add to the products of linears. All promises of cuda_ops.h hold.
///
/// Where many rows have an adapter, add_adapters() adds it to the product. In a decode step, where
/// launches take longer than the work, shrink_adapters() makes u = A x while the product runs, and
/// who reads the product makes B u, too: rms_norm(), swiglu(), rotary() and turned_attention().
#pragma once

#include "kernels/ops/cuda_ops.h"

namespace primerl::cuda {

/// Rows [first, first + rows) of a step or of a pass that have one adapter; in device memory.
struct AdapterTile {
  int32_t first = 0;
  int32_t rows = 0;      // up to what the operation takes; 0: a tile of nobody
  int32_t slot = 0;      // where its numbers lie
  int32_t rank = 0;      // up to rank_max of the operation; 0: nobody's adapter
  uint32_t targets = 0;  // bits of the parts that it adds to
  float scaling = 0;
  int32_t group = 0;  // of the matrix: the expert whose rows they are
};
inline constexpr int64_t kAdapterTileRows = 64;
inline constexpr int32_t kAdapterRowsRankMax = 64;

/// Columns of a matrix that have an A [rank, terms] and a B [columns, rank] of their own. Both are
/// dense, and begin `a * rank` and `b * rank` elements behind the beginning of a slot.
struct AdapterPart {
  int64_t column = 0;  // the first
  int64_t columns = 0;
  int64_t a = 0;  // multiples of 8, as b
  int64_t b = 0;
  uint32_t target = 1;  // its bit
};
inline constexpr int32_t kAdapterPartsMax = 3;

/// y += scaling * (x A') B' of each part that a row's adapter has, beside the product of a linear.
/// A row's result depends on that row and its adapter alone, and not on its place in a tile. What
/// no tile has stays as it is. Contents of tiles are not checked; their rows must differ.
struct AddAdaptersArgs {
  int64_t terms = 0;    // a multiple of 8; x and slots at addresses of 16 bytes
  int64_t columns = 0;  // of y
  Type type = Type::kFloat32;
  int64_t num_tiles = 0;
  const AdapterTile* tiles = nullptr;  // [num_tiles]
  int32_t rank_max = kAdapterRowsRankMax;
  int32_t num_parts = 0;               // up to kAdapterPartsMax
  AdapterPart parts[kAdapterPartsMax] = {};
  const void* slots = nullptr;  // [any, slot_stride]
  int64_t slot_stride = 0;      // elements, a multiple of 8
  int64_t group_stride = 0;     // of a rank: from a group's A and B to the next one's; likewise
  /// What is read soon of the tiles' slots: [next * rank, (next + next_size) * rank), asked for
  /// ahead; nothing where next_size is 0.
  int64_t next = 0;
  int64_t next_size = 0;
  const void* x = nullptr;     // [rows, terms]
  void* y = nullptr;           // [rows, columns], added to
  float* workspace = nullptr;  // [adapters_workspace()], at an address of 16 bytes
};
Outcome add_adapters(const AddAdaptersArgs& args, Stream stream);
int64_t adapters_workspace(const AddAdaptersArgs& args);  // floats

/// Whose adapter a row of a decode step has; in device memory, at an address of 16 bytes.
struct alignas(16) AdapterRow {
  int32_t slot = 0;
  int32_t rank = 0;  // 0: nobody's
  uint32_t targets = 0;
  float scaling = 0;
};

/// What adapters add to the rows of a decode step's product: scaling * B u, in fp32, made by who
/// reads the product, while u is there. Tiles and rows say the same: each row is in one tile, those
/// without an adapter in one of nobody's adapter. Of `of` group_stride and y are not read, and
/// `workspace` is [addend_workspace()]. A row's result depends on that row and its adapter alone.
/// Who adds reads slots, tiles and rows while the operation before it ends.
struct AdapterAddend {
  AddAdaptersArgs of = {};
  int64_t num_rows = 0;
  const AdapterRow* rows = nullptr;  // [num_rows]
};
/// u = A x of all rows.
Outcome shrink_adapters(const AdapterAddend& addend, Stream stream);
int64_t addend_workspace(const AdapterAddend& addend);  // floats

}  // namespace primerl::cuda
