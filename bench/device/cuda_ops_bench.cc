// Bound: every op here reads its operands once and writes its result once. So its time is at least
// those bytes over 4.2 TB/s (a copy on an H200), plus 2 us for a launch. Sizes are those of a 0.6B
// model: 16,384 tokens of training, 64 and 256 sequences of decoding. Data that a pass reads a
// second time (cross-entropy, the sampler) should come from the L2 cache. Expected share of the
// bound: 0.7 and more where a row is wide, 0.5 for attention with short contexts, less for the
// sampler, which is limited by computation.
//
// Prints, for each op: microseconds, bytes, and the bound over the time.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "graph/base/random.h"
#include "kernels/cuda/ops/cuda_adapters.h"
#include "kernels/cuda/ops/cuda_tuning.h"
#include "tests/device/buffer.h"

namespace primerl::cuda {
namespace {

using cuda_test::Buffer;
using cuda_test::Floats;
using cuda_test::Ints;
using cuda_test::milliseconds_of;
using cuda_test::random_floats;

constexpr double kBytesPerSecond = 4.2e12;
constexpr int kLaunches = 50;
constexpr Type kType = Type::kBfloat16;
constexpr double kElement = 2;  // bytes
constexpr int64_t kTokens = 16384, kWidth = 1024, kInner = 3072, kVocab = 151936;
constexpr HeadShape kHeads{16, 8, 128};
constexpr Tuning kTuning{.num_processors = 132};  // of an H200, as the bandwidth

void report(const std::string& name, double bytes, const std::function<Outcome(Stream)>& launch) {
  const double ms = milliseconds_of(launch, kLaunches);
  const double bound = bytes / kBytesPerSecond * 1e3;
  fmt::print("{:<44} {:>10.1f} us {:>10.1f} MB {:>6.2f} of the bound\n", name, ms * 1e3,
             bytes * 1e-6, bound / ms);
}

/// Random numbers of the bench's type: a few, repeated, since generating all would take longer than
/// the bench.
Buffer numbers(int64_t count, double scale = 1) {
  const Floats some = random_floats(1 << 16, 1, scale);
  Floats all(static_cast<size_t>(count));
  for (size_t i = 0; i < all.size(); ++i) all[i] = some[i % some.size()];
  return Buffer(kType, all);
}
Buffer zeros(int64_t count) { return Buffer(Floats(static_cast<size_t>(count), 0)); }
Ints rising(int64_t count) {
  Ints all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void norms() {
  const int64_t size = kTokens * kWidth;
  const Buffer x = numbers(size), delta = numbers(size), y = numbers(size), w = numbers(kWidth);
  const Buffer inverse = zeros(kTokens), dw = zeros(kWidth);
  const Buffer work = zeros(rms_norm_workspace(kTokens, kWidth));
  const auto bytes = static_cast<double>(size) * kElement;
  report("rms_norm + residual, 16384 x 1024", 4 * bytes, [&](Stream stream) {
    return rms_norm({kTokens, kWidth, 1e-6F, kType, x.get(), w.get(), y.get(),
                     Residual{GemmOutput{delta.get()}, x.get()}, inverse.as<float>()},
                    stream);
  });
  report("rms_norm backward + residual", 4 * bytes, [&](Stream stream) {
    return rms_norm_backward(
        {kTokens, kWidth, kType, y.get(), x.get(), w.get(), inverse.as<float>(), delta.get(),
         delta.get(), dw.as<float>(), work.as<float>()},
        stream);
  });
  report("rms_norm + residual, 64 x 1024", 4 * 64.0 * kWidth * kElement, [&](Stream stream) {
    return rms_norm({64, kWidth, 1e-6F, kType, x.get(), w.get(), y.get(),
                     Residual{GemmOutput{delta.get()}, x.get()}},
                    stream);
  });
}

void rotaries() {
  const int64_t d = kHeads.head_dim, q_width = kHeads.num_heads * d;
  const int64_t kv_width = kHeads.num_kv_heads * d, width = q_width + 2 * kv_width;
  const Buffer qkv = numbers(kTokens * width), q = numbers(kTokens * q_width);
  const Buffer keys = numbers(kTokens * kv_width), values = numbers(kTokens * kv_width);
  const Buffer dqkv = numbers(kTokens * width), w = numbers(d), positions(rising(kTokens));
  const Buffer cosine = zeros(kTokens * d / 2), sine = zeros(kTokens * d / 2), dw = zeros(d);
  const Buffer work = zeros(rotary_workspace(kTokens, kHeads.head_dim));
  const auto rows = static_cast<double>(kTokens * width) * kElement;
  const auto angles = static_cast<double>(kTokens * d) * sizeof(float);
  PagedRotaryArgs args{.rows = kTokens,
                       .heads = kHeads,
                       .rotary_dim = kHeads.head_dim,
                       .epsilon = 1e-6F,
                       .type = kType,
                       .qkv = {qkv.get()},
                       .q_weight = w.get(),
                       .k_weight = w.get(),
                       .positions = positions.as<int32_t>(),
                       .cosine = cosine.as<float>(),
                       .sine = sine.as<float>(),
                       .q = q.get()};
  args.cache = {keys.get(), values.get(), 1, kv_width, kv_width, d};
  report("qk norm + rotary + write, 16384 tokens", 2 * rows + angles,
         [&](Stream stream) { return rotary(args, stream); });
  report("qk norm + rotary backward", 3 * rows + angles, [&](Stream stream) {
    return rotary_backward(
        {kTokens, kHeads, kHeads.head_dim, 1e-6F, kType, qkv.get(), w.get(), w.get(),
         positions.as<int32_t>(), cosine.as<float>(), sine.as<float>(), q.get(), keys.get(),
         values.get(), dqkv.get(), dw.as<float>(), dw.as<float>(), work.as<float>()},
        stream);
  });
}

void swiglus() {
  const int64_t size = kTokens * kInner;
  const Buffer gate_up = numbers(2 * size), out = numbers(size), d = numbers(2 * size);
  const auto bytes = static_cast<double>(size) * kElement;
  report("swiglu, 16384 x 3072", 3 * bytes, [&](Stream stream) {
    return swiglu({kTokens, kInner, kType, {gate_up.get()}, out.get()}, stream);
  });
  report("swiglu backward", 5 * bytes, [&](Stream stream) {
    return swiglu_backward({kTokens, kInner, kType, gate_up.get(), out.get(), d.get()}, stream);
  });
}

/// The memory layout of a cache's blocks: heads within rows, as a row of the cache is written, or
/// rows within heads; and blocks in the order of the sequences, or shuffled.
struct CacheOrder {
  bool is_by_head = true;
  bool is_scattered = true;
};

void attention(int64_t rows, int32_t length, CacheOrder by = {}) {
  const int64_t d = kHeads.head_dim, kv_width = kHeads.num_kv_heads * d;
  constexpr int32_t kBlock = 16;
  const int64_t blocks = (length + kBlock - 1) / kBlock;
  const int64_t slots = rows * blocks * kBlock;
  const Buffer keys = numbers(slots * kv_width), values = numbers(slots * kv_width);
  Ints order = rising(rows * blocks);
  RandomStream random(3);
  if (by.is_scattered)
    for (size_t i = order.size(); i-- > 1;) std::swap(order[i], order[random.below(i + 1)]);
  const Buffer table(order), lengths(Ints(static_cast<size_t>(rows), length));
  const Buffer q = numbers(rows * kHeads.num_heads * d), out = numbers(rows * kHeads.num_heads * d);
  const int32_t splits = decode_splits(kTuning, rows, kHeads, length);
  const Buffer work = zeros(decode_workspace(rows, kHeads, splits));
  DecodeAttentionArgs args{.rows = rows,
                           .heads = kHeads,
                           .scale = 0.088F,
                           .type = kType,
                           .q = q.get(),
                           .block_table = table.as<int32_t>(),
                           .table_stride = blocks,
                           .lengths = lengths.as<int32_t>(),
                           .num_splits = splits,
                           .out = out.get(),
                           .workspace = work.as<float>()};
  args.cache = {keys.get(),
                values.get(),
                kBlock,
                kBlock * kv_width,
                by.is_by_head ? d : kv_width,
                by.is_by_head ? kBlock * d : d};
  const double bytes = 2.0 * kElement * static_cast<double>(rows * kv_width) * length;
  report(fmt::format("attention, {} x {} keys, {} splits, by {}{}", rows, length, splits,
                     by.is_by_head ? "head" : "place", by.is_scattered ? "" : ", in order"),
         bytes, [&](Stream stream) { return decode_attention(args, stream); });
  if (by.is_by_head) return;
  const Buffer qkv = numbers(rows * (kHeads.num_heads * d + 2 * kv_width)), weight = numbers(d);
  const Buffer angles(Floats(static_cast<size_t>(length * d / 2), 0.7F));
  const PagedRotaryArgs rope{.rows = rows,
                             .heads = kHeads,
                             .rotary_dim = kHeads.head_dim,
                             .epsilon = 1e-6F,
                             .type = kType,
                             .qkv = {qkv.get()},
                             .q_weight = weight.get(),
                             .k_weight = weight.get(),
                             .cosine = angles.as<float>(),
                             .sine = angles.as<float>()};
  report("  with qk norm, rotary and write", bytes,
         [&](Stream stream) { return rope_decode_attention(rope, args, stream); });
}

void cross_entropies() {
  constexpr int64_t kRows = 2048;
  const Buffer logits = numbers(kRows * kVocab, 5), labels(Ints(kRows, 7));
  const Buffer by(Floats(kRows, 1e-6F)), logprobs = zeros(kRows);
  // Read twice and written once: the second read of 300 KB per row may come from the L2 cache.
  const double bytes = 2 * kElement * static_cast<double>(kRows * kVocab);
  report("cross_entropy in place, 2048 x 151936", bytes, [&](Stream stream) {
    return cross_entropy({.rows = kRows,
                          .vocab_size = kVocab,
                          .row_stride = kVocab,
                          .type = kType,
                          .logits = logits.get(),
                          .labels = labels.as<int32_t>(),
                          .coefficients = by.as<float>(),
                          .logprobs = logprobs.as<float>()},
                         stream);
  });
}

/// Samples from logits of `type`: rows split over blocks, as in the engine, or one block per row.
void samples(int64_t rows, const std::string& name, const SamplingRow& setting, Type type = kType,
             bool is_shared = false) {
  const Floats some = random_floats(1 << 16, 1, 5);
  Floats all(static_cast<size_t>(rows * kVocab));
  for (size_t i = 0; i < all.size(); ++i) all[i] = some[i % some.size()];
  const Buffer logits(type, all);
  const Buffer settings(std::vector<SamplingRow>(static_cast<size_t>(rows), setting));
  const Buffer indices(Ints(static_cast<size_t>(rows), 3)), tokens(indices.ints());
  const Buffer logprobs = zeros(rows);
  const Buffer work = zeros(sample_workspace(rows) / static_cast<int64_t>(sizeof(float)));
  const double element = type == Type::kFloat32 ? sizeof(float) : kElement;
  const double bytes = element * static_cast<double>(rows * kVocab);
  report(fmt::format("sample {}, {} rows", name, rows), bytes, [&](Stream stream) {
    return sample({.rows = rows,
                   .vocab_size = kVocab,
                   .row_stride = kVocab,
                   .type = type,
                   .logits = logits.get(),
                   .settings = settings.as<SamplingRow>(),
                   .indices = indices.as<int32_t>(),
                   .tokens = tokens.as<int32_t>(),
                   .logprobs = logprobs.as<float>(),
                   .workspace = is_shared ? work.get() : nullptr},
                  stream);
  });
}

void optimizer() {
  constexpr int64_t kCount = 100'000'000;
  const Buffer w = zeros(kCount), g = zeros(kCount), m = zeros(kCount), v = zeros(kCount);
  const Buffer low(std::vector<uint16_t>(static_cast<size_t>(kCount)));
  MasterAdamwArgs args;
  args.step = {kCount, w.as<float>(), g.as<float>(), m.as<float>(), v.as<float>(), 1,   1e-3F,
               0.1F,   0.9F,          0.95F,         1e-8F,         0.1F,          0.1F};
  args.bf16_weights = low.get();
  report("adamw with bf16, 1e8 parameters", 30.0 * kCount,
         [&](Stream stream) { return adamw(args, stream); });
}

/// The LoRA deltas of 16 adapters of rank 16 for the widest GEMM, and for the gradient of its
/// input.
void low_rank_gemms() {
  constexpr int64_t kTerms = 16, kSlots = 16;
  std::vector<AdapterTile> tiles;
  for (int64_t first = 0; first < kTokens; first += kLowRankTileRows)
    tiles.push_back({static_cast<int32_t>(first), static_cast<int32_t>(kLowRankTileRows),
                     static_cast<int32_t>(first * kSlots / kTokens)});
  const Buffer on_tiles(tiles), x = numbers(kTokens * kTerms);
  for (const int64_t columns : {int64_t{1024}, int64_t{3072}})
    for (const bool is_transposed : {false, true}) {
      const Buffer weights = numbers(kSlots * kTerms * columns), y = numbers(kTokens * columns);
      report(fmt::format("add_low_rank_gemms, 16384 x {}{}", columns,
                         is_transposed ? ", transposed" : ""),
             2.0 * kElement * static_cast<double>(kTokens * columns), [&](Stream stream) {
               return add_low_rank_gemms({.terms = kTerms,
                                          .columns = columns,
                                          .num_tiles = std::ssize(tiles),
                                          .tiles = on_tiles.as<AdapterTile>(),
                                          .x = x.get(),
                                          .x_stride = kTerms,
                                          .weights = weights.get(),
                                          .slot_stride = kTerms * columns,
                                          .is_transposed = is_transposed,
                                          .y = y.get(),
                                          .y_stride = columns},
                                         stream);
             });
    }
}

void dropout() {
  const int64_t size = kTokens * kWidth;
  const Buffer x = numbers(size), y = numbers(size);
  const Buffer rows(std::vector<DropRow>(static_cast<size_t>(kTokens), {3, 1.1F, 6000}));
  report("drop_rows, 16384 x 1024", 2.0 * kElement * static_cast<double>(size), [&](Stream stream) {
    return drop_rows({.rows = kTokens,
                      .width = kWidth,
                      .type = kType,
                      .module = 1,
                      .dropped = rows.as<DropRow>(),
                      .x = x.get(),
                      .y = y.get()},
                     stream);
  });
}

void rows_by_number() {
  const int64_t size = kTokens * kWidth;
  const Buffer x = numbers(size), y = numbers(8 * size), sums = numbers(size);
  Ints order = rising(8 * kTokens);
  for (int32_t& at : order) at %= static_cast<int32_t>(kTokens);
  const Buffer sources(order), places(rising(8 * kTokens)), dots = zeros(8 * kTokens);
  const Buffer weights(Floats(static_cast<size_t>(8 * kTokens), 0.1F));
  const auto bytes = static_cast<double>(size) * kElement;
  report("gather_rows, 16384 x 1024 to 8 experts", 9 * bytes, [&](Stream stream) {
    return gather_rows({.rows = 8 * kTokens,
                        .width = kWidth,
                        .type = kType,
                        .x = x.get(),
                        .sources = sources.as<int32_t>(),
                        .y = y.get()},
                       stream);
  });
  report("combine_rows, from 8 experts", 10 * bytes, [&](Stream stream) {
    return combine_rows(
        {kTokens, kWidth, 8, kType, y.get(), places.as<int32_t>(), weights.as<float>(), sums.get()},
        stream);
  });
  report("dot_rows, 8 experts", 9 * bytes, [&](Stream stream) {
    return dot_rows(
        {kTokens, kWidth, 8, kType, x.get(), y.get(), places.as<int32_t>(), dots.as<float>()},
        stream);
  });
  const Buffer ids(rising(kTokens)), offsets(rising(kTokens + 1)), table = zeros(size);
  report(
      "embedding_backward, 16384 ids", bytes + 8.0 * static_cast<double>(size), [&](Stream stream) {
        return embedding_backward({kTokens, kWidth, kType, ids.as<int32_t>(), offsets.as<int32_t>(),
                                   ids.as<int32_t>(), x.get(), table.as<float>()},
                                  stream);
      });
  constexpr RouterShape kRouter{.num_experts = 128, .experts_per_token = 8, .is_normalized = true};
  const Buffer logits(random_floats(kTokens * 128, 5, 3)), scores = zeros(kTokens * 128);
  const Buffer experts(rising(kTokens * 8)), chosen = zeros(kTokens * 8);
  report("route, 16384 x 128 experts", 8.0 * kTokens * 128, [&](Stream stream) {
    return route({kTokens, kRouter, nullptr, logits.as<float>(), scores.as<float>(),
                  experts.as<int32_t>(), chosen.as<float>()},
                 stream);
  });
}

/// 64 rows of 16 adapters, beside a GEMM of `terms` to parts of those widths. Each launch reads the
/// adapters of another layer, as a step does, so that they do not fit the L2 cache.
void adapters(const std::string& name, int32_t rank, int64_t terms,
              const std::vector<int64_t>& widths) {
  constexpr int64_t kRows = 64, kAdapters = 16;
  const int64_t num_layers = 448 / rank;
  AddAdaptersArgs args{
      .terms = terms, .type = kType, .num_tiles = kRows / 8 + kAdapters, .rank_max = rank};
  int64_t at = 0;
  for (const int64_t width : widths) {
    args.parts[args.num_parts++] = {args.columns, width, at, at + terms, 1};
    args.columns += width;
    at += terms + width;
  }
  args.slot_stride = rank * at;
  std::vector<AdapterTile> tiles(static_cast<size_t>(args.num_tiles));
  for (int32_t i = 0; i < kAdapters; ++i) tiles[static_cast<size_t>(i)] = {4 * i, 4, i, rank, 1, 1};
  const Buffer on_tiles(tiles), x = numbers(kRows * terms), y = numbers(kRows * args.columns);
  const Buffer slots = numbers(num_layers * kAdapters * args.slot_stride, 0.1);
  const Buffer workspace = zeros(adapters_workspace(args));
  args.tiles = on_tiles.as<AdapterTile>();
  args.x = x.get();
  args.y = y.get();
  args.workspace = workspace.as<float>();
  const auto of_rows = static_cast<double>(kRows * (terms + 2 * args.columns));
  const auto of_adapters = static_cast<double>(kAdapters * args.slot_stride);
  int64_t layer = 0;
  report(fmt::format("add_adapters, {}, 16 of rank {}", name, rank),
         kElement * (of_rows + of_adapters), [&](Stream stream) {
           layer = (layer + 1) % num_layers;
           args.slots = slots.as<uint16_t>() + layer * kAdapters * args.slot_stride;
           return add_adapters(args, stream);
         });
}

void all() {
  norms();
  rotaries();
  swiglus();
  attention(1, 4096);
  attention(1, 32768);
  attention(64, 192);
  attention(64, 4096);
  attention(256, 192);
  for (const bool is_by_head : {true, false})
    for (const bool is_scattered : {true, false}) attention(64, 1024, {is_by_head, is_scattered});
  cross_entropies();
  samples(64, "plain", {.seed = 1});
  for (const int64_t rows : {1, 64, 256})
    samples(rows, "plain fp32, shared out", {.seed = 1}, Type::kFloat32, true);
  samples(64, "greedy", {.seed = 1, .inverse_temperature = 0});
  samples(64, "top_p 0.95", {.seed = 1, .top_p = 0.95});
  samples(64, "top_k 50", {.seed = 1, .top_k = 50});
  optimizer();
  rows_by_number();
  low_rank_gemms();
  dropout();
  for (const int32_t rank : {16, 64}) {
    adapters("qkv", rank, kWidth, {2048, 1024, 1024});
    adapters("out", rank, 2048, {kWidth});
    adapters("gate_up", rank, kWidth, {kInner, kInner});
    adapters("down", rank, kInner, {kWidth});
  }
}

}  // namespace
}  // namespace primerl::cuda

int main() {
  try {
    primerl::cuda::all();
  } catch (const std::exception& fault) {
    fmt::print(stderr, "cuda_ops_bench: {}\n", fault.what());
    return 1;
  }
  return 0;
}
