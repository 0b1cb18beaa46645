// Paged decode attention compared with the CPU's attention over the keys that each row attends to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "graph/base/random.h"
#include "tests/device/adapted_rows.h"
#include "tests/device/memory.h"

namespace primerl::cuda {
namespace {

using cuda_test::AdaptedRows;
using cuda_test::Buffer;
using cuda_test::expect_near;
using cuda_test::expect_one_answer;
using cuda_test::Floats;
using cuda_test::Ints;
using cuda_test::name_of;
using cuda_test::num_seeds;
using cuda_test::random_floats;
using cuda_test::rounded;
using cuda_test::Tolerance;
using cuda_test::tolerance_of;
using ::testing::HasSubstr;

constexpr Type kTypes[] = {Type::kFloat32, Type::kBfloat16};
constexpr uint64_t kSeeds = 60;

struct DecodeCase {
  Type type = Type::kFloat32;
  uint64_t seed = 0;
  int64_t rows = 1;
  HeadShape heads = {};
  int32_t length_max = 1;
  int32_t window = 0;
  bool has_sinks = false;
  bool are_heads_outside = false;
  int32_t block_size = 16;
  int32_t num_splits = 1;

  std::string name() const {
    return std::string(name_of(type)) + ", seed " + std::to_string(seed) + ", " +
           std::to_string(rows) + " rows up to " + std::to_string(length_max) + ", " +
           std::to_string(heads.num_heads) + "/" + std::to_string(heads.num_kv_heads) +
           " heads of " + std::to_string(heads.head_dim) + ", window " + std::to_string(window) +
           ", sinks " + std::to_string(has_sinks) + ", blocks of " + std::to_string(block_size) +
           ", " + std::to_string(num_splits) + " splits";
  }
};

template <class T, size_t kCount>
T one_of(const T (&values)[kCount], RandomStream& random) {
  return values[random.below(kCount)];
}

DecodeCase random_case(Type type, uint64_t seed) {
  RandomStream random(seed);
  constexpr int64_t rows[] = {1, 2, 7, 20};
  constexpr int32_t groups[] = {1, 2, 3, 4, 5, 7, 8, 12, 16}, kv_heads[] = {1, 2, 8};
  constexpr int32_t dims[] = {64, 128, 256}, sizes[] = {16, 32, 64, 256};
  constexpr int32_t lengths[] = {1, 3, 31, 64, 65, 500, 1100}, windows[] = {0, 0, 1, 5, 64, 129};
  constexpr int32_t splits[] = {1, 1, 2, 3, 8, 64};
  DecodeCase one;
  one.type = type;
  one.seed = seed;
  one.rows = one_of(rows, random);
  one.heads.num_kv_heads = one_of(kv_heads, random);
  one.heads.num_heads = one.heads.num_kv_heads * one_of(groups, random);
  one.heads.head_dim = one_of(dims, random);
  one.length_max = one_of(lengths, random);
  one.window = one_of(windows, random);
  one.has_sinks = random.below(3) == 0;
  one.are_heads_outside = random.below(2) == 0;
  one.block_size = one_of(sizes, random);
  one.num_splits = one_of(splits, random);
  return one;
}

/// Lengths from 0 to length_max, blocks in random order; slots as the CPU numbers its rows.
struct Context {
  Ints lengths, table;
  int64_t table_stride = 0;
  int64_t num_slots = 0;

