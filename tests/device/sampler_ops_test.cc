// The device's sampler compared with the CPU's: the same tokens, the same kept sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/base/random.h"
#include "kernels/common/sampler.h"
#include "kernels/engine/kept_sets.h"
#include "tests/device/buffer.h"

namespace primerl::cuda {
namespace {

using cuda_test::Buffer;
using cuda_test::expect_near;
using cuda_test::expect_one_answer;
using cuda_test::Floats;
using cuda_test::Ints;
using cuda_test::name_of;
using cuda_test::random_floats;
using cuda_test::rounded;
using ::testing::HasSubstr;

constexpr Type kTypes[] = {Type::kFloat32, Type::kBfloat16};

/// Rows of logits and how each is sampled.
struct SampleCase {
  int64_t vocab_size = 0;
  Floats logits;
  std::vector<SamplingParams> params;
  std::vector<uint64_t> seeds;
  Ints indices;

  void add(const Floats& row, const SamplingParams& one) {
    logits.insert(logits.end(), row.begin(), row.end());
    params.push_back(one);
    seeds.push_back(mix(17, params.size()));
    indices.push_back(static_cast<int32_t>(params.size() * 3));
  }
  size_t rows() const { return params.size(); }
  std::span<const float> row(size_t i) const {
    const auto size = static_cast<size_t>(vocab_size);
    return std::span(logits).subspan(i * size, size);
  }
  std::vector<SamplingRow> settings() const {
    std::vector<SamplingRow> rows;
    for (size_t i = 0; i < params.size(); ++i) {
      const SamplingParams& one = params[i];
      const auto temperature = static_cast<float>(one.temperature);
      rows.push_back(
          {seeds[i], one.top_p, one.min_p, temperature == 0 ? 0 : 1 / temperature, one.top_k});
    }
    return rows;
  }
};

struct SampleAnswer {
  Ints tokens;
  Floats logprobs;
  std::vector<Ints> kept;  // ids; empty: all tokens
};

SampleAnswer cpu_answer(const SampleCase& one) {
  SampleAnswer answer;
  Sampler sampler;
  for (size_t i = 0; i < one.rows(); ++i) {
    std::vector<std::byte> bytes;
    const SampledToken sampled =
        sampler.sample(one.row(i), one.params[i], one.seeds[i], one.indices[i], &bytes);
    answer.tokens.push_back(sampled.token);
    answer.logprobs.push_back(sampled.logprob);
    Ints ids;
    if (!bytes.empty()) {
      const auto set = KeptReader(bytes).next();
      if (set.ok() && !set->keeps_all()) set->list(ids);
    }
    answer.kept.push_back(ids);
  }
  return answer;
}

enum class Shared { kNo, kInParts };
constexpr Shared kShared[] = {Shared::kNo, Shared::kInParts};

SampleAnswer device_answer(Type type, const SampleCase& one, Shared shared) {
  const auto words = static_cast<size_t>(kept_words(one.vocab_size));
  const Buffer logits(type, one.logits), settings(one.settings()), indices(one.indices);
  const Buffer tokens(Ints(one.rows(), -1)), logprobs(Floats(one.rows(), 7));
  const Buffer kept(Ints(one.rows() * words, 0x5555));
  const auto room = static_cast<size_t>(sample_workspace(static_cast<int64_t>(one.rows())));
  const Buffer workspace(Ints(room / sizeof(int32_t), 0x5555));
  expect_one_answer(
      [&](Stream stream) {
        return sample({.rows = static_cast<int64_t>(one.rows()),
                       .vocab_size = one.vocab_size,
                       .row_stride = one.vocab_size,
                       .type = type,
                       .logits = logits.get(),
                       .settings = settings.as<SamplingRow>(),
                       .indices = indices.as<int32_t>(),
                       .tokens = tokens.as<int32_t>(),
                       .logprobs = logprobs.as<float>(),
                       .kept = kept.as<uint32_t>(),
                       .workspace = shared == Shared::kInParts ? workspace.get() : nullptr},
                      stream);
      },
      {&tokens, &logprobs, &kept});
  SampleAnswer answer{tokens.ints(), logprobs.floats(), {}};
  const Ints bits = kept.ints();
  for (size_t i = 0; i < one.rows(); ++i) {
    Ints ids;
    for (size_t id = 0; id < words * 32; ++id)
      if (static_cast<uint32_t>(bits[i * words + id / 32]) >> id % 32 & 1)
        ids.push_back(static_cast<int32_t>(id));
    if (static_cast<int64_t>(ids.size()) == one.vocab_size) ids.clear();
    answer.kept.push_back(ids);
  }
  return answer;
}

void expect_the_same(Type type, Shared shared, SampleCase one) {
  one.logits = rounded(type, one.logits);
  const SampleAnswer want = cpu_answer(one), got = device_answer(type, one, shared);
  for (size_t i = 0; i < one.rows(); ++i) {
    const SamplingParams& params = one.params[i];
    SCOPED_TRACE(testing::Message()
                 << name_of(type) << (shared == Shared::kNo ? "" : ", in parts") << ", vocabulary "
                 << one.vocab_size << ", row " << i << ": temperature " << params.temperature
                 << ", top_k " << params.top_k << ", top_p " << params.top_p << ", min_p "
                 << params.min_p);
    EXPECT_EQ(got.tokens[i], want.tokens[i]);
    EXPECT_EQ(got.kept[i].size(), want.kept[i].size());
    EXPECT_TRUE(got.kept[i] == want.kept[i]) << "the kept sets differ";
  }
  expect_near(got.logprobs, want.logprobs, {5e-5, 1e-5}, "logprobs");
}

SamplingParams random_params(RandomStream& random, int64_t vocab_size) {
  constexpr double temperatures[] = {1, 0, 0.6, 1.3}, top_ps[] = {1, 0.9, 0.5, 0.999, 1e-9};
  constexpr double min_ps[] = {0, 0, 0.05, 0.5, 1e-6};
  const int32_t top_ks[] = {0,
                            0,
                            1,
                            20,
                            1000,
                            1024,
                            1025,
                            static_cast<int32_t>(vocab_size),
                            static_cast<int32_t>(vocab_size / 2)};
  SamplingParams params;
  params.temperature = temperatures[random.below(4)];
  params.top_p = top_ps[random.below(5)];
  params.min_p = min_ps[random.below(5)];
  params.top_k = top_ks[random.below(9)];
  return params;
}

TEST(CudaSampler, DrawsTheTokensOfTheCpuAndKeepsItsSets) {
  for (const Type type : kTypes)
    for (const int64_t vocab_size : {1, 2, 31, 33, 1000, 1024, 32001, 151936})
      for (const double scale : {0.5, 6.0}) {
        SampleCase one{
            .vocab_size = vocab_size, .logits = {}, .params = {}, .seeds = {}, .indices = {}};
        RandomStream random(mix(static_cast<uint64_t>(vocab_size), 9));
        for (uint64_t i = 0; i < 24; ++i) {
          const SamplingParams plain{.temperature = i % 12 == 0 ? 1 : 0.7};
          one.add(random_floats(vocab_size, mix(i, 4), scale),
                  i % 4 == 0 ? plain : random_params(random, vocab_size));
        }
        for (const Shared shared : kShared) expect_the_same(type, shared, one);
      }
}

/// More plain rows than are processed at once, with other rows between them.
TEST(CudaSampler, DrawsFromOneRowAfterTheOther) {
  constexpr int64_t kVocab = 8200;
  SampleCase one{.vocab_size = kVocab, .logits = {}, .params = {}, .seeds = {}, .indices = {}};
  for (uint64_t i = 0; i < 300; ++i) {
    SamplingParams params{.temperature = i % 5 == 0 ? 0 : 0.9};
    if (i % 7 == 3) params.top_k = 11;
    one.add(random_floats(kVocab, mix(i, 21), 3), params);
  }
  for (const Type type : kTypes) expect_the_same(type, Shared::kInParts, one);
}

TEST(CudaSampler, CutsEqualsAtTheLowerId) {
  SampleCase one{.vocab_size = 5000, .logits = {}, .params = {}, .seeds = {}, .indices = {}};
  for (int kinds = 1; kinds < 4; ++kinds) {
    Floats row(5000);
    for (size_t i = 0; i < row.size(); ++i)
      row[i] = static_cast<float>(i * 7 % static_cast<size_t>(kinds));
    one.add(row, {.top_k = 77});
    one.add(row, {.top_p = 0.31});
    one.add(row, {.top_k = 3333, .top_p = 0.5});
    one.add(row, {.temperature = 0});
  }
  for (const Type type : kTypes)
    for (const Shared shared : kShared) expect_the_same(type, shared, one);
}

TEST(CudaSampler, ReportsRowsWithNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  SampleCase one{.vocab_size = 40, .logits = {}, .params = {}, .seeds = {}, .indices = {}};
  Floats broken(40, 0), endless(40, 0), some(40, -infinity);
  broken[7] = NAN;
  endless[9] = infinity;
  some[11] = some[35] = 1;
  for (const Floats& row : {broken, endless, some, Floats(40, -infinity)})
    for (const SamplingParams& params :
         {SamplingParams{}, SamplingParams{.top_k = 3}, SamplingParams{.temperature = 0}})
      one.add(row, params);
  for (const Shared shared : kShared) {
    const SampleAnswer got = device_answer(Type::kFloat32, one, shared);
    for (size_t i = 0; i < one.rows(); ++i) {
      SCOPED_TRACE(i);
      const bool is_good = i / 3 == 2;
      EXPECT_EQ(std::isnan(got.logprobs[i]), !is_good);
      if (is_good)
        EXPECT_THAT(got.tokens[i], testing::AnyOf(11, 35));
      else
        EXPECT_EQ(got.tokens[i], 0);
    }
  }
}

TEST(CudaSampler, RefusesShapesItDoesNotSupport) {
  EXPECT_TRUE(sample({}, nullptr).is_ok());
  EXPECT_THAT(sample({.rows = 1, .vocab_size = 1 << 24, .row_stride = 1 << 24}, nullptr).fault,
              HasSubstr("2^24 - 1"));
}

}  // namespace
}  // namespace primerl::cuda
