// Norm of q and k, rotary embedding and the write to a paged cache compared with the CPU's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
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
using cuda_test::tolerance_of;
using ::testing::HasSubstr;

constexpr Type kTypes[] = {Type::kFloat32, Type::kBfloat16};
constexpr int32_t kPositions = 64;
constexpr uint64_t kSeeds = 30;

/// How the slot of a row in the cache is given.
enum class Place { kDense, kSlots, kBlockTable };

struct RotaryCase {
  Type type;
  uint64_t seed;
  int64_t rows;
  HeadShape heads;
  int32_t rotary_dim;
  bool has_norm;
  Place place;
  bool are_heads_outside;  // order of heads and rows in a block
  int32_t block_size;

  int64_t qkv_width() const {
    return static_cast<int64_t>(heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim;
  }
  int64_t q_width() const { return static_cast<int64_t>(heads.num_heads) * heads.head_dim; }
  int64_t kv_width() const { return static_cast<int64_t>(heads.num_kv_heads) * heads.head_dim; }
  std::string name() const {
    return std::string(name_of(type)) + ", seed " + std::to_string(seed) + ", " +
           std::to_string(rows) + " rows, " + std::to_string(heads.num_heads) + "/" +
           std::to_string(heads.num_kv_heads) + " heads of " + std::to_string(heads.head_dim) +
           ", rotary " + std::to_string(rotary_dim) + ", place " +
           std::to_string(static_cast<int>(place));
  }
};

template <class T, size_t kCount>
T one_of(const T (&values)[kCount], RandomStream& random) {
  return values[random.below(kCount)];
}

RotaryCase random_case(Type type, uint64_t seed) {
  RandomStream random(seed);
  constexpr int64_t rows[] = {1, 2, 13, 257, 1500};
  constexpr int32_t groups[] = {1, 2, 3, 8}, kv_heads[] = {1, 2, 4, 8};
  constexpr int32_t dims[] = {8, 24, 64, 80, 128, 256}, sizes[] = {1, 16, 32, 128};
  RotaryCase one{};
  one.type = type;
  one.seed = seed;
  one.rows = one_of(rows, random);
  one.heads.num_kv_heads = one_of(kv_heads, random);
  one.heads.num_heads = one.heads.num_kv_heads * one_of(groups, random);
  one.heads.head_dim = one_of(dims, random);
  one.rotary_dim = random.below(3) == 0 ? one.heads.head_dim / 4 / 2 * 2 : one.heads.head_dim;
  one.has_norm = random.below(3) != 0;
  one.place = static_cast<Place>(random.below(3));
  if (one.place == Place::kBlockTable) one.rows = std::min<int64_t>(one.rows, 40);
  one.are_heads_outside = random.below(2) == 0;
  one.block_size = one.place == Place::kDense ? 1 : one_of(sizes, random);
  return one;
}

/// The operands, rounded to the type, on the host.
struct Operands {
  Floats qkv, q_weight, k_weight, cosine, sine;
  Ints positions;

  explicit Operands(const RotaryCase& one) {
    const int64_t angles = kPositions * one.rotary_dim / 2;
    qkv = rounded(one.type, random_floats(one.rows * one.qkv_width(), mix(one.seed, 1), 2));
    q_weight = rounded(one.type, random_floats(one.heads.head_dim, mix(one.seed, 2)));
    k_weight = rounded(one.type, random_floats(one.heads.head_dim, mix(one.seed, 3)));
    const Floats random_angles = random_floats(angles, mix(one.seed, 4), 3.1);
    for (const float angle : random_angles) cosine.push_back(std::cos(angle));
    for (const float angle : random_angles) sine.push_back(std::sin(angle));
    RandomStream random(mix(one.seed, 5));
    for (int64_t row = 0; row < one.rows; ++row)
      positions.push_back(static_cast<int32_t>(random.below(kPositions)));
  }
};

/// The slot of each row: distinct, in random order, and none for each fifth row.
struct Slots {
  Ints slots, table;
  int64_t table_stride = 0;
  int64_t num_blocks = 0;

  Slots(const RotaryCase& one, const Ints& positions) {
    RandomStream random(mix(one.seed, 6));
    const auto rows = static_cast<size_t>(one.rows);
    Ints all(one.place == Place::kBlockTable ? rows * kPositions : rows);
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = all.size(); i-- > 1;) std::swap(all[i], all[random.below(i + 1)]);
    slots.assign(all.begin(), all.begin() + one.rows);
    if (one.place == Place::kDense) std::iota(slots.begin(), slots.end(), 0);
    if (one.place == Place::kSlots)
      for (size_t i = 4; i < rows; i += 5) slots[i] = -1;
    num_blocks = (one.rows + one.block_size - 1) / one.block_size;
    if (one.place != Place::kBlockTable) return;
    // Each row has its own blocks.
    table_stride = (kPositions + one.block_size - 1) / one.block_size;
    num_blocks = one.rows * table_stride;
    table.resize(static_cast<size_t>(num_blocks));
    std::iota(table.begin(), table.end(), 0);
    for (size_t i = table.size(); i-- > 1;) std::swap(table[i], table[random.below(i + 1)]);
    for (size_t i = 0; i < rows; ++i) {
      const int32_t block = positions[i] / one.block_size;
      slots[i] = table[i * static_cast<size_t>(table_stride) + static_cast<size_t>(block)] *
                     one.block_size +
                 positions[i] % one.block_size;
    }
  }
};