  explicit Context(const DecodeCase& one) {
    RandomStream random(mix(one.seed, 1));
    table_stride = (one.length_max + one.block_size - 1) / one.block_size + 1;
    const auto blocks = static_cast<size_t>(one.rows * table_stride);
    table.resize(blocks);
    std::iota(table.begin(), table.end(), 0);
    for (size_t i = blocks; i-- > 1;) std::swap(table[i], table[random.below(i + 1)]);
    for (int64_t row = 0; row < one.rows; ++row)
      lengths.push_back(static_cast<int32_t>(random.below(one.length_max + 1ULL)));
    lengths[0] = one.length_max;
    num_slots = static_cast<int64_t>(blocks) * one.block_size;
  }
  int32_t slot(const DecodeCase& one, int64_t row, int32_t key) const {
    return table[static_cast<size_t>(row * table_stride + key / one.block_size)] * one.block_size +
           key % one.block_size;
  }
};

/// Calls body(from, to) for each head of each slot: offset of its channels in the CPU's layout,
/// [slots, heads, channels], and in the layout of the cache.
template <class Body>
void for_heads(const DecodeCase& one, const PagedCache& cache, int64_t num_slots,
               const Body& body) {
  const int64_t d = one.heads.head_dim, width = one.heads.num_kv_heads * d;
  for (int64_t slot = 0; slot < num_slots; ++slot)
    for (int64_t h = 0; h < one.heads.num_kv_heads; ++h)
      body(slot * width + h * d, slot / one.block_size * cache.block_stride +
                                     slot % one.block_size * cache.row_stride +
                                     h * cache.head_stride);
}

Floats paged(const DecodeCase& one, const Context& context, const PagedCache& cache,
             const Floats& dense) {
  Floats whole(dense.size());
  for_heads(one, cache, context.num_slots, [&](int64_t from, int64_t to) {
    std::copy_n(dense.begin() + from, one.heads.head_dim, whole.begin() + to);
  });
  return whole;
}

/// The inverse.
Floats dense(const DecodeCase& one, const Context& context, const PagedCache& cache,
             const Floats& whole) {
  Floats all(whole.size());
  for_heads(one, cache, context.num_slots, [&](int64_t to, int64_t from) {
    std::copy_n(whole.begin() + from, one.heads.head_dim, all.begin() + to);
  });
  return all;
}

PagedCache cache_of(const DecodeCase& one) {
  const int64_t d = one.heads.head_dim, width = one.heads.num_kv_heads * d;
  PagedCache cache;
  cache.block_size = one.block_size;
  cache.block_stride = width * one.block_size;
  cache.row_stride = one.are_heads_outside ? d : width;
  cache.head_stride = one.are_heads_outside ? d * one.block_size : d;
  return cache;
}

struct DecodeOperands {
  Floats q, keys, values, sinks;
};

/// Row by row, over the keys in the window; a sink reduces the weights of the others.
Floats cpu_decode(const DecodeCase& one, const Context& context, const DecodeOperands& host,
                  float scale) {
  const int64_t heads = one.heads.num_heads, d = one.heads.head_dim;
  Floats out(host.q.size(), 0), log_sums(static_cast<size_t>(heads));
  for (int64_t row = 0; row < one.rows; ++row) {
    const int32_t length = context.lengths[static_cast<size_t>(row)];
    if (length == 0) continue;
    Ints seen;
    for (int32_t key = one.window > 0 ? std::max(0, length - one.window) : 0; key < length; ++key)
      seen.push_back(context.slot(one, row, key));
    const AttentionSpan span{0, 1, static_cast<int32_t>(seen.size()) - 1, 0};
    float* to = out.data() + row * heads * d;
    cpu_ops().attention({&span, 1, one.heads, 0, one.heads.num_heads, scale, seen.data(),
                         host.q.data() + row * heads * d, host.keys.data(), host.values.data(), to,
                         log_sums.data()});
    if (!one.has_sinks) continue;
    for (int64_t h = 0; h < heads; ++h) {
      const auto head = static_cast<size_t>(h);
      const float share = 1 / (1 + std::exp(host.sinks[head] - log_sums[head]));
      for (int64_t c = 0; c < d; ++c) to[h * d + c] *= share;
    }
  }
  return out;
}

DecodeOperands random_operands(const DecodeCase& one, const Context& context) {
  const int64_t d = one.heads.head_dim, width = one.heads.num_kv_heads * d;
  const int64_t queries = one.rows * one.heads.num_heads * d;
  DecodeOperands host;
  host.q = rounded(one.type, random_floats(queries, mix(one.seed, 2), 2));
  host.keys = rounded(one.type, random_floats(context.num_slots * width, mix(one.seed, 3), 2));
  host.values = rounded(one.type, random_floats(context.num_slots * width, mix(one.seed, 4)));
  host.sinks = random_floats(one.heads.num_heads, mix(one.seed, 5), 4);
  return host;
}

/// A case in memory of the operation, as pointed to by `args`.
struct DecodeMemory {
  DecodeMemory(const DecodeCase& one, const Context& context, const DecodeOperands& host)
      : cache(cache_of(one)),
        q(one.type, host.q),
        keys(one.type, paged(one, context, cache, host.keys)),
        values(one.type, paged(one, context, cache, host.values)),
        sinks(host.sinks),
        table(context.table),
        lengths(context.lengths),
        out(one.type, Floats(host.q.size(), NAN)),
        work(Floats(static_cast<size_t>(decode_workspace(one.rows, one.heads, one.num_splits)),
                    NAN)) {
    cache.keys = keys.get();
    cache.values = values.get();
    args = {.rows = one.rows,
            .heads = one.heads,
            .scale = 1 / std::sqrt(static_cast<float>(one.heads.head_dim)),
            .window = one.window,
            .type = one.type,
            .sinks = one.has_sinks ? sinks.as<float>() : nullptr,
            .q = q.get(),
            .cache = cache,
            .block_table = table.as<int32_t>(),
            .table_stride = context.table_stride,
            .lengths = lengths.as<int32_t>(),
            .num_splits = one.num_splits,
            .out = out.get(),
            .workspace = work.as<float>()};
  }

