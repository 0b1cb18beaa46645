/// The arguments that the operations of cuda_ops.h refuse, and the reasons. They are the same for
/// the kernels of ops/cuda and for the ATen operations (kernels/cuda/aten). Plain functions of
/// sizes and addresses; null: no fault. Without rows there is no work and no fault: callers ask
/// that first.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/ops/cuda_adapters.h"
#include "kernels/cuda/ops/cuda_expert_tiles.h"
#include "kernels/cuda/ops/cuda_gemms.h"

namespace primerl::cuda {

inline constexpr const char* kTooManyRows = "rows must be at most 2^31 - 1";
inline constexpr int64_t kRowsMax = 0x7fffffff;
inline constexpr int64_t kElementsMax = kRowsMax * 256;

/// Whether vectors of 16 bytes may be used: all addresses are multiples of that, null too.
template <class... Pointers>
bool are_aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t vector_of(Type type) { return type == Type::kFloat32 ? 4 : 8; }

inline const char* fault_of_matrix(const AddAdaptersArgs& args) {
  if (args.num_tiles < 0 || args.num_tiles > 65535) return "tiles must be at most 65535";
  if (args.num_parts < 0 || args.num_parts > kAdapterPartsMax)
    return "parts of a matrix must be at most 3";
  if (args.rank_max < 1 || args.rank_max > kAdapterRowsRankMax)
    return "rank_max must be from 1 to 64";
  int64_t all = args.terms | args.slot_stride | args.group_stride;
  for (int i = 0; i < args.num_parts; ++i) all |= args.parts[i].a | args.parts[i].b;
  if (args.terms < 1 || args.terms > kRowsMax || all % 8 != 0 ||
      !are_aligned(args.x, args.slots, args.y))
    return "terms, strides and offsets of parts must be multiples of 8, x, slots and y at "
           "addresses "
           "of 16 bytes";
  for (int i = 0; i < args.num_parts; ++i) {
    const AdapterPart& part = args.parts[i];
    if (part.column < 0 || part.columns < 1 || part.column + part.columns > args.columns)
      return "columns of parts must be some of the matrix's";
  }
  if (args.columns > 1 << 22 || args.next_size > 1 << 22)  // keeps products with ranks and element
                                                           // sizes within an int
    return "columns and next_size must be at most 2^22";
  return nullptr;
}
inline const char* fault_of(const AddAdaptersArgs& args) {
  if (const char* fault = fault_of_matrix(args); fault != nullptr) return fault;
  const bool has_workspace = args.workspace != nullptr || adapters_workspace(args) == 0;
  if (!has_workspace || !are_aligned(args.workspace))
    return "adapters need a workspace at an address of 16 bytes";
  return nullptr;
}

inline const char* fault_of(const LoraDelta& lora_delta) {
  const AddAdaptersArgs& args = lora_delta.of;
  if (const char* fault = fault_of_matrix(args); fault != nullptr) return fault;
  if (lora_delta.num_rows < 0 || lora_delta.num_rows > kRowsMax) return kTooManyRows;
  if (lora_delta.rows == nullptr) return "adapters need the adapter of each row";
  const bool needs_workspace = lora_delta.num_rows > 0 && args.num_parts > 0;
  const bool has_workspace = args.workspace != nullptr || !needs_workspace;
  if (!has_workspace || !are_aligned(args.workspace, lora_delta.rows))
    return "adapters need a workspace at an address of 16 bytes, as rows are";
  return nullptr;
}
/// Checks the LoRA delta of an operation that reads the output of a GEMM of `rows` rows. Parts
/// consist of whole units of `unit` columns; no two parts share a unit.
inline const char* fault_of(const LoraDelta* lora_delta, Type type, int64_t rows, int64_t columns,
                            int64_t unit) {
  if (lora_delta == nullptr) return nullptr;
  if (const char* fault = fault_of(*lora_delta); fault != nullptr) return fault;
  const AddAdaptersArgs& of = lora_delta->of;
  if (lora_delta->num_rows != rows || of.columns != columns || of.type != type)
    return "adapters must have the type, rows and columns of the GEMM";
  for (int i = 0; i < of.num_parts; ++i)
    if (of.parts[i].column % unit != 0 || of.parts[i].columns % unit != 0)
      return "parts that adapters add to must be whole norms, gates, ups or heads";
  return nullptr;
}

template <class Args>
const char* fault_of_norm(const Args& args, bool is_aligned) {
  if (args.rows < 0 || args.rows > kRowsMax) return kTooManyRows;
  if (args.width <= 0) return "the width of a norm must be at least 1";
  const int64_t vector = vector_of(args.type);
  const bool are_vectors = is_aligned && args.width % vector == 0;
  if (args.width > kNormWidthMax * (are_vectors ? vector : 1))
    return "the width of a norm must be at most 4096, or a row a multiple of 16 bytes, aligned to "
           "16, and at most 65536 bytes";
  return nullptr;
}
inline bool are_aligned(const RmsNormArgs& args) {
  const Residual residual = args.residual.value_or(Residual{});
  return are_aligned(args.x, args.weight, args.y, residual.sum, address_of(residual.delta));
}
inline const char* fault_of(const RmsNormArgs& args) {
  if (const char* fault = fault_of_norm(args, are_aligned(args)); fault != nullptr) return fault;
  if (!args.residual.has_value()) return nullptr;
  const auto& [delta, sum] = *args.residual;
  if (address_of(delta) == nullptr || sum == nullptr)
    return "the residual of a norm needs delta and a buffer for the sum";
  if (const auto* parts = std::get_if<SplitKOutput>(&delta);
      parts != nullptr && parts->num_parts < 1)
    return "split-K parts of delta must be 1 or more";
  return fault_of(lora_delta_of(delta), args.type, args.rows, args.width, args.width);
}
inline const char* fault_of(const RmsNormBackwardArgs& args) {
  return fault_of_norm(args, are_aligned(args.dy, args.x, args.weight, args.dsum, args.dx));
}

template <class Args>
const char* fault_of_swiglu(const Args& args) {
  if (args.width <= 0) return "the width of a SwiGLU must be at least 1";
  if (args.rows < 0 || args.rows > kElementsMax / args.width)
    return "rows times width of a SwiGLU must be at most 2^39";
  return nullptr;
}
inline const char* fault_of(const SwigluArgs& args) {
  if (const char* fault = fault_of_swiglu(args); fault != nullptr) return fault;
  return fault_of(args.gate_up.lora_delta, args.type, args.rows, 2 * args.width, args.width);
}
inline const char* fault_of(const SwigluBackwardArgs& args) { return fault_of_swiglu(args); }

inline const char* fault_of(const HeadShape& heads, int32_t rotary_dim) {
  const auto [num_heads, num_kv_heads, d] = heads;
  if (d < 1 || d > kHeadDimMax) return "head_dim must be from 1 to 256";
  if (rotary_dim < 0 || rotary_dim > d || rotary_dim % 2 != 0)
    return "rotary_dim must be even, from 0 to head_dim";
  if (num_heads < 1 || num_kv_heads < 1 || num_heads % num_kv_heads != 0)
    return "num_kv_heads must divide num_heads";
  return nullptr;
}
template <class Args>
const char* fault_of_rotary(const Args& args) {
  if (const char* fault = fault_of(args.heads, args.rotary_dim); fault != nullptr) return fault;
  const int64_t heads = args.heads.num_heads + int64_t{2} * args.heads.num_kv_heads;
  if (args.rows < 0 || args.rows > kRowsMax * 8 / heads)
    return "rows times heads must be at most 2^34";
  return nullptr;
}
inline const char* fault_of_lora_delta(const PagedRotaryArgs& args) {
  const auto [num_heads, num_kv_heads, d] = args.heads;
  const int64_t columns = (num_heads + int64_t{2} * num_kv_heads) * d;
  return fault_of(args.qkv.lora_delta, args.type, args.rows, columns, d);
}
inline const char* fault_of(const PagedRotaryArgs& args) {
  const int32_t size = args.cache.block_size;
  if (size < 1 || (size & (size - 1)) != 0) return "block_size must be a power of two";
  if (const char* fault = fault_of_rotary(args); fault != nullptr) return fault;
  return fault_of_lora_delta(args);
}
inline const char* fault_of(const RotaryBackwardArgs& args) { return fault_of_rotary(args); }

inline const char* fault_of(const PagedCache& cache) {
  constexpr int64_t kMultiple = 8;
  if (cache.block_size < 16 || (cache.block_size & (cache.block_size - 1)) != 0)
    return "block_size of decode attention must be a power of two, 16 or more";
  const bool are_multiples = cache.block_stride % kMultiple == 0 &&
                             cache.row_stride % kMultiple == 0 &&
                             cache.head_stride % kMultiple == 0;
  if (!are_multiples || !are_aligned(cache.keys, cache.values))
    return "the cache must be aligned to 16 bytes, its strides multiples of 8 elements";
  return nullptr;
}
inline const char* fault_of(const DecodeAttentionArgs& args) {
  const auto [num_heads, num_kv_heads, d] = args.heads;
  if (args.rows < 0 || args.rows > kRowsMax) return kTooManyRows;
  if (d != 64 && d != 128 && d != 256) return "head_dim of decode attention must be 64, 128 or 256";
  if (num_heads < 1 || num_kv_heads < 1 || num_heads % num_kv_heads != 0)
    return "num_kv_heads must divide num_heads";
  if (num_heads > 65535) return "num_heads must be at most 65535";
  if (const char* fault = fault_of(args.cache); fault != nullptr) return fault;
  if (!are_aligned(args.q)) return "q must be aligned to 16 bytes";
  if (args.num_splits < 1 || args.num_splits > kSplitsMax) return "num_splits must be from 1 to 64";
  if (args.num_splits > 1 && args.workspace == nullptr)
    return "more than one split needs a workspace";
  return nullptr;
}

/// Checks the arguments of rope_decode_attention().
inline const char* fault_of(const PagedRotaryArgs& rope, const DecodeAttentionArgs& args) {
  if (const char* fault = fault_of(args); fault != nullptr) return fault;
  const bool are_alike = rope.rows == args.rows && rope.type == args.type &&
                         rope.heads.num_heads == args.heads.num_heads &&
                         rope.heads.num_kv_heads == args.heads.num_kv_heads &&
                         rope.heads.head_dim == args.heads.head_dim;
  if (!are_alike) return "rows, heads and type of both must be equal";
  if (const char* fault = fault_of(rope.heads, rope.rotary_dim); fault != nullptr) return fault;
  return fault_of_lora_delta(rope);
}

template <class Args>
const char* fault_of_logits(const Args& args) {
  if (args.rows < 0 || args.rows > kRowsMax) return kTooManyRows;
  if (args.vocab_size < 1 || args.row_stride < args.vocab_size)
    return "vocab_size must be at least 1, row_stride at least vocab_size";
  return nullptr;
}
inline const char* fault_of(const CrossEntropyArgs& args) { return fault_of_logits(args); }
inline const char* fault_of(const CrossEntropyBackwardArgs& args) { return fault_of_logits(args); }

inline const char* fault_of(const MasterAdamwArgs& args) {
  return args.step.count < 0 ? "the count of AdamW must be at least 0" : nullptr;
}

inline const char* fault_of(const SampleArgs& args) {
  if (args.rows < 0 || args.rows > kRowsMax) return kTooManyRows;
  if (args.vocab_size < 1 || args.vocab_size >= 1 << 24 || args.row_stride < args.vocab_size)
    return "vocab_size must be from 1 to 2^24 - 1, row_stride at least vocab_size";
  if (args.workspace != nullptr && args.rows > 65535)
    return "rows of a sample in parts must be at most 65535";
  return nullptr;
}

inline const char* fault_of(const SmallMGemmArgs& args) {
  if (args.rows < 0 || args.rows > kSmallMRowsMax) return "rows must be from 0 to 64";
  if (args.columns < 1 || args.columns > kRowsMax || args.columns % kSmallMColumns != 0)
    return "columns must be a multiple of 32, at most 2^31 - 1";
  if (args.num_parts < 1 || args.num_parts > kSmallMPartsMax) return "parts must be from 1 to 8";
  if (args.terms < 1 || args.terms % (kSmallMTerms * args.num_parts) != 0)
    return "terms must be a multiple of 128 in each part";
  if (!are_aligned(args.x, args.weight, args.parts))
    return "x, weight and parts must be at addresses of 16 bytes";
  return nullptr;
}

inline const char* fault_of(const FewRowsArgs& args) {
  if (args.rows < 0 || args.rows > kFewRowsMax) return "rows must be from 0 to 4";
  if (args.columns < 1 || args.columns > kRowsMax) return "columns must be from 1 to 2^31 - 1";
  const bool is_aligned = are_aligned(args.x, args.weight);
  if (args.terms < 1 || args.terms % 8 != 0 || !is_aligned)
    return "terms must be a multiple of 8, x and weight at addresses of 16 bytes";
  return nullptr;
}

inline const char* fault_of(const LowRankGemmArgs& args) {
  if (args.num_tiles < 0 || args.num_tiles > kRowsMax) return "tiles must be from 0 to 2^31 - 1";
  if (args.terms < 1 || args.terms % 16 != 0) return "terms must be a multiple of 16";
  if (args.columns < 1 || args.columns % 8 != 0 || args.columns > int64_t{65535} * 128)
    return "columns must be a multiple of 8, up to 8388480";
  if ((args.x_stride | args.y_stride | args.slot_stride | args.group_stride) % 8 != 0 ||
      !are_aligned(args.x, args.weights, args.y))
    return "strides must be multiples of 8, x, weights and y at addresses of 16 bytes";
  return nullptr;
}

template <class Args>
const char* fault_of_rows(const Args& args) {
  if (args.width <= 0) return "the width of rows must be at least 1";
  if (args.rows < 0 || args.rows > kElementsMax / args.width)
    return "rows times width must be at most 2^39";
  return nullptr;
}
inline const char* fault_of(const GatherRowsArgs& args) { return fault_of_rows(args); }
inline const char* fault_of(const CombineRowsArgs& args) {
  if (args.terms < 0) return "terms of a row must be at least 0";
  return fault_of_rows(args);
}
inline const char* fault_of(const DotRowsArgs& args) {
  if (args.terms < 1 || args.rows > kRowsMax / args.terms)
    return "rows times terms must be at most 2^31 - 1";
  return fault_of_rows(args);
}
inline const char* fault_of(const DropRowsArgs& args) {
  if (args.rows < 0 || args.rows > kRowsMax) return kTooManyRows;
  if (args.width < 1 || args.width > kRowsMax) return "width must be from 1 to 2^31 - 1";
  if (args.rows * divide_up(args.width, 4) > kElementsMax)
    return "rows and width must be at most 2^39 draws";
  return nullptr;
}
inline const char* fault_of(const EmbeddingBackwardArgs& args) {
  if (args.num_ids < 0 || args.num_ids > kRowsMax) return kTooManyRows;
  if (args.width < 1 || args.width > 65535 * 256)
    return "the width of an embedding must be from 1 to 2^24 - 256";
  return nullptr;
}

inline const char* fault_of(const QuantiseRowsArgs& args) {
  if (args.rows < 0 || args.rows > kRowsMax) return kTooManyRows;
  if (args.width < 1 || args.width % kFp8Block != 0 || args.code_stride % kFp8Block != 0)
    return "rows of FP8 must be multiples of 128 numbers";
  if (args.code_stride < args.width || args.scale_stride < args.rows)
    return "code_stride must be at least width, scale_stride at least rows";
  if (args.code_stride > kElementsMax / args.rows) return "rows times codes must be at most 2^39";
  if (!are_aligned(args.x, args.codes)) return "x and codes must be aligned to 16 bytes";
  return nullptr;
}
inline const char* fault_of(const QuantiseBlocksArgs& args) {
  if (args.rows % kFp8Block != 0 || args.width < 1 || args.width % kFp8Block != 0)
    return "rows and columns of an FP8 matrix must be multiples of 128";
  if (args.rows < 0 || args.rows / kFp8Block > 65535) return "rows must be at most 2^23 - 128";
  const bool has_transposed = args.transposed_codes != nullptr;
  if (args.code_stride < args.width || args.scale_stride < args.width / kFp8Block ||
      (has_transposed && (args.transposed_code_stride < args.rows ||
                          args.transposed_scale_stride < args.rows / kFp8Block)))
    return "strides must be at least the size of a row";
  if (!are_aligned(args.x, args.codes, args.transposed_codes) || args.code_stride % 16 != 0 ||
      args.transposed_code_stride % 16 != 0)
    return "x and codes must be aligned to 16 bytes";
  return nullptr;
}

inline const char* fault_of(const GroupedFp8Args& args) {
  if (args.rows < 0 || args.rows > kRowsMax) return kTooManyRows;
  const int64_t multiples = args.terms | args.columns | args.group_rows | args.group_terms;
  if (args.terms < 1 || args.columns < 1 || multiples % kFp8Block != 0)
    return "rows and columns of an FP8 matrix must be multiples of 128";
  if (args.num_groups < 1 || args.num_groups > kGroupedFp8GroupsMax)
    return "num_groups must be from 1 to 1024";
  if (args.num_groups > 1 && (args.group_rows > 0) == (args.group_terms > 0))
    return "groups must be some rows or some terms apart";
  if (args.num_groups * std::max(args.group_rows, args.group_terms) > INT32_MAX)
    return "the matrices must have at most 2^31 rows and terms";
  if (args.x_code_stride % 16 != 0 || args.code_stride % 16 != 0 ||
      !are_aligned(args.x_codes, args.codes, args.y))
    return "codes and y must be aligned to 16 bytes";
  return nullptr;
}

inline const char* fault_of(const RouterShape& shape, int64_t rows) {
  if (rows < 0 || rows > kRowsMax) return kTooManyRows;
  if (shape.num_experts < 1 || shape.num_experts > kExpertsMax)
    return "num_experts must be from 1 to 1024";
  if (shape.experts_per_token < 1 || shape.experts_per_token > shape.num_experts)
    return "experts_per_token must be from 1 to num_experts";
  if (shape.num_groups < 1 || shape.num_experts % shape.num_groups != 0)
    return "num_groups must divide num_experts";
  if (shape.groups_kept < 1 || shape.groups_kept > shape.num_groups)
    return "groups_kept must be from 1 to num_groups";
  return nullptr;
}
inline const char* fault_of(const SortByExpertArgs& args) {
  const RouterShape shape{args.num_experts, args.experts_per_token};
  if (const char* fault = fault_of(shape, args.rows); fault != nullptr) return fault;
  // A block counts further, by at most its number of threads.
  return args.rows * args.experts_per_token > kRowsMax - 512 ? kTooManyRows : nullptr;
}
inline const char* fault_of(const ExpertTilesArgs& args) {
  if (args.num_pairs < 0 || args.num_pairs > kRowsMax - 512)
    return "num_pairs must be at most 2^31 - 513";
  if (args.num_experts < 1 || args.num_experts > kExpertsMax)
    return "num_experts must be from 1 to 1024";
  if (args.num_runs < 1 || args.num_runs > kRunsMax) return "runs must be from 1 to 4096";
  if (args.tile_rows < 1 || args.tile_rows > kLowRankTileRows)
    return "rows of a tile must be from 1 to 64";
  if (args.num_tiles !=
      num_expert_tiles_of(args.num_pairs, args.num_experts, args.num_runs, args.tile_rows))
    return "tiles must be as many as num_expert_tiles_of() says";
  return nullptr;
}

}  // namespace primerl::cuda
