/// The operations of a decoder on one CUDA device; docs/design/cuda.md describes their rules.
///
/// Pointers belong to the caller and point to memory of the stream's device, except if a line says
/// "host". Matrices are row-major, and dense if no stride is given. Activations and model weights
/// are all of `type`; sums, statistics and gradients of weights are fp32. bf16 is computed in fp32
/// and rounded once, when it is written. Addresses are aligned to one element; whole rows of 16
/// bytes at addresses of 16 bytes are read and written fastest.
///
/// An op checks its sizes, launches on `stream` and returns: it allocates nothing, never waits for
/// the device, keeps nothing, and may be captured in a CUDA graph. Any thread may call it; its
/// device must be the current one. Zero rows are valid and launch nothing. An op that fails has
/// launched nothing, or the device has failed before. Contents (labels, tables, lengths) are not
/// checked: they must be in range.
///
/// The same arguments give the same bits: no float is added by an atomic. A row of an output
/// depends only on its own inputs, so other rows of the batch change no bit. `num_splits` of
/// decode_attention changes bits.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/cuda/ops/cuda_epilogue.h"
#include "kernels/ops/ops.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace primerl::cuda {

using Stream = CUstream_st*;

struct AdapterTile;  // kernels/cuda/ops/cuda_adapters.h

/// Whether these are the kernels of ops/cuda. Otherwise they are ATen operations
/// (kernels/cuda/aten), for builds without nvcc. Those are slower, allocate, may wait for the
/// device and cannot be captured. Their rows may depend on other rows of the batch in the last
/// bits.
bool has_own_kernels();

enum class Type : uint8_t { kFloat32, kBfloat16 };

/// The reason why nothing was launched. The text is static and names the valid values.
struct [[nodiscard]] Outcome {
  const char* fault = nullptr;
  bool is_ok() const { return fault == nullptr; }
};

/// Largest width of a norm whose row is not a multiple of 16 bytes. Other rows have at most as many
/// pieces of 16 bytes.
inline constexpr int64_t kNormWidthMax = 4096;

/// s = x + delta, rounded to `type`.
struct Residual {
  Epilogue delta = {};  // [rows, width]
  void* sum = nullptr;  // [rows, width] s; may be x or the data of delta
};

/// y = s / rms(s) * weight. It starts while the operation before it ends, and may read the weight
/// then. The writer of the weight must be an earlier operation.
struct RmsNormArgs {
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 0;
  Type type = Type::kFloat32;
  const void* x = nullptr;                          // [rows, width]
  const void* weight = nullptr;                     // [width]
  void* y = nullptr;                                // [rows, width]
  std::optional<Residual> residual = std::nullopt;  // none: s = x
  float* inverse_rms = nullptr;                     // [rows] for backward, or null
};
Outcome rms_norm(const RmsNormArgs& args, Stream stream);

struct RmsNormBackwardArgs {
  int64_t rows = 0;
  int64_t width = 0;
  Type type = Type::kFloat32;
  const void* dy = nullptr;            // [rows, width]
  const void* x = nullptr;             // [rows, width] the input of the norm: forward's s
  const void* weight = nullptr;        // [width]
  const float* inverse_rms = nullptr;  // [rows]
  const void* dsum = nullptr;          // [rows, width] gradient that reaches s on another path, or
                                       // null: 0
  void* dx = nullptr;                  // [rows, width] dsum + the norm's gradient; may be dsum or
                                       // dy
  float* dweight = nullptr;            // [width], added to
  float* workspace = nullptr;          // [rms_norm_workspace(rows, width)]
};
Outcome rms_norm_backward(const RmsNormBackwardArgs& args, Stream stream);
int64_t rms_norm_workspace(int64_t rows, int64_t width);  // floats