  PagedCache cache;
  const Buffer q, keys, values, sinks, table, lengths, out, work;
  DecodeAttentionArgs args;
};

/// An output is a mean of values of up to 1 (with RoPE applied, the row's own value is up to 3).
/// The error of its weights is ln 2 times the error of the scores, which are powers of two: up to
/// 8, with about fifteen roundings of 2^-24 relative, so 5e-6. Written as bf16 it is rounded once
/// more.
void expect_near_cpu(const DecodeCase& one, const Context& context, const DecodeOperands& host,
                     const DecodeMemory& memory) {
  const Floats want = cpu_decode(one, context, host, memory.args.scale);
  expect_near(memory.out.floats(one.type), want, tolerance_of(one.type, 5e-6), "out");
}

void expect_decode(const DecodeCase& one) {
  SCOPED_TRACE(one.name());
  const Context context(one);
  const DecodeOperands host = random_operands(one, context);
  const DecodeMemory memory(one, context, host);
  expect_one_answer([&](Stream stream) { return decode_attention(memory.args, stream); },
                    {&memory.out});
  expect_near_cpu(one, context, host, memory);
}

TEST(CudaDecodeAttention, IsTheCpusOverABlockTable) {
  for (const Type type : kTypes)
    for (uint64_t seed = 0; seed < num_seeds(kSeeds); ++seed)
      expect_decode(random_case(type, seed));
}

TEST(CudaDecodeAttention, SupportsEveryWidthGroupAndSplit) {
  for (const Type type : kTypes)
    for (const int32_t head_dim : {64, 128, 256})
      for (const int32_t group : {1, 2, 4, 8})
        for (const int32_t num_splits : {1, 5}) {
          DecodeCase one;
          one.type = type;
          one.seed = 1000;
          one.rows = 3;
          one.heads = {2 * group, 2, head_dim};
          one.length_max = 700;
          one.num_splits = num_splits;
          expect_decode(one);
        }
}

/// The inputs of rotary() for the rows of `one`; the position of each row is that of its last key.
struct RopeRows {
  Floats qkv, q_weight, k_weight, cosine, sine;
  Ints positions, slots;