PagedCache cache_of(const RotaryCase& one) {
  const int64_t d = one.heads.head_dim;
  PagedCache cache;
  cache.block_size = one.block_size;
  cache.block_stride = one.kv_width() * one.block_size;
  cache.row_stride = one.are_heads_outside ? d : one.kv_width();
  cache.head_stride = one.are_heads_outside ? d * one.block_size : d;
  return cache;
}

/// The CPU's dense rows in the layout of the cache; elsewhere the old content.
Floats in_cache(const RotaryCase& one, const PagedCache& cache, const Ints& slots,
                const Floats& dense, Floats whole) {
  const int64_t d = one.heads.head_dim;
  for (int64_t row = 0; row < one.rows; ++row) {
    const int64_t slot = slots[static_cast<size_t>(row)];
    if (slot < 0) continue;
    for (int64_t h = 0; h < one.heads.num_kv_heads; ++h) {
      const int64_t to = slot / one.block_size * cache.block_stride +
                         slot % one.block_size * cache.row_stride + h * cache.head_stride;
      std::copy_n(dense.begin() + row * one.kv_width() + h * d, d, whole.begin() + to);
    }
  }
  return whole;
}

/// If there are few rows, adapters add to every other one.
constexpr int64_t kAdaptedRowsMax = 64;
void expect_rotary(const RotaryCase& one) {
  SCOPED_TRACE(one.name());
  const Operands host(one);
  const bool has_added = one.seed % 2 == 1 && one.rows <= kAdaptedRowsMax;
  std::optional<AdaptedRows> added;
  Floats sum = host.qkv;
  if (has_added) {
    const cuda_test::AdaptedLinear linear{40, {one.q_width(), one.kv_width(), one.kv_width()}};
    added.emplace(one.type, one.rows, linear, one.seed);
    std::ranges::transform(sum, added->sums(), sum.begin(), std::plus<>());
  }
  const Slots places(one, host.positions);
  PagedCache cache = cache_of(one);
  Ints same(static_cast<size_t>(one.rows));
  std::iota(same.begin(), same.end(), 0);
  Floats q(static_cast<size_t>(one.rows * one.q_width()));
  Floats keys(static_cast<size_t>(one.rows * one.kv_width())), values(keys.size());
  cpu_ops().rotary({one.rows, one.heads, one.rotary_dim, 1e-6F, sum.data(),
                    one.has_norm ? host.q_weight.data() : nullptr,
                    one.has_norm ? host.k_weight.data() : nullptr, host.positions.data(),
                    same.data(), host.cosine.data(), host.sine.data(), q.data(), keys.data(),
                    values.data()});

  const Floats empty(static_cast<size_t>(places.num_blocks * cache.block_stride), 7);
  const Buffer qkv(one.type, host.qkv), q_weight(one.type, host.q_weight);
  const Buffer k_weight(one.type, host.k_weight), positions(host.positions);
  const Buffer cosine(host.cosine), sine(host.sine), slots(places.slots), table(places.table);
  const Buffer out(one.type, Floats(q.size(), NAN)), to_keys(one.type, empty);
  const Buffer to_values(one.type, empty);
  cache.keys = to_keys.get();
  cache.values = to_values.get();
  PagedRotaryArgs args{.rows = one.rows,
                       .heads = one.heads,
                       .rotary_dim = one.rotary_dim,
                       .epsilon = 1e-6F,
                       .type = one.type,
                       .qkv = {qkv.get()},
                       .q_weight = one.has_norm ? q_weight.get() : nullptr,
                       .k_weight = one.has_norm ? k_weight.get() : nullptr,
                       .positions = positions.as<int32_t>(),
                       .cosine = cosine.as<float>(),
                       .sine = sine.as<float>(),
                       .q = out.get(),
                       .cache = cache};
  if (has_added) args.qkv.lora_delta = added->lora_delta();
  if (one.place == Place::kSlots) args.slots = slots.as<int32_t>();
  if (one.place == Place::kBlockTable) args.block_table = table.as<int32_t>();
  args.table_stride = places.table_stride;
  const auto launch = [&](Stream stream) {
    const auto angle = [&] { return rotary(args, stream); };
    return has_added ? added->before(angle, stream) : angle();
  };
  expect_one_answer(launch, {&out, &to_keys, &to_values});
  const auto tolerance = tolerance_of(one.type, has_added ? 1e-4 : 5e-6);
  expect_near(out.floats(one.type), q, tolerance, "q");
  expect_near(to_keys.floats(one.type), in_cache(one, cache, places.slots, keys, empty), tolerance,
              "keys");
  // Values are copied, unless a delta is added: then the tolerance includes the rounding of the
  // sum.
  if (!has_added) values = rounded(one.type, values);
  expect_near(to_values.floats(one.type), in_cache(one, cache, places.slots, values, empty),
              has_added ? tolerance : cuda_test::Tolerance{0, 0}, "values");
}