/// Keys and values of one layer in blocks. Slot s has block s / block_size and row s % block_size.
/// Its head h starts at block * block_stride + row * row_stride + h * head_stride, in elements.
/// Strides express both orders of heads and rows in a block.
struct PagedCache {
  void* keys = nullptr;
  void* values = nullptr;
  int32_t block_size = 1;  // slots, a power of two
  int64_t block_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

/// As RotaryArgs of ops.h. Key and value of row r go to slot slots[r]; without `slots`, to the slot
/// that row r of `block_table` has for positions[r]; without both, to slot r. A negative slot:
/// nowhere. Without cache.keys, or cache.values, those are not written.
struct PagedRotaryArgs {
  int64_t rows = 0;
  HeadShape heads = {};
  int32_t rotary_dim = 0;  // even, at most head_dim
  float epsilon = 0;
  Type type = Type::kFloat32;
  GemmOutput qkv = {};                   // [rows, (num_heads + 2 num_kv_heads) * head_dim]
  const void* q_weight = nullptr;        // [head_dim], or null: no norm
  const void* k_weight = nullptr;        // [head_dim], or null: no norm
  const int32_t* positions = nullptr;    // [rows]
  const float* cosine = nullptr;         // [positions, rotary_dim / 2]
  const float* sine = nullptr;           // [positions, rotary_dim / 2]
  const int32_t* slots = nullptr;        // [rows], or null
  const int32_t* block_table = nullptr;  // [rows, table_stride], or null
  int64_t table_stride = 0;
  void* q = nullptr;  // [rows, num_heads * head_dim]
  PagedCache cache = {};
};
Outcome rotary(const PagedRotaryArgs& args, Stream stream);

struct RotaryBackwardArgs {
  int64_t rows = 0;
  HeadShape heads = {};
  int32_t rotary_dim = 0;
  float epsilon = 0;
  Type type = Type::kFloat32;
  const void* qkv = nullptr;  // as forward
  const void* q_weight = nullptr;
  const void* k_weight = nullptr;
  const int32_t* positions = nullptr;
  const float* cosine = nullptr;
  const float* sine = nullptr;
  const void* dq = nullptr;       // [rows, num_heads * head_dim]
  const void* dkeys = nullptr;    // [rows, num_kv_heads * head_dim]
  const void* dvalues = nullptr;  // [rows, num_kv_heads * head_dim]
  void* dqkv = nullptr;           // [rows, (num_heads + 2 num_kv_heads) * head_dim], written
  float* dq_weight = nullptr;     // [head_dim], added to where there is q_weight
  float* dk_weight = nullptr;     // [head_dim], added to where there is k_weight
  float* workspace = nullptr;     // [rotary_workspace(rows, head_dim)], where there is a weight
};
Outcome rotary_backward(const RotaryBackwardArgs& args, Stream stream);
int64_t rotary_workspace(int64_t rows, int32_t head_dim);  // floats

/// activated = silu(gate) * up, where gate and up are the halves of gate_up.
struct SwigluArgs {
  int64_t rows = 0;
  int64_t width = 0;
  Type type = Type::kFloat32;
  GemmOutput gate_up = {};    // [rows, 2 width], gate first
  void* activated = nullptr;  // [rows, width]
};
Outcome swiglu(const SwigluArgs& args, Stream stream);

struct SwigluBackwardArgs {
  int64_t rows = 0;
  int64_t width = 0;
  Type type = Type::kFloat32;
  const void* gate_up = nullptr;     // [rows, 2 width]
  const void* dactivated = nullptr;  // [rows, width]
  void* dgate_up = nullptr;          // [rows, 2 width], written; may be gate_up
};
Outcome swiglu_backward(const SwigluBackwardArgs& args, Stream stream);

/// One query per row over the keys in a block table. Query r, at position lengths[r] - 1, attends
/// to the last `window` of the keys 0 .. lengths[r] - 1. A sink is a logit of its head without a
/// value: it adds to the sum of the softmax. A row of length 0 gives zeros. Up to three cache rows
/// after the last key are loaded but not used.
struct DecodeAttentionArgs {
  int64_t rows = 0;
  HeadShape heads = {};  // head_dim 64, 128 or 256
  float scale = 0;
  int32_t window = 0;  // keys, including the query's own; 0: all
  Type type = Type::kFloat32;
  const float* sinks = nullptr;          // [num_heads], or null
  const void* q = nullptr;               // [rows, num_heads * head_dim]
  PagedCache cache = {};                 // block_size 16 or more; strides are multiples of 8
  const int32_t* block_table = nullptr;  // [rows, table_stride]
  int64_t table_stride = 0;
  const int32_t* lengths = nullptr;  // [rows]
  /// An upper bound of all lengths, if the host knows it: then nothing waits for the device.
  /// Kernels do not read it, so a captured graph may be replayed with other lengths. 0: unknown.
  int64_t length_max = 0;
  int32_t num_splits = 1;      // of each context, at most kSplitsMax
  void* out = nullptr;         // [rows, num_heads * head_dim]
  float* workspace = nullptr;  // [decode_workspace(rows, heads, num_splits)], or null: 1 split
};
inline constexpr int32_t kSplitsMax = 64;
Outcome decode_attention(const DecodeAttentionArgs& args, Stream stream);
/// rotary() of one row per sequence and then decode_attention(), in one launch. The cache gets the
/// same bits as from both calls; the output differs by rounding only. Row r has position lengths[r]
/// - 1. Its key and value are written to that position of the block table; its queries are not
/// written. The positions, slots, table, cache and q of `rope` are not read, nor is q of `args`.
Outcome rope_decode_attention(const PagedRotaryArgs& rope, const DecodeAttentionArgs& args,
                              Stream stream);
int64_t decode_workspace(int64_t rows, const HeadShape& heads, int32_t num_splits);  // floats

/// For each row's distribution p = softmax(logits * inverse_temperature): log p(label), entropy in
/// nats, log of the normalizer. With `coefficients` the logits are overwritten by the gradient of
/// coefficient * log p(label); the loss is -coefficient * log p(label). A negative label: log p is
/// 0, the gradient is 0. A row whose sum is NaN or infinity gives NaN.
struct CrossEntropyArgs {
  int64_t rows = 0;
  int64_t vocab_size = 0;
  int64_t row_stride = 0;  // elements, vocab_size or more
  float inverse_temperature = 1;
  Type type = Type::kFloat32;
  void* logits = nullptr;               // [rows, row_stride]
  const int32_t* labels = nullptr;      // [rows]
  const float* coefficients = nullptr;  // [rows], or null: logits are only read
  float* logprobs = nullptr;            // [rows]
  float* entropies = nullptr;           // [rows], or null
  float* log_normalizers = nullptr;     // [rows], or null
};
Outcome cross_entropy(const CrossEntropyArgs& args, Stream stream);

/// Only the gradient, for coefficients that depend on log p.
struct CrossEntropyBackwardArgs {
  int64_t rows = 0;
  int64_t vocab_size = 0;
  int64_t row_stride = 0;
  float inverse_temperature = 1;
  Type type = Type::kFloat32;
  const int32_t* labels = nullptr;         // [rows]
  const float* coefficients = nullptr;     // [rows]
  const float* log_normalizers = nullptr;  // [rows]
  void* logits = nullptr;  // [rows, row_stride], overwritten where there are no bf16_gradients
  void* bf16_gradients = nullptr;  // [rows, row_stride] the gradient, rounded, or null: in place
};
Outcome cross_entropy_backward(const CrossEntropyBackwardArgs& args, Stream stream);

/// As in ops.h; all pointers are device memory. The gradient is multiplied by gradient_scale and by
/// the number at `device_scale`, unless that is null.
struct MasterAdamwArgs {
  AdamwArgs step = {};
  const float* device_scale = nullptr;  // [1], or null
  void* bf16_weights = nullptr;         // [count] the new weights, rounded; or null
};
Outcome adamw(const MasterAdamwArgs& args, Stream stream);

/// How one row is sampled; in device memory. Meanings are those of SamplingParams.
struct SamplingRow {
  uint64_t seed = 0;
  double top_p = 1;
  double min_p = 0;
  float inverse_temperature = 1;  // 1 / temperature in fp32; 0: the most likely token
  int32_t top_k = 0;              // 0: all
};

/// The next token of each row, by the rules and random numbers of
/// kernels/common/sampler.h. Weights have the bits of the CPU's (on CPUs with fused
/// multiply-add) and masses are whole numbers. So equal fp32 logits give the same token and the
/// same kept set. The log-probability differs by rounding. A row whose weights sum to zero, NaN or
/// infinity gives token 0 and a NaN log-probability, and keeps all tokens.
struct SampleArgs {
  int64_t rows = 0;
  int64_t vocab_size = 0;  // less than 2^24
  int64_t row_stride = 0;
  Type type = Type::kFloat32;
  const void* logits = nullptr;           // [rows, row_stride]
  const SamplingRow* settings = nullptr;  // [rows]
  const int32_t* indices = nullptr;       // [rows] tokens the sequence has generated before
  int32_t* tokens = nullptr;              // [rows]
  float* logprobs = nullptr;              // [rows] of the processed distribution
  uint32_t* kept = nullptr;  // [rows, kept_words(vocab_size)] bit i % 32 of word i / 32, or null
  /// [sample_workspace(rows)] bytes at an address of 8. Rows without top_k and top_p are split over
  /// several blocks, which changes no token. Null: each row has one block.
  void* workspace = nullptr;
};
Outcome sample(const SampleArgs& args, Stream stream);
int64_t sample_workspace(int64_t rows);  // bytes
constexpr int64_t kept_words(int64_t vocab_size) { return (vocab_size + 31) / 32; }

inline constexpr int64_t kLowRankTileRows = 64;

/// y += x * weights' of each tile's slot and group, all bf16. These GEMMs have so few terms that
/// adding to y takes most of the time. The sum is rounded once. Contents of tiles are not checked;
/// rank, targets and scaling are not read. No two tiles may share a row.
struct LowRankGemmArgs {
  int64_t terms = 0;    // a multiple of 16
  int64_t columns = 0;  // a multiple of 8, as all strides
  int64_t num_tiles = 0;
  const AdapterTile* tiles = nullptr;  // [num_tiles], of up to kLowRankTileRows
  const void* x = nullptr;             // [rows, terms], x_stride apart
  int64_t x_stride = 0;
  /// A slot's group is [columns, terms]; transposed: [terms, columns].
  const void* weights = nullptr;
  int64_t slot_stride = 0;
  int64_t group_stride = 0;
  bool is_transposed = false;
  void* y = nullptr;  // [rows, columns], y_stride apart
  int64_t y_stride = 0;
};
Outcome add_low_rank_gemms(const LowRankGemmArgs& args, Stream stream);

/// The dropout of a row; in device memory.
struct DropRow {
  uint64_t key = 0;        // mix(key, row) of kernels/common/adapter_dropout.h
  float scale = 1;         // 1 / (1 - rate)
  uint32_t threshold = 0;  // a 16-bit random number below it drops the element; 0: none is dropped
};

/// y = x after dropout for linear `module`, with the random numbers of adapter_dropout.h; or y +=
/// that.
struct DropRowsArgs {
  int64_t rows = 0;
  int64_t width = 0;
  Type type = Type::kFloat32;
  uint64_t module = 0;
  const uint64_t* modules = nullptr;  // [rows] a module for each row; or null
  const DropRow* dropped = nullptr;   // [rows]
  const void* x = nullptr;            // [rows, width]
  void* y = nullptr;                  // [rows, width]; may be x
  bool adds = false;
};
Outcome drop_rows(const DropRowsArgs& args, Stream stream);

/// y[i] = scale[i] * x[sources[i]]: rows for the experts, and the lookup of an embedding. A
/// negative source s gives a row of zeros; where there are `others`, the source is others[-1 - s].
struct GatherRowsArgs {
  int64_t rows = 0;
  int64_t width = 0;
  Type type = Type::kFloat32;
  const void* x = nullptr;           // [any, width]
  const int32_t* sources = nullptr;  // [rows]
  const int32_t* others = nullptr;   // [any], or null
  const float* scale = nullptr;      // [rows], or null: 1
  void* y = nullptr;                 // [rows, width]
};
Outcome gather_rows(const GatherRowsArgs& args, Stream stream);

/// dtable[ids[i]] += the sum of dy[row_indices[j]] for j from offsets[i] to offsets[i + 1], in
/// order. The caller groups the tokens. Ids must differ, or two groups would add to one row at
/// once.
struct EmbeddingBackwardArgs {
  int64_t num_ids = 0;
  int64_t width = 0;
  Type type = Type::kFloat32;
  const int32_t* ids = nullptr;          // [num_ids]
  const int32_t* offsets = nullptr;      // [num_ids + 1]
  const int32_t* row_indices = nullptr;  // [offsets[num_ids]] rows of dy
  const void* dy = nullptr;              // [any, width]
  float* dtable = nullptr;               // [any, width], added to
};
Outcome embedding_backward(const EmbeddingBackwardArgs& args, Stream stream);

/// y[i] += sum over j, in order, of weights[i, j] * x[row_indices[i, j]]; a negative index adds
/// nothing.
struct CombineRowsArgs {
  int64_t rows = 0;
  int64_t width = 0;
  int32_t terms = 0;  // of a row
  Type type = Type::kFloat32;
  const void* x = nullptr;               // [any, width]
  const int32_t* row_indices = nullptr;  // [rows, terms]
  const float* weights = nullptr;        // [rows, terms], or null: 1
  void* y = nullptr;                     // [rows, width], added to
};
Outcome combine_rows(const CombineRowsArgs& args, Stream stream);

/// dots[i, j] = a[i] . b[row_indices[i, j]]; 0 for a negative index.
struct DotRowsArgs {
  int64_t rows = 0;
  int64_t width = 0;
  int32_t terms = 0;
  Type type = Type::kFloat32;
  const void* a = nullptr;               // [rows, width]
  const void* b = nullptr;               // [any, width]
  const int32_t* row_indices = nullptr;  // [rows, terms]
  float* dots = nullptr;                 // [rows, terms]
};
Outcome dot_rows(const DotRowsArgs& args, Stream stream);

/// FP8 (e4m3) with a scale for each 128 numbers of a row: codes[i] * scale approximates x[i]. The
/// scale is the greatest magnitude of the 128 over 448; of zeros it is 1e-12 / 448. Rounding is to
/// nearest even (fp8.h). NaN stays NaN.
inline constexpr int64_t kFp8Block = 128;
struct QuantiseRowsArgs {
  int64_t rows = 0;
  int64_t width = 0;  // a multiple of 128
  Type type = Type::kBfloat16;
  const void* x = nullptr;   // [rows, width], or [any, width] where there are sources
  int64_t code_stride = 0;   // a multiple of 128, at least width; codes after `width` become 0
  void* codes = nullptr;     // [rows, code_stride]
  int64_t scale_stride = 0;  // rows or more
  float* scales = nullptr;   // [code_stride / 128, scale_stride]
  const int32_t* sources = nullptr;  // [rows] the row of x of each row of codes; null: its own
};
Outcome quantise_rows(const QuantiseRowsArgs& args, Stream stream);

/// The same for a matrix, with a scale for each 128 x 128 numbers. If `transposed_codes` is set,
/// the codes of the transposed matrix are written too. Memory after a row's codes is not touched.
struct QuantiseBlocksArgs {
  int64_t rows = 0;   // a multiple of 128
  int64_t width = 0;  // a multiple of 128
  Type type = Type::kBfloat16;
  const void* x = nullptr;  // [rows, width]
  int64_t code_stride = 0;
  void* codes = nullptr;  // [rows, code_stride]
  int64_t scale_stride = 0;
  float* scales = nullptr;  // [rows / 128, scale_stride]
  int64_t transposed_code_stride = 0;
  void* transposed_codes = nullptr;  // [width, transposed_code_stride], or null
  int64_t transposed_scale_stride = 0;
  float* transposed_scales = nullptr;  // [width / 128, transposed_scale_stride]
};
Outcome quantise_blocks(const QuantiseBlocksArgs& args, Stream stream);

/// As in ops.h, in fp32; all pointers are device memory. Up to kExpertsMax experts.
Outcome route(const RouteArgs& args, Stream stream);
Outcome route_backward(const RouteBackwardArgs& args, Stream stream);

/// Sorts for grouped GEMMs: pairs (row, choice) by expert; pairs of one expert keep their order.
struct SortByExpertArgs {
  int64_t rows = 0;
  int32_t experts_per_token = 0;
  int32_t num_experts = 0;           // up to kExpertsMax
  const int32_t* experts = nullptr;  // [rows, experts_per_token]
  int32_t* permutation =
      nullptr;  // [rows, experts_per_token] the permutation: each pair's sorted position
  int32_t* sources = nullptr;  // [rows * experts_per_token] the row of each sorted pair
  int32_t* ends = nullptr;     // [num_experts] the end of each expert's sorted rows
};
Outcome sort_by_expert(const SortByExpertArgs& args, Stream stream);

}  // namespace primerl::cuda
