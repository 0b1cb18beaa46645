// Operations on indexed rows, the gradient of an embedding and the choice of experts compared with
// the CPU's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "graph/base/random.h"
#include "kernels/common/adapter_dropout.h"
#include "tests/device/buffer.h"
#include "tests/device/memory.h"

namespace primerl::cuda {
namespace {

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
constexpr uint64_t kSeeds = 16;

struct RowsCase {
  Type type;
  uint64_t seed;
  int64_t rows, width, sources;
  int32_t terms;

  std::string name() const {
    return std::string(name_of(type)) + ", seed " + std::to_string(seed) + ", " +
           std::to_string(rows) + " x " + std::to_string(width) + " of " + std::to_string(sources) +
           ", terms " + std::to_string(terms);
  }
  Ints places(int64_t count) const {
    RandomStream random(mix(seed, 1));
    Ints all;
    for (int64_t i = 0; i < count; ++i)
      all.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(sources))));
    return all;
  }
};

RowsCase random_case(Type type, uint64_t seed) {
  RandomStream random(seed);
  constexpr int64_t rows[] = {1, 5, 300, 2000}, widths[] = {1, 7, 64, 1000, 2048};
  constexpr int64_t sources[] = {1, 10, 3000};
  constexpr int32_t terms[] = {1, 2, 8};
  return {type,
          seed,
          rows[random.below(4)],
          widths[random.below(5)],
          sources[random.below(3)],
          terms[random.below(3)]};
}

template <class F>
void for_cases(F f) {
  for (const Type type : kTypes)
    for (uint64_t seed = 0; seed < num_seeds(kSeeds); ++seed) {
      const RowsCase one = random_case(type, seed);
      SCOPED_TRACE(one.name());
      f(one);
    }
}

TEST(CudaRows, AreGatheredAndANegativeSourceIsZeros) {
  for_cases([](const RowsCase& one) {
    const Floats x = rounded(one.type, random_floats(one.sources * one.width, mix(one.seed, 2)));
    const Floats scale = random_floats(one.rows, mix(one.seed, 3));
    Ints sources = one.places(one.rows);
    const bool is_scaled = one.seed % 2 == 0;
    Floats want(static_cast<size_t>(one.rows * one.width));
    cpu_ops().gather_rows({one.rows, one.width, x.data(), sources.data(),
                           is_scaled ? scale.data() : nullptr, want.data()});
    sources[0] = -1;
    std::fill_n(want.begin(), one.width, 0.0F);
    const Buffer on_x(one.type, x), by(scale), from(sources);
    const Buffer y(one.type, Floats(want.size(), NAN));
    expect_one_answer(
        [&](Stream stream) {
          return gather_rows({one.rows, one.width, one.type, on_x.get(), from.as<int32_t>(),
                              nullptr, is_scaled ? by.as<float>() : nullptr, y.get()},
                             stream);
        },
        {&y});
    expect_near(y.floats(one.type), rounded(one.type, want), {0, 0}, "y");
  });
}

/// A step of an engine reads tokens where the previous step sampled them.
TEST(CudaRows, ANegativeSourceNamesAnotherWhereThereAreOthers) {
  for_cases([](const RowsCase& one) {
    const Floats x = rounded(one.type, random_floats(one.sources * one.width, mix(one.seed, 2)));
    const Ints others = one.places(one.rows);
    Ints sources = one.places(one.rows), resolved = sources;
    for (size_t i = 0; i < sources.size(); i += 2) {
      const size_t place = (i * 7 + 3) % others.size();
      sources[i] = -1 - static_cast<int32_t>(place);
      resolved[i] = others[place];
    }
    Floats want(static_cast<size_t>(one.rows * one.width));
    cpu_ops().gather_rows({one.rows, one.width, x.data(), resolved.data(), nullptr, want.data()});
    const Buffer on_x(one.type, x), from(sources), other(others);
    const Buffer y(one.type, Floats(want.size(), NAN));
    expect_one_answer(
        [&](Stream stream) {
          return gather_rows({.rows = one.rows,
                              .width = one.width,
                              .type = one.type,
                              .x = on_x.get(),
                              .sources = from.as<int32_t>(),
                              .others = other.as<int32_t>(),
                              .y = y.get()},
                             stream);
        },
        {&y});
    expect_near(y.floats(one.type), rounded(one.type, want), {0, 0}, "y");
  });
}