TEST(CudaRotary, IsTheCpusAndWritesTheCache) {
  for (const Type type : kTypes)
    for (uint64_t seed = 0; seed < num_seeds(kSeeds); ++seed)
      expect_rotary(random_case(type, seed));
}

void expect_rotary_backward(const RotaryCase& one) {
  SCOPED_TRACE(one.name());
  const Operands host(one);
  const auto size_q = one.rows * one.q_width(), size_kv = one.rows * one.kv_width();
  const Floats dq = rounded(one.type, random_floats(size_q, mix(one.seed, 11)));
  const Floats dkeys = rounded(one.type, random_floats(size_kv, mix(one.seed, 12)));
  const Floats dvalues = rounded(one.type, random_floats(size_kv, mix(one.seed, 13)));
  const Floats before = random_floats(one.heads.head_dim, mix(one.seed, 14));
  Floats dqkv(host.qkv.size()), dq_weight = before, dk_weight = before;
  cpu_ops().rotary_backward({one.rows, one.heads, one.rotary_dim, 1e-6F, host.qkv.data(),
                             one.has_norm ? host.q_weight.data() : nullptr,
                             one.has_norm ? host.k_weight.data() : nullptr, host.positions.data(),
                             host.cosine.data(), host.sine.data(), dq.data(), dkeys.data(),
                             dvalues.data(), dqkv.data(), dq_weight.data(), dk_weight.data()});

  const Buffer qkv(one.type, host.qkv), q_weight(one.type, host.q_weight);
  const Buffer k_weight(one.type, host.k_weight), positions(host.positions);
  const Buffer cosine(host.cosine), sine(host.sine), on_dq(one.type, dq);
  const Buffer on_dkeys(one.type, dkeys), on_dvalues(one.type, dvalues);
  const Buffer out(one.type, Floats(dqkv.size(), NAN)), to_q(before), to_k(before);
  const auto workspace = static_cast<size_t>(rotary_workspace(one.rows, one.heads.head_dim));
  const Buffer work(Floats(workspace, NAN));
  expect_one_answer(
      [&](Stream stream) {
        return rotary_backward(
            {one.rows, one.heads, one.rotary_dim, 1e-6F, one.type, qkv.get(),
             one.has_norm ? q_weight.get() : nullptr, one.has_norm ? k_weight.get() : nullptr,
             positions.as<int32_t>(), cosine.as<float>(), sine.as<float>(), on_dq.get(),
             on_dkeys.get(), on_dvalues.get(), out.get(), to_q.as<float>(), to_k.as<float>(),
             work.as<float>()},
            stream);
      },
      {&out, &to_q, &to_k});
  // Inverses of short heads reach 10: cancellation errors are ten times larger.
  expect_near(out.floats(one.type), dqkv, tolerance_of(one.type, 1e-4), "dqkv");
  const double spread = 5e-5 * std::sqrt(static_cast<double>(one.rows * one.heads.num_heads));
  expect_near(to_q.floats(), dq_weight, {spread, 1e-5}, "dq_weight");
  expect_near(to_k.floats(), dk_weight, {spread, 1e-5}, "dk_weight");
}

TEST(CudaRotary, BackwardIsTheCpusAndAddsToTheWeights) {
  for (const Type type : kTypes)
    for (uint64_t seed = 100; seed < 100 + num_seeds(kSeeds); ++seed)
      expect_rotary_backward(random_case(type, seed));
}

TEST(CudaRotary, RefusesShapesItDoesNotSupport) {
  const HeadShape heads{2, 1, 64};
  EXPECT_THAT(rotary({.rows = 1, .heads = {2, 1, 257}}, nullptr).fault, HasSubstr("1 to 256"));
  EXPECT_THAT(rotary({.rows = 1, .heads = {3, 2, 64}}, nullptr).fault, HasSubstr("must divide"));
  EXPECT_THAT(rotary({.rows = 1, .heads = heads, .rotary_dim = 63}, nullptr).fault,
              HasSubstr("even"));
  EXPECT_THAT(rotary_backward({.rows = 1, .heads = heads, .rotary_dim = 66}, nullptr).fault,
              HasSubstr("even"));
  PagedCache cache;
  cache.block_size = 24;
  EXPECT_THAT(rotary({.rows = 1, .heads = heads, .cache = cache}, nullptr).fault,
              HasSubstr("power of two"));
  EXPECT_TRUE(rotary({}, nullptr).is_ok());
  EXPECT_TRUE(rotary_backward({}, nullptr).is_ok());
}

}  // namespace
}  // namespace primerl::cuda