  RopeRows(const DecodeCase& one, const Context& context, int32_t rotary_dim) {
    const int64_t d = one.heads.head_dim;
    const int64_t width = (one.heads.num_heads + int64_t{2} * one.heads.num_kv_heads) * d;
    qkv = rounded(one.type, random_floats(one.rows * width, mix(one.seed, 6), 2));
    q_weight = rounded(one.type, random_floats(d, mix(one.seed, 7)));
    k_weight = rounded(one.type, random_floats(d, mix(one.seed, 8)));
    for (const float angle :
         random_floats(int64_t{one.length_max} * rotary_dim / 2 + 1, mix(one.seed, 9), 3.1)) {
      cosine.push_back(std::cos(angle));
      sine.push_back(std::sin(angle));
    }
    for (int64_t row = 0; row < one.rows; ++row) {
      const int32_t last = context.lengths[static_cast<size_t>(row)] - 1;
      positions.push_back(std::max(last, 0));
      slots.push_back(last < 0 ? -1 : context.slot(one, row, last));
    }
  }
};

/// One launch equals two: the cache has the same bits. The output is compared with the CPU's for
/// what rotary() wrote, with queries rounded in the same way. (Its bits may differ from two
/// launches: the compiler may round a sum at other points.)
void expect_rope_decode(const DecodeCase& one) {
  SCOPED_TRACE(one.name());
  RandomStream random(mix(one.seed, 10));
  const int32_t rotary_dim = random.below(3) == 0 ? one.heads.head_dim / 4 : one.heads.head_dim;
  const bool has_norm = random.below(3) != 0;
  const Context context(one);
  const RopeRows rope_rows(one, context, rotary_dim);
  const Buffer qkv(one.type, rope_rows.qkv), cosine(rope_rows.cosine), sine(rope_rows.sine);
  const bool has_added = one.seed % 4 == 0;
  const int64_t d = one.heads.head_dim;
  const cuda_test::AdaptedLinear linear{
      40, {one.heads.num_heads * d, one.heads.num_kv_heads * d, one.heads.num_kv_heads * d}};
  std::optional<AdaptedRows> added;
  if (has_added) added.emplace(one.type, one.rows, linear, one.seed);
  const auto run = [&](const auto& launch, Stream stream) {
    return has_added ? added->before(launch, stream) : launch();
  };
  const Buffer q_weight(one.type, rope_rows.q_weight), k_weight(one.type, rope_rows.k_weight);
  const Buffer positions(rope_rows.positions), slots(rope_rows.slots);
  DecodeOperands host = random_operands(one, context);
  const DecodeMemory memory(one, context, host);
  PagedRotaryArgs rope{.rows = one.rows,
                       .heads = one.heads,
                       .rotary_dim = rotary_dim,
                       .epsilon = 1e-6F,
                       .type = one.type,
                       .qkv = {qkv.get(), has_added ? added->lora_delta() : nullptr},
                       .q_weight = has_norm ? q_weight.get() : nullptr,
                       .k_weight = has_norm ? k_weight.get() : nullptr,
                       .positions = positions.as<int32_t>(),
                       .cosine = cosine.as<float>(),
                       .sine = sine.as<float>(),
                       .slots = slots.as<int32_t>(),
                       .q = memory.q.get(),
                       .cache = memory.cache};
  expect_one_answer(
      [&](Stream stream) { return run([&] { return rotary(rope, stream); }, stream); },
      {&memory.q, &memory.keys, &memory.values});
  const auto want_keys = memory.keys.bytes(), want_values = memory.values.bytes();
  host.q = memory.q.floats(one.type);
  host.keys = dense(one, context, memory.cache, memory.keys.floats(one.type));
  host.values = dense(one, context, memory.cache, memory.values.floats(one.type));
  rope.positions = rope.slots = nullptr;
  rope.q = nullptr;
  rope.cache = {};
  DecodeAttentionArgs args = memory.args;
  args.q = nullptr;
  expect_one_answer(
      [&](Stream stream) {
        return run([&] { return rope_decode_attention(rope, args, stream); }, stream);
      },
      {&memory.out, &memory.keys, &memory.values});
  EXPECT_TRUE(memory.keys.bytes() == want_keys) << "keys";
  EXPECT_TRUE(memory.values.bytes() == want_values) << "values";
  expect_near_cpu(one, context, host, memory);
}

TEST(CudaDecodeAttention, AppliesRopeToItsRowsAsRotaryDoes) {
  for (const Type type : kTypes)
    for (uint64_t seed = 0; seed < num_seeds(kSeeds); ++seed)
      expect_rope_decode(random_case(type, seed));
}

TEST(CudaDecodeAttention, AppliesRopeToNoRowsOfOtherShapes) {
  const PagedRotaryArgs rope{.rows = 1, .heads = {2, 1, 64}, .rotary_dim = 64};
  DecodeAttentionArgs args{.rows = 1, .heads = {2, 1, 64}};
  args.cache.block_size = 16;
  EXPECT_TRUE(rope_decode_attention({}, {}, nullptr).is_ok()) << "without rows there is no work";
  const auto fault = [&](auto change) {
    PagedRotaryArgs changed = rope;
    change(changed);
    return rope_decode_attention(changed, args, nullptr).fault;
  };
  EXPECT_THAT(fault([](auto& t) { t.rows = 2; }), HasSubstr("must be equal"));
  EXPECT_THAT(fault([](auto& t) { t.heads.num_kv_heads = 2; }), HasSubstr("must be equal"));
  EXPECT_THAT(fault([](auto& t) { t.type = Type::kBfloat16; }), HasSubstr("must be equal"));
  EXPECT_THAT(fault([](auto& t) { t.rotary_dim = 65; }), HasSubstr("must be even"));
  EXPECT_THAT(fault([](auto& t) { t.rotary_dim = 66; }), HasSubstr("from 0 to head_dim"));
}

TEST(CudaDecodeAttention, RefusesShapesItDoesNotSupport) {
  DecodeAttentionArgs args{.rows = 1, .heads = {2, 1, 64}};
  args.cache.block_size = 16;
  EXPECT_TRUE(decode_attention({}, nullptr).is_ok()) << "without rows there is no work";
  const auto fault = [&](auto change) {
    DecodeAttentionArgs changed = args;
    change(changed);
    return decode_attention(changed, nullptr).fault;
  };
  EXPECT_THAT(fault([](auto& a) { a.heads.head_dim = 96; }), HasSubstr("64, 128 or 256"));
  EXPECT_THAT(fault([](auto& a) { a.heads.num_heads = 0; }), HasSubstr("must divide"));
  EXPECT_THAT(fault([](auto& a) { a.cache.block_size = 8; }), HasSubstr("16 or more"));
  EXPECT_THAT(fault([](auto& a) { a.cache.block_size = 48; }), HasSubstr("power of two"));
  EXPECT_THAT(fault([](auto& a) { a.cache.row_stride = 4; }), HasSubstr("multiples of 8"));
  EXPECT_THAT(fault([](auto& a) { a.num_splits = 65; }), HasSubstr("1 to 64"));
  EXPECT_THAT(fault([](auto& a) { a.num_splits = 2; }), HasSubstr("workspace"));
}

}  // namespace
}  // namespace primerl::cuda