TEST(CudaRows, AreCombinedInOrderAndMultiplied) {
  for_cases([](const RowsCase& one) {
    const int64_t count = one.rows * one.terms;
    const Floats x = rounded(one.type, random_floats(one.sources * one.width, mix(one.seed, 2)));
    const Floats before = rounded(one.type, random_floats(one.rows * one.width, mix(one.seed, 3)));
    const Floats weights = random_floats(count, mix(one.seed, 4));
    const Ints places = one.places(count);
    Floats want = before, dots(static_cast<size_t>(count));
    const bool is_weighted = one.seed % 2 == 0;
    cpu_ops().combine_rows({one.rows, one.width, one.terms, x.data(), places.data(),
                            is_weighted ? weights.data() : nullptr, want.data()});
    cpu_ops().dot_rows(
        {one.rows, one.width, one.terms, before.data(), x.data(), places.data(), dots.data()});
    const Buffer on_x(one.type, x), a(one.type, before), y(one.type, before), at(places);
    const Buffer by(weights), on_dots(Floats(dots.size(), NAN));
    expect_one_answer(
        [&](Stream stream) {
          return combine_rows({one.rows, one.width, one.terms, one.type, on_x.get(),
                               at.as<int32_t>(), is_weighted ? by.as<float>() : nullptr, y.get()},
                              stream);
        },
        {&y});
    expect_one_answer(
        [&](Stream stream) {
          return dot_rows({one.rows, one.width, one.terms, one.type, a.get(), on_x.get(),
                           at.as<int32_t>(), on_dots.as<float>()},
                          stream);
        },
        {&on_dots});
    expect_near(y.floats(one.type), want, tolerance_of(one.type, 2e-6), "y");
    expect_near(on_dots.floats(), dots, {5e-5, 1e-5}, "dots");
  });
}

TEST(CudaRows, AddUpInTheTableOfAnEmbedding) {
  for_cases([](const RowsCase& one) {
    const Floats dy = rounded(one.type, random_floats(one.rows * one.width, mix(one.seed, 2)));
    const Floats before = random_floats(one.sources * one.width, mix(one.seed, 3));
    const Ints tokens = one.places(one.rows);
    std::map<int32_t, Ints> rows_of;
    for (size_t i = 0; i < tokens.size(); ++i)
      rows_of[tokens[i]].push_back(static_cast<int32_t>(i));
    Ints ids, offsets = {0}, places;
    Floats want = before;
    for (const auto& [id, rows] : rows_of) {
      ids.push_back(id);
      for (const int32_t row : rows) {
        places.push_back(row);
        for (int64_t i = 0; i < one.width; ++i)
          want[static_cast<size_t>(id * one.width + i)] +=
              dy[static_cast<size_t>(row * one.width + i)];
      }
      offsets.push_back(static_cast<int32_t>(places.size()));
    }
    const Buffer on_dy(one.type, dy), table(before), on_ids(ids), ends(offsets), at(places);
    expect_one_answer(
        [&](Stream stream) {
          return embedding_backward(
              {static_cast<int64_t>(ids.size()), one.width, one.type, on_ids.as<int32_t>(),
               ends.as<int32_t>(), at.as<int32_t>(), on_dy.get(), table.as<float>()},
              stream);
        },
        {&table});
    const double spread = 5e-6 * std::sqrt(static_cast<double>(one.rows));
    expect_near(table.floats(), want, {spread, 1e-5}, "dtable");
  });
}

TEST(CudaRows, RefuseShapesTheyDoNotSupport) {
  EXPECT_TRUE(gather_rows({}, nullptr).is_ok());
  EXPECT_TRUE(combine_rows({}, nullptr).is_ok());
  EXPECT_TRUE(combine_rows({.rows = 3, .width = 4, .terms = 0}, nullptr).is_ok());
  EXPECT_TRUE(dot_rows({}, nullptr).is_ok());
  EXPECT_TRUE(embedding_backward({}, nullptr).is_ok());
  EXPECT_THAT(gather_rows({.rows = 1}, nullptr).fault, HasSubstr("at least 1"));
  EXPECT_THAT(combine_rows({.rows = 1, .width = 1, .terms = -1}, nullptr).fault,
              HasSubstr("at least 0"));
  EXPECT_THAT(embedding_backward({.num_ids = 1}, nullptr).fault, HasSubstr("from 1"));
}

