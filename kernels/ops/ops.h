/// The CPU operations of a decoder: norms, rotary embedding, attention, SwiGLU, expert routing,
/// softmax statistics, AdamW, and a GEMM whose rows do not depend on each other. Plain pointers,
/// row-major fp32, no allocation, no thread.
///
/// Every row of an output depends on its own inputs only, in one fixed order of additions: other
/// rows of the batch, chunking and the split over threads never change a bit. `cpu_ops()` is the
/// table for the best instruction set of this machine (AVX-512, AVX2 or the baseline); all follow
/// the same order. Callers that use threads split `rows` (or spans, or heads) themselves. If a
/// gradient is a sum over rows ("added to"), callers give each part of the rows its own sum. The
/// choice of parts must not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>

namespace primerl {

/// y = x / rms(x) * weight; variant (a): normalise in fp32, then scale.
struct RmsNormArgs {
  int64_t rows = 0;
  int64_t width = 0;
  float epsilon = 0;
  const float* x = nullptr;       // [rows, width]
  const float* weight = nullptr;  // [width]
  float* y = nullptr;             // [rows, width]
  float* inverse_rms = nullptr;   // [rows], kept for backward
};

struct RmsNormBackwardArgs {
  int64_t rows = 0;
  int64_t width = 0;
  const float* dy = nullptr;           // [rows, width]
  const float* x = nullptr;            // [rows, width]
  const float* weight = nullptr;       // [width]
  const float* inverse_rms = nullptr;  // [rows]
  float* dx = nullptr;                 // [rows, width], added to
  float* dweight = nullptr;            // [width], added to
};

/// sums += the sum of each column.
struct ColumnSumsArgs {
  int64_t rows = 0;
  int64_t columns = 0;
  const float* x = nullptr;  // [rows, x_stride]
  int64_t x_stride = 0;
  float* sums = nullptr;  // [columns], added to
};

/// Sizes of the attention heads. head_dim is a multiple of 8, at most kHeadDimMax.
struct HeadShape {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;
};
inline constexpr int32_t kHeadDimMax = 256;

/// Optional per-head RMS norm of q and k, then rotary embedding (half-split) of the first
/// rotary_dim channels of each head; k and v go to the rows `cache_rows` of the cache.
struct RotaryArgs {
  int64_t rows = 0;
  HeadShape heads;
  int32_t rotary_dim = 0;  // even, at most head_dim
  float epsilon = 0;
  const float* qkv = nullptr;           // [rows, (num_heads + 2 num_kv_heads) * head_dim]
  const float* q_weight = nullptr;      // [head_dim], or null: no norm
  const float* k_weight = nullptr;      // [head_dim], or null: no norm
  const int32_t* positions = nullptr;   // [rows]
  const int32_t* cache_rows = nullptr;  // [rows]
  const float* cosine = nullptr;        // [positions, rotary_dim / 2]
  const float* sine = nullptr;          // [positions, rotary_dim / 2]
  float* q = nullptr;                   // [rows, num_heads * head_dim]
  float* keys = nullptr;                // [cache rows, num_kv_heads * head_dim]
  float* values = nullptr;              // [cache rows, num_kv_heads * head_dim]
};

struct RotaryBackwardArgs {
  int64_t rows = 0;
  HeadShape heads;
  int32_t rotary_dim = 0;
  float epsilon = 0;
  const float* qkv = nullptr;  // as forward
  const float* q_weight = nullptr;
  const float* k_weight = nullptr;
  const int32_t* positions = nullptr;
  const float* cosine = nullptr;
  const float* sine = nullptr;
  const float* dq = nullptr;       // [rows, num_heads * head_dim]
  const float* dkeys = nullptr;    // [rows, num_kv_heads * head_dim]
  const float* dvalues = nullptr;  // [rows, num_kv_heads * head_dim]
  float* dqkv = nullptr;           // [rows, (num_heads + 2 num_kv_heads) * head_dim], written
  float* dq_weight = nullptr;      // [head_dim], added to
  float* dk_weight = nullptr;      // [head_dim], added to
};

/// Queries of one sequence. Query i (row query_begin + i) attends to the keys 0 .. num_cached + i,
/// and key j is the cache row kv_rows[kv_offset + j].
struct AttentionSpan {
  int32_t query_begin = 0;
  int32_t num_queries = 0;
  int32_t num_cached = 0;  // keys before the first query's own key
  int32_t kv_offset = 0;
};

struct AttentionArgs {
  const AttentionSpan* spans = nullptr;  // [num_spans]
  int64_t num_spans = 0;
  HeadShape heads;
  int32_t head_begin = 0;  // query heads [head_begin, head_end) are computed
  int32_t head_end = 0;
  float scale = 0;
  const int32_t* kv_rows = nullptr;
  const float* q = nullptr;       // [rows, num_heads * head_dim]
  const float* keys = nullptr;    // [cache rows, num_kv_heads * head_dim]
  const float* values = nullptr;  // [cache rows, num_kv_heads * head_dim]
  float* out = nullptr;           // [rows, num_heads * head_dim]
  float* log_sum_exp = nullptr;   // [rows, num_heads], or null
};

/// Heads of one key-value head must be computed by one call: they add to the same rows.
struct AttentionBackwardArgs {
  AttentionArgs forward;
  const float* dout = nullptr;  // [rows, num_heads * head_dim]
  float* dq = nullptr;          // [rows, num_heads * head_dim], written
  float* dkeys = nullptr;       // [cache rows, num_kv_heads * head_dim], added to
  float* dvalues = nullptr;     // [cache rows, num_kv_heads * head_dim], added to
};

/// activated = silu(gate) * up
struct SwigluArgs {
  int64_t rows = 0;
  int64_t width = 0;
  const float* gate_up = nullptr;  // [rows, 2 width], gate first
  float* activated = nullptr;      // [rows, width]
};

struct SwigluBackwardArgs {
  int64_t rows = 0;
  int64_t width = 0;
  const float* gate_up = nullptr;     // [rows, 2 width]
  const float* dactivated = nullptr;  // [rows, width]
  float* dgate_up = nullptr;          // [rows, 2 width], written
};

/// How the experts of a token are chosen and weighted.
struct RouterShape {
  int32_t num_experts = 0;  // at most kExpertsMax
  int32_t experts_per_token = 0;
  bool is_sigmoid = false;     // a score is sigmoid(logit), else the softmax over all experts
  int32_t num_groups = 1;      // divides num_experts
  int32_t groups_kept = 1;     // keep the groups with the greatest sum of their two best choices
  bool is_normalized = false;  // the weights of a token are divided by their sum
  float epsilon = 0;           // added to that sum
  float scale = 1;             // multiplies the weights
};
inline constexpr int32_t kExpertsMax = 1024;

/// Experts of each row: those with the greatest choice in the kept groups, where choice = score +
/// selection_bias; among equals, the lower id first. Their weights depend only on the scores. Order
/// of experts_per_token: by falling choice.
struct RouteArgs {
  int64_t rows = 0;
  RouterShape shape;
  const float* selection_bias = nullptr;  // [num_experts], or null
  const float* logits = nullptr;          // [rows, num_experts]
  float* scores = nullptr;                // [rows, num_experts], kept for backward
  int32_t* experts = nullptr;             // [rows, experts_per_token]
  float* weights = nullptr;               // [rows, experts_per_token]
};

/// The choice of experts is constant: the gradient reaches the logits through the weights.
struct RouteBackwardArgs {
  int64_t rows = 0;
  RouterShape shape;
  const float* scores = nullptr;     // as forward
  const int32_t* experts = nullptr;  // as forward
  const float* dweights = nullptr;   // [rows, experts_per_token]
  float* dlogits = nullptr;          // [rows, num_experts], written
};

/// y[i] = scale[i] * x[sources[i]]
struct GatherRowsArgs {
  int64_t rows = 0;
  int64_t width = 0;
  const float* x = nullptr;          // [any, width]
  const int32_t* sources = nullptr;  // [rows]
  const float* scale = nullptr;      // [rows], or null: 1
  float* y = nullptr;                // [rows, width]
};

/// y[i] += sum over j, in order, of weights[i, j] * x[places[i, j]]
struct CombineRowsArgs {
  int64_t rows = 0;
  int64_t width = 0;
  int32_t terms = 0;                // of a row
  const float* x = nullptr;         // [any, width]
  const int32_t* places = nullptr;  // [rows, terms]
  const float* weights = nullptr;   // [rows, terms], or null: 1
  float* y = nullptr;               // [rows, width], added to
};

/// dots[i, j] = a[i] . b[places[i, j]]
struct DotRowsArgs {
  int64_t rows = 0;
  int64_t width = 0;
  int32_t terms = 0;
  const float* a = nullptr;         // [rows, width]
  const float* b = nullptr;         // [any, width]
  const int32_t* places = nullptr;  // [rows, terms]
  float* dots = nullptr;            // [rows, terms]
};

/// The distribution softmax(logits * inverse_temperature) of one row.
struct SoftmaxArgs {
  int64_t vocab_size = 0;
  float inverse_temperature = 1;
  const float* logits = nullptr;  // [vocab_size]
  float* weights = nullptr;       // [vocab_size] e^(z - largest), or null
};

struct SoftmaxStats {
  float largest = 0;         // of logits * inverse_temperature
  float sum = 0;             // of e^(z - largest)
  float log_normalizer = 0;  // log-probability of token y = z_y - log_normalizer
  float entropy = 0;         // nats
};

/// logits := coefficient * (1[label] - probability): the gradient of `coefficient` * log p(label),
/// times the inverse temperature.
struct SoftmaxBackwardArgs {
  int64_t vocab_size = 0;
  float inverse_temperature = 1;
  float log_normalizer = 0;
  float coefficient = 0;
  int32_t label = 0;
  float* logits = nullptr;  // [vocab_size], overwritten
};

/// One AdamW step over `count` parameters; moments are updated in place.
struct AdamwArgs {
  int64_t count = 0;
  float* weights = nullptr;
  const float* gradients = nullptr;
  float* first_moments = nullptr;
  float* second_moments = nullptr;
  float gradient_scale = 1;  // from gradient clipping
  float lr = 0;
  float weight_decay = 0;
  float beta1 = 0;
  float beta2 = 0;
  float epsilon = 0;
  float correction1 = 1;  // 1 - beta1^step
  float correction2 = 1;  // 1 - beta2^step
};

/// 16 random bits for each number of some rows: for number 4 b + i of row r, the bits [16 i, 16 i +
/// 16) of mix(keys[r], b), as in random.h.
struct DrawArgs {
  int64_t rows = 0;
  int64_t columns = 0;
  const uint64_t* keys = nullptr;  // [rows]
  uint16_t* draws = nullptr;       // [rows, drawn_columns(columns)]
};
constexpr int64_t drawn_columns(int64_t columns) { return (columns + 15) / 16 * 16; }

/// y = 0 if a number's random bits are below the threshold, else scale * x.
struct DropOutArgs {
  int64_t rows = 0;
  int64_t columns = 0;
  const uint16_t* draws = nullptr;  // [rows, drawn_columns(columns)]
  int32_t threshold = 0;            // up to 65536
  float scale = 1;
  bool adds = false;         // y += that
  const float* x = nullptr;  // [rows, columns]
  float* y = nullptr;        // [rows, columns], not x
};

/// Columns of a panel of packed weights, and terms of one chain of additions.
inline constexpr int64_t kLinearPanel = 16;
inline constexpr int64_t kLinearBlock = 192;

/// Weights in memory. Weight of column n and term k: weight[n * column_stride + k * term_stride].
struct LinearWeights {
  const float* weight = nullptr;
  int64_t column_stride = 0;
  int64_t term_stride = 1;
};

/// Weights in the layout that linear_rows reads fastest: panels of kLinearPanel columns, each
/// [terms, kLinearPanel]. Writes columns [column_begin, column_end); weights.weight points to the
/// first of them. Lanes of the last panel after the matrix must already be 0.
struct PackLinearArgs {
  int64_t column_begin = 0;
  int64_t column_end = 0;
  int64_t terms = 0;
  LinearWeights weights;
  float* packed = nullptr;  // [packed_linear_floats(columns, terms)]
};
constexpr int64_t linear_panels_of(int64_t columns) {
  return (columns + kLinearPanel - 1) / kLinearPanel;
}
constexpr int64_t packed_linear_floats(int64_t columns, int64_t terms) {
  return linear_panels_of(columns) * kLinearPanel * terms;
}

/// Weights rounded to bf16 (bf16.h) in the layout that linear_bf16 reads fastest: panels of
/// kLinearPanel columns, each [padded terms / 2, kLinearPanel, 2], so that two terms of a column
/// are adjacent. Terms are padded with zeros to a multiple of kBf16Chunk. Writes the columns
/// [column_begin, column_end), and lanes after the matrix must already be 0.
struct PackBf16Args {
  int64_t column_begin = 0;
  int64_t column_end = 0;
  int64_t terms = 0;
  LinearWeights weights;       // at the first of those columns
  uint16_t* packed = nullptr;  // [packed_bf16_count(columns, terms)]
};
inline constexpr int64_t kBf16Chunk = 32;  // terms of one sum
constexpr int64_t padded_bf16_terms(int64_t terms) {
  return (terms + kBf16Chunk - 1) / kBf16Chunk * kBf16Chunk;
}
constexpr int64_t packed_bf16_count(int64_t columns, int64_t terms) {
  return linear_panels_of(columns) * kLinearPanel * padded_bf16_terms(terms);
}

/// y = residual + bias + x * weight', row-invariant: every y is
///   ((residual + bias) + block_0) + block_1 + ...,
/// block_j is the sum of terms [192 j, 192 j + 192), from 0 and in order, each added by one fused
/// multiply-add. So no bit depends on the number of rows, columns or panels of a call, on terms
/// that are 0 at the end, or on the instruction set (if it has fused multiply-add). Callers that
/// use threads give each thread some rows or some panels. It copies x of some rows and a block of
/// weights into thread_scratch(). Without terms, y = residual + bias.
struct LinearRowsArgs {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t terms = 0;
  int64_t panel_begin = 0;  // computes the columns of panels [panel_begin, panel_end)
  int64_t panel_end = 0;
  const float* x = nullptr;  // x of row r and term k: x[r * x_stride + k * x_term_stride]
  int64_t x_stride = 0;
  int64_t x_term_stride = 1;
  // One of: weights packed by pack_linear; weights of the transposed GEMM (columns as terms) packed
  // by pack_linear; unpacked weights. The last two are packed block by block.
  const float* packed = nullptr;
  const float* packed_transposed = nullptr;
  LinearWeights weights;
  // With is_bf16 set, packed weights are bf16 (pack_bf16) instead, and linear_bf16 computes.
  bool is_bf16 = false;
  const uint16_t* packed_bf16 = nullptr;
  const uint16_t* packed_bf16_transposed = nullptr;
  const float* bias = nullptr;      // [columns], or null
  const float* residual = nullptr;  // [rows, columns], or null; may be y
  int64_t residual_stride = 0;
  float* y = nullptr;  // [rows, columns]
  int64_t y_stride = 0;
};

/// One block of numbers with one scale: `runs` runs of `count` numbers each, `stride` apart. y =
/// the numbers that x has as e4m3 (fp8.h). Returns the greatest magnitude, NaN if a number is NaN;
/// if it is not finite, every y is NaN.
struct RoundFp8BlockArgs {
  int64_t runs = 0;
  int64_t count = 0;
  int64_t stride = 0;
  const float* x = nullptr;
  float* y = nullptr;  // may be x
};

/// The same for rows whose every 128 numbers, and those left at the end, are a block.
struct RoundFp8RowsArgs {
  int64_t rows = 0;
  int64_t width = 0;
  const float* x = nullptr;  // [rows, width]
  float* y = nullptr;        // [rows, width], may be x
};

/// Memory of the calling thread for the copies of one GEMM, aligned to 64 bytes: one for all
/// instruction sets, since it is part of the stack of every thread.
inline constexpr int64_t kThreadScratchBytes = int64_t{800} << 10;
void* thread_scratch();

struct CpuOps {
  const char* name;
  void (*rms_norm)(const RmsNormArgs&);
  void (*rms_norm_backward)(const RmsNormBackwardArgs&);
  void (*column_sums)(const ColumnSumsArgs&);
  void (*rotary)(const RotaryArgs&);
  void (*rotary_backward)(const RotaryBackwardArgs&);
  void (*attention)(const AttentionArgs&);
  void (*attention_backward)(const AttentionBackwardArgs&);
  void (*swiglu)(const SwigluArgs&);
  void (*swiglu_backward)(const SwigluBackwardArgs&);
  void (*route)(const RouteArgs&);
  void (*route_backward)(const RouteBackwardArgs&);
  void (*gather_rows)(const GatherRowsArgs&);
  void (*combine_rows)(const CombineRowsArgs&);
  void (*dot_rows)(const DotRowsArgs&);
  SoftmaxStats (*softmax)(const SoftmaxArgs&);
  void (*softmax_backward)(const SoftmaxBackwardArgs&);
  void (*adamw)(const AdamwArgs&);
  void (*draw)(const DrawArgs&);
  void (*apply_dropout)(const DropOutArgs&);
  /// The sum of the squares of `count` floats.
  double (*sum_of_squares)(const float* x, int64_t count);
  void (*pack_linear)(const PackLinearArgs&);
  void (*linear_rows)(const LinearRowsArgs&);
  void (*pack_bf16)(const PackBf16Args&);
  /// y of bf16 numbers: x and weights are rounded to bf16, terms are exact and sums are fp32, in
  /// the order of AMX's TDPBF16PS (bf16.h). Row-invariant, with equal bits on every processor.
  /// Copies are in thread_scratch().
  void (*linear_bf16)(const LinearRowsArgs&);
  float (*round_fp8_block)(const RoundFp8BlockArgs&);
  void (*round_fp8_rows)(const RoundFp8RowsArgs&);
};

/// The table for this machine.
const CpuOps& cpu_ops();
/// The table that runs on any machine, for tests that compare the two.
const CpuOps& baseline_cpu_ops();
/// All tables that this machine can run, from the baseline to cpu_ops().
std::span<const CpuOps* const> all_cpu_ops();
/// Makes cpu_ops() return `ops`, which must stay valid, and returns the table from before. For
/// tests that compare instruction sets and for benches that measure operations: objects that exist
/// keep the table that they have.
const CpuOps& replace_cpu_ops(const CpuOps& ops);

}  // namespace primerl