RouterShape random_router(uint64_t seed) {
  RandomStream random(seed);
  constexpr int32_t experts[] = {1, 2, 8, 60, 128, 256, 1024};
  RouterShape shape;
  shape.num_experts = experts[random.below(7)];
  shape.experts_per_token = std::min(shape.num_experts, static_cast<int32_t>(1 + random.below(8)));
  shape.is_sigmoid = random.below(2) == 0;
  shape.is_normalized = random.below(2) == 0;
  shape.epsilon = random.below(2) == 0 ? 1e-6F : 0;
  shape.scale = random.below(2) == 0 ? 1 : 2.5F;
  if (shape.num_experts % 4 == 0 && random.below(2) == 0) {
    shape.num_groups = 4;
    shape.groups_kept = 2;
    shape.experts_per_token = std::min(shape.experts_per_token, shape.num_experts / 2);
  }
  return shape;
}

TEST(CudaRouter, ChoosesTheExpertsOfTheCpuAndWeighsThemForwardAndBackward) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const RouterShape shape = random_router(seed);
    const int64_t rows = seed % 3 == 0 ? 1 : 501;
    const int64_t chosen = rows * shape.experts_per_token;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", experts " << shape.num_experts
                                    << ", per token " << shape.experts_per_token);
    const Floats logits = random_floats(rows * shape.num_experts, mix(seed, 1), 4);
    const Floats bias = random_floats(shape.num_experts, mix(seed, 2), 0.1);
    const Floats dweights = random_floats(chosen, mix(seed, 3));
    const bool has_bias = seed % 2 == 0;
    Floats scores(logits.size()), weights(static_cast<size_t>(chosen)), dlogits(logits.size());
    Ints experts(weights.size());
    cpu_ops().route({rows, shape, has_bias ? bias.data() : nullptr, logits.data(), scores.data(),
                     experts.data(), weights.data()});
    cpu_ops().route_backward(
        {rows, shape, scores.data(), experts.data(), dweights.data(), dlogits.data()});
    const Buffer on_logits(logits), on_bias(bias), on_dweights(dweights);
    const Buffer to_scores(Floats(scores.size(), NAN)), to_weights(Floats(weights.size(), NAN));
    const Buffer to_experts(Ints(experts.size(), -1)), to_dlogits(Floats(logits.size(), NAN));
    expect_one_answer(
        [&](Stream stream) {
          return route(
              {rows, shape, has_bias ? on_bias.as<float>() : nullptr, on_logits.as<float>(),
               to_scores.as<float>(), to_experts.as<int32_t>(), to_weights.as<float>()},
              stream);
        },
        {&to_scores, &to_experts, &to_weights});
    // Scores that are equal except for rounding may be swapped.
    int64_t num_other = 0;
    const Ints got = to_experts.ints();
    for (size_t i = 0; i < got.size(); ++i) num_other += got[i] != experts[i] ? 1 : 0;
    EXPECT_LE(num_other, chosen / 1000);
    expect_near(to_scores.floats(), scores, {1e-7, 1e-5}, "scores");
    expect_near(to_weights.floats(), weights, {1e-6, 1e-5}, "weights");
    const Buffer same_scores(scores), same_experts(experts);
    expect_one_answer(
        [&](Stream stream) {
          return route_backward({rows, shape, same_scores.as<float>(), same_experts.as<int32_t>(),
                                 on_dweights.as<float>(), to_dlogits.as<float>()},
                                stream);
        },
        {&to_dlogits});
    expect_near(to_dlogits.floats(), dlogits, {1e-6, 1e-5}, "dlogits");
  }
}

TEST(CudaRouter, GivesEqualsToTheLowerExpertAndBrokenLogitsToSome) {
  const RouterShape shape{.num_experts = 8, .experts_per_token = 3};
  Floats logits(24, 0);
  std::fill(logits.begin() + 8, logits.begin() + 16, NAN);
  std::fill(logits.begin() + 16, logits.end(), -INFINITY);
  const Buffer on_logits(logits), scores(Floats(24, 0)), experts(Ints(9, -1));
  const Buffer weights(Floats(9, 0));
  expect_one_answer(
      [&](Stream stream) {
        return route({3, shape, nullptr, on_logits.as<float>(), scores.as<float>(),
                      experts.as<int32_t>(), weights.as<float>()},
                     stream);
      },
      {&experts});
  EXPECT_THAT(experts.ints(), testing::ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2));
  EXPECT_TRUE(route({}, nullptr).is_ok());
  EXPECT_TRUE(route_backward({}, nullptr).is_ok());
  EXPECT_THAT(route({.rows = 1, .shape = {.num_experts = 1025}}, nullptr).fault,
              HasSubstr("1 to 1024"));
}

TEST(CudaRouter, SortsPairsByExpertInTheirOrder) {
  RandomStream random(5);
  for (const int64_t rows : {1, 7, 64, 5000}) {
    SCOPED_TRACE(rows);
    constexpr int32_t kChoices = 3, kExperts = 37;
    const int64_t pairs = rows * kChoices;
    Ints experts(static_cast<size_t>(pairs)), places(experts), sources(experts), ends;
    for (auto& one : experts) one = static_cast<int32_t>(random.below(kExperts - 2));
    int32_t next = 0;
    for (int32_t expert = 0; expert < kExperts; ++expert) {
      for (size_t pair = 0; pair < experts.size(); ++pair) {
        if (experts[pair] != expert) continue;
        places[pair] = next;
        sources[static_cast<size_t>(next++)] = static_cast<int32_t>(pair) / kChoices;
      }
      ends.push_back(next);
    }
    const Buffer on_experts(experts), to_places(Ints(experts.size(), -1));
    const Buffer to_sources(Ints(experts.size(), -1)), to_ends(Ints(kExperts, -1));
    expect_one_answer(
        [&](Stream stream) {
          return sort_by_expert(
              {rows, kChoices, kExperts, on_experts.as<int32_t>(), to_places.as<int32_t>(),
               to_sources.as<int32_t>(), to_ends.as<int32_t>()},
              stream);
        },
        {&to_places, &to_sources, &to_ends});
    EXPECT_EQ(to_places.ints(), places);
    EXPECT_EQ(to_sources.ints(), sources);
    EXPECT_EQ(to_ends.ints(), ends);
  }
  EXPECT_TRUE(sort_by_expert({}, nullptr).is_ok());
  EXPECT_THAT(sort_by_expert({.rows = 1, .experts_per_token = 2, .num_experts = 1}, nullptr).fault,
              HasSubstr("from 1 to num_experts"));
}

/// Two rows of one adapter, one of another, one without dropout. `is_of_experts`: each row has
/// another linear.
void expect_dropped(Type type, int64_t width, bool adds, bool is_of_experts) {
  const std::vector<uint64_t> modules =
      is_of_experts ? std::vector<uint64_t>{5, 6, 7, 5} : std::vector<uint64_t>(4, 5);
  const std::vector<std::pair<double, uint64_t>> rows = {{0.25, 3}, {0.25, 4}, {0.5, 3}, {0, 9}};
  const Floats x = rounded(type, random_floats(4 * width, 1));
  const Floats before = rounded(type, random_floats(4 * width, 2));
  std::vector<DropRow> dropped;
  Floats want = before;
  for (size_t i = 0; i < rows.size(); ++i) {
    const AdapterDropout dropout{rows[i].first, 77};
    dropped.push_back({mix(dropout.key, rows[i].second), dropout_scale(dropout.rate),
                       dropout_threshold(dropout.rate)});
    uint64_t key = row_key(dropout, rows[i].second);
    std::vector<uint16_t> draws(static_cast<size_t>(drawn_columns(width)));
    draw_dropout(modules[i], {&key, 1}, width, draws.data());
    apply_dropout(dropout, 1, width, draws.data(), x.data() + i * static_cast<size_t>(width),
                  want.data() + i * static_cast<size_t>(width), adds);
  }
  const Buffer on_x(type, x), y(type, before), on_rows(dropped), on_modules(modules);
  expect_one_answer(
      [&](Stream stream) {
        return drop_rows({.rows = 4,
                          .width = width,
                          .type = type,
                          .module = is_of_experts ? 9U : 5U,
                          .modules = is_of_experts ? on_modules.as<uint64_t>() : nullptr,
                          .dropped = on_rows.as<DropRow>(),
                          .x = on_x.get(),
                          .y = y.get(),
                          .adds = adds},
                         stream);
      },
      {&y});
  expect_near(y.floats(type), want, cuda_test::tolerance_of(type, 1e-6), "y");
}

TEST(CudaRows, DropOutWhatTheCpuDoes) {
  for (const Type type : {Type::kFloat32, Type::kBfloat16})
    for (const int64_t width : {1, 6, 1024})
      for (const bool adds : {false, true})
        for (const bool is_of_experts : {false, true})
          expect_dropped(type, width, adds, is_of_experts);
  EXPECT_STREQ(drop_rows({.rows = 1}, nullptr).fault, "width must be from 1 to 2^31 - 1");
}

}  // namespace
}  // namespace primerl::cuda
