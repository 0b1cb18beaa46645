// LoRA deltas of a GEMM compared with sums in double on the host: adapters of many ranks in one
// call, rows without one, and a slot with NaN.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>

#include "kernels/cuda/ops/cuda_checks.h"
#include "kernels/cuda/ops/cuda_expert_tiles.h"
#include "tests/device/adapted_rows.h"

namespace primerl::cuda {
namespace {

using cuda_test::Buffer;
using cuda_test::expect_near;
using cuda_test::expect_one_answer;
using cuda_test::Floats;
using cuda_test::Ints;
using cuda_test::random_floats;
using cuda_test::rounded;
using cuda_test::wanted_of_tiles;
using ::testing::HasSubstr;

using Linear = cuda_test::AdaptedLinear;

constexpr int64_t kRows = 21;

/// Ranks 4 to 64; one has no part, two share a slot, row 12 has no adapter, 13 and 20 are in no
/// tile.
std::vector<AdapterTile> many_tiles() {
  return {{0, 1, 2, 4, 7, 2},      {1, 8, 0, 16, 7, 0.5F}, {9, 3, 0, 16, 7, 0.5F}, {12, 1},
          {14, 2, 1, 64, 5, 1.5F}, {16, 1, 3, 7, 2, 1},    {17, 2, 4, 24, 0, 1},   {},
          {19, 1, 4, 24, 4, 3}};
}
constexpr int64_t kSlots = 5;

Floats added(const Linear& linear, Type type, const std::vector<AdapterTile>& tiles,
             const Floats& slots, const Floats& x, const Floats& before, bool has_fp32_y = false) {
  const Type type_of_y = has_fp32_y ? Type::kFloat32 : type;
  const Buffer on_slots(type, slots), on_x(type, x), y(type_of_y, before), on_tiles(tiles);
  AddAdaptersArgs args = linear.args(type);
  args.has_fp32_y = has_fp32_y;
  args.num_tiles = std::ssize(tiles);
  args.tiles = on_tiles.as<AdapterTile>();
  args.slots = on_slots.get();
  args.next_size = linear.slot_stride() / kAdapterRowsRankMax;  // must change nothing
  args.x = on_x.get();
  args.y = y.get();
  const Buffer workspace(Floats(static_cast<size_t>(adapters_workspace(args) + 1), NAN));
  args.workspace = workspace.as<float>();
  expect_one_answer([&](Stream stream) { return add_adapters(args, stream); }, {&y});
  return y.floats(type_of_y);
}

TEST(CudaAdapters, AddWhatTheHostAdds) {
  for (const Type type : {Type::kFloat32, Type::kBfloat16})
    for (const Linear& linear : {Linear{8, {3, 1, 2}}, Linear{1024, {2048, 1024, 1024}},
                                 Linear{264, {300}}, Linear{3072, {1030, 513}}}) {
      SCOPED_TRACE(::testing::Message() << linear.terms << " terms, " << linear.columns()
                                        << " columns, " << cuda_test::name_of(type));
      const Floats x = rounded(type, random_floats(kRows * linear.terms, 1));
      const Floats before = rounded(type, random_floats(kRows * linear.columns(), 2));
      const Floats slots = rounded(type, random_floats(kSlots * linear.slot_stride(), 3, 0.1));
      // u is up to about 5, from terms that cancel.
      expect_near(added(linear, type, many_tiles(), slots, x, before),
                  wanted_of_tiles(linear.args(type), many_tiles(), slots, x, before),
                  cuda_test::tolerance_of(type, 1e-4), "y");
    }
}

TEST(CudaAdapters, AddToLogitsInFp32) {
  for (const Type type : {Type::kFloat32, Type::kBfloat16})
    for (const Linear& linear : {Linear{8, {61}}, Linear{1024, {1040}}}) {
      SCOPED_TRACE(::testing::Message() << linear.terms << " terms, " << cuda_test::name_of(type));
      const Floats x = rounded(type, random_floats(kRows * linear.terms, 1));
      const Floats before = random_floats(kRows * linear.columns(), 2);
      const Floats slots = rounded(type, random_floats(kSlots * linear.slot_stride(), 3, 0.1));
      // In bf16 u has two halves of 16 bits, or one: 2^-8 of terms of about 1.
      expect_near(added(linear, type, many_tiles(), slots, x, before, true),
                  wanted_of_tiles(linear.args(type), many_tiles(), slots, x, before),
                  {type == Type::kFloat32 ? 1e-4 : 2e-3, 1e-4}, "y");
    }
}

TEST(CudaAdapters, ARowIsTheSameInTilesOfAnySize) {
  constexpr int64_t kMany = 3 * kAdapterTileRows;
  const Linear linear{1032, {520, 44}};
  for (const Type type : {Type::kFloat32, Type::kBfloat16})
    for (const int32_t rank : {7, 16, 24, 64}) {
      SCOPED_TRACE(::testing::Message() << "rank " << rank << ", " << cuda_test::name_of(type));
      const auto tiles_of = [&](int64_t size) {
        std::vector<AdapterTile> tiles;
        for (int64_t first = 0; first < kMany; first += size)
          tiles.push_back({static_cast<int32_t>(first),
                           static_cast<int32_t>(std::min(size, kMany - first)), 0, rank, 3, 2});
        return tiles;
      };
      const Floats x = rounded(type, random_floats(kMany * linear.terms, 1));
      const Floats before = rounded(type, random_floats(kMany * linear.columns(), 2));
      const Floats slots = rounded(type, random_floats(linear.slot_stride(), 3, 0.1));
      const auto largest = tiles_of(kAdapterTileRows);
      const Floats want = added(linear, type, largest, slots, x, before);
      expect_near(want, wanted_of_tiles(linear.args(type), largest, slots, x, before),
                  cuda_test::tolerance_of(type, 1e-4), "y");
      for (const int64_t size : {1, 5, 8, 63})
        EXPECT_TRUE(added(linear, type, tiles_of(size), slots, x, before) == want) << size;
    }
}

/// A and B of experts are stored expert after expert; each tile belongs to one expert.
TEST(CudaAdapters, AddWhatTheirExpertHas) {
  const Linear one_expert{136, {96, 40}};
  constexpr int64_t kExperts = 3;
  for (const Type type : {Type::kFloat32, Type::kBfloat16}) {
    AddAdaptersArgs args = one_expert.args(type);
    args.group_stride = one_expert.slot_stride() / kAdapterRowsRankMax;
    args.slot_stride *= kExperts;
    std::vector<AdapterTile> tiles = many_tiles();
    for (size_t i = 0; i < tiles.size(); ++i) tiles[i].group = static_cast<int32_t>(i % kExperts);
    const Floats x = rounded(type, random_floats(kRows * args.terms, 1));
    const Floats before = rounded(type, random_floats(kRows * args.columns, 2));
    const Floats slots = rounded(type, random_floats(kSlots * args.slot_stride, 3, 0.1));
    const Floats want = wanted_of_tiles(args, tiles, slots, x, before);
    const Buffer on_slots(type, slots), on_x(type, x), y(type, before), on_tiles(tiles);
    args.num_tiles = std::ssize(tiles);
    args.tiles = on_tiles.as<AdapterTile>();
    args.slots = on_slots.get();
    args.x = on_x.get();
    args.y = y.get();
    const Buffer workspace(Floats(static_cast<size_t>(adapters_workspace(args) + 1), NAN));
    args.workspace = workspace.as<float>();
    expect_one_answer([&](Stream stream) { return add_adapters(args, stream); }, {&y});
    expect_near(y.floats(type), want, cuda_test::tolerance_of(type, 1e-4), "y");
  }
}

struct SortedCase {
  int64_t rows = 0;
  int32_t experts_per_token = 0, num_experts = 0;
  int64_t tile_rows = 0;
  std::vector<AdapterTile> runs;
  int64_t first_row = 0;  // of the pass: sources are counted from it
};

/// Each row chooses its own experts; the permutation is that of sort_by_expert(). Tiles are checked
/// by their coverage: each sorted row of a run once, with the fields of its run.
void expect_tiles(const SortedCase& one) {
  SCOPED_TRACE(::testing::Message() << one.rows << " rows, " << one.num_experts << " experts, "
                                    << one.runs.size() << " runs");
  const int64_t num_pairs = one.rows * one.experts_per_token;
  std::vector<std::vector<int32_t>> of_experts(static_cast<size_t>(one.num_experts));
  for (int64_t row = 0; row < one.rows; ++row)
    for (int64_t i = 0; i < one.experts_per_token; ++i)
      of_experts[static_cast<size_t>((row * row + i * 3 + row / 5) % (one.num_experts - 1))]
          .push_back(static_cast<int32_t>(row));  // no row chooses the last expert
  Ints sources, ends, run_ends;
  // by sorted row: the fields of its run, and the expert
  std::vector<AdapterTile> want(static_cast<size_t>(num_pairs));
  for (size_t expert = 0; expert < of_experts.size(); ++expert) {
    for (const int32_t row : of_experts[expert]) {
      for (const AdapterTile& run : one.runs) {
        const int64_t of_pass = row + one.first_row;
        if (of_pass < run.first || of_pass >= run.first + run.rows) continue;
        AdapterTile& mine = want[sources.size()] = run;
        mine.group = static_cast<int32_t>(expert);
      }
      sources.push_back(row);
    }
    const int32_t begin = ends.empty() ? 0 : ends.back();
    for (const AdapterTile& run : one.runs) {
      const auto is_before_end = [&](int32_t row) {
        return row + one.first_row < run.first + run.rows;
      };
      const auto count = std::ranges::count_if(of_experts[expert], is_before_end);
      run_ends.push_back(begin + static_cast<int32_t>(count));
    }
    ends.push_back(static_cast<int32_t>(sources.size()));
  }
  const int64_t num_tiles =
      num_expert_tiles_of(num_pairs, one.num_experts, std::ssize(one.runs), one.tile_rows);
  const Buffer on_sources(sources), on_ends(ends), on_runs(one.runs);
  const Buffer to_tiles(std::vector<AdapterTile>(static_cast<size_t>(num_tiles), {7, 7, 7}));
  const Buffer to_ends(Ints(run_ends.size(), -1));
  expect_one_answer(
      [&](Stream stream) {
        return make_expert_tiles({.num_pairs = num_pairs,
                                  .num_experts = one.num_experts,
                                  .ends = on_ends.as<int32_t>(),
                                  .sources = on_sources.as<int32_t>(),
                                  .first_row = one.first_row,
                                  .runs = on_runs.as<AdapterTile>(),
                                  .num_runs = std::ssize(one.runs),
                                  .tile_rows = one.tile_rows,
                                  .num_tiles = num_tiles,
                                  .tiles = to_tiles.as<AdapterTile>(),
                                  .run_ends = to_ends.as<int32_t>()},
                                 stream);
      },
      {&to_tiles, &to_ends});
  EXPECT_EQ(to_ends.ints(), run_ends);
  const auto bytes = to_tiles.bytes();
  std::vector<AdapterTile> tiles(static_cast<size_t>(num_tiles));
  std::memcpy(tiles.data(), bytes.data(), bytes.size());
  std::vector<int> covered(static_cast<size_t>(num_pairs));
  int64_t num_begun = 0;
  for (const AdapterTile& tile : tiles) {
    num_begun += tile.rows > 0 ? 1 : 0;
    ASSERT_LE(tile.rows, one.tile_rows);
    for (int32_t place = tile.first; place < tile.first + tile.rows; ++place) {
      const AdapterTile& mine = want[static_cast<size_t>(place)];
      ++covered[static_cast<size_t>(place)];
      EXPECT_EQ(std::tie(tile.slot, tile.rank, tile.targets, tile.scaling, tile.group),
                std::tie(mine.slot, mine.rank, mine.targets, mine.scaling, mine.group))
          << "sorted row " << place;
    }
  }
  int64_t num_wanted = 0;  // at most the tiles that each expert's runs fill
  for (size_t place = 0, in_run = 0; place < want.size(); ++place) {
    EXPECT_EQ(covered[place], want[place].rows > 0 ? 1 : 0) << "sorted row " << place;
    const bool goes_on = place > 0 && want[place].rows > 0 &&
                         want[place].group == want[place - 1].group &&
                         want[place].first == want[place - 1].first && want[place - 1].rows > 0;
    in_run = goes_on ? in_run + 1 : 0;
    num_wanted += want[place].rows > 0 && in_run % static_cast<size_t>(one.tile_rows) == 0 ? 1 : 0;
  }
  EXPECT_EQ(num_begun, num_wanted);
}

TEST(CudaAdapters, ExpertTilesHaveTheRowsOfOneExpertAndRun) {
  const AdapterTile all{0, 300, 0, 16, 7, 2};
  expect_tiles({300, 3, 8, 64, {all}});
  expect_tiles({300, 3, 8, 8, {all}});
  expect_tiles({1, 2, 128, 8, {{0, 1, 3, 4, 1, 1}}});  // one tile per sorted row
  // Rows without an adapter at both ends and between, a run without rows, runs of one row.
  expect_tiles({300,
                4,
                16,
                8,
                {{2, 1, 0, 4, 7, 1},
                 {3, 90, 1, 64, 3, 2},
                 {93, 0, 5, 1, 1, 1},
                 {100, 150, 2, 7, 7, 0.5F},
                 {250, 49, 0, 4, 7, 1}}});
  // From the middle of the first run to the middle of the last.
  expect_tiles(
      {60, 3, 8, 8, {{10, 100, 2, 8, 7, 1}, {112, 20, 1, 4, 7, 1}, {132, 300, 0, 16, 7, 3}}, 90});
  expect_tiles({40, 2, 4, 8, {{0, 20, 0, 4, 7, 1}, {20, 20, 1, 8, 7, 1}, {40, 0}, {40, 0}}});
}

TEST(CudaAdapters, ExpertTilesNameWhatIsWrong) {
  EXPECT_TRUE(make_expert_tiles({}, nullptr).is_ok());
  EXPECT_EQ(num_expert_tiles_of(24, 8, 2, 8), 19);
  EXPECT_EQ(num_expert_tiles_of(24, 8, 4, 8), 24);
  ExpertTilesArgs args{.num_pairs = 24, .num_experts = 8, .num_runs = 4097, .num_tiles = 24};
  EXPECT_STREQ(make_expert_tiles(args, nullptr).fault, "runs must be from 1 to 4096");
  args.num_runs = 2;
  EXPECT_STREQ(make_expert_tiles(args, nullptr).fault,
               "tiles must be as many as num_expert_tiles_of() says");
  args.tile_rows = 65;
  EXPECT_STREQ(make_expert_tiles(args, nullptr).fault, "rows of a tile must be from 1 to 64");
}

TEST(CudaAdapters, ARowIsTheSameInAnyTileAndBesideABrokenRow) {
  const Linear linear{512, {700, 300}};
  for (const Type type : {Type::kFloat32, Type::kBfloat16}) {
    const Floats x = random_floats(kRows * linear.terms, 1);
    const Floats before = random_floats(kRows * linear.columns(), 2);
    Floats slots = random_floats(kSlots * linear.slot_stride(), 3, 0.1);
    const std::vector<AdapterTile> one_each = {
        {0, 1, 1, 16, 3, 2}, {1, 1, 1, 16, 3, 2}, {2, 1, 1, 16, 3, 2}, {3, 1, 0, 8, 3, 1}};
    const Floats alone = added(linear, type, one_each, slots, x, before);
    for (int64_t i = 0; i < linear.slot_stride(); ++i)
      slots[static_cast<size_t>(i)] = std::nanf("");
    const std::vector<AdapterTile> both = {{3, 1, 0, 8, 3, 1}, {0, 3, 1, 16, 3, 2}};
    const Floats together = added(linear, type, both, slots, x, before);
    const auto width = static_cast<size_t>(linear.columns());
    EXPECT_TRUE(std::equal(alone.begin(), alone.begin() + static_cast<int64_t>(3 * width),
                           together.begin()));
    for (size_t i = 3 * width; i < 4 * width; ++i) EXPECT_TRUE(std::isnan(together[i])) << i;
    EXPECT_TRUE(std::equal(alone.begin() + static_cast<int64_t>(4 * width), alone.end(),
                           together.begin() + static_cast<int64_t>(4 * width)));
  }
}

/// At each bound and one past it.
TEST(CudaAdapters, HaveRanksTilesAndColumnsOfAnInt) {
  alignas(16) float workspace = 0;
  AddAdaptersArgs args{.terms = 8, .columns = 1 << 22, .num_tiles = 65535};
  args.num_parts = 1;
  args.parts[0] = {0, 1 << 22, 0, 8, 1};
  args.next_size = 1 << 22;
  args.workspace = &workspace;
  EXPECT_EQ(fault_of(args), nullptr);
  const auto changed = [&](auto change) {
    AddAdaptersArgs other = args;
    change(other);
    const char* fault = fault_of(other);
    return std::string(fault == nullptr ? "" : fault);
  };
  EXPECT_THAT(changed([](auto& a) { a.num_tiles = 65536; }), HasSubstr("65535"));
  EXPECT_THAT(changed([](auto& a) { a.rank_max = 65; }), HasSubstr("1 to 64"));
  EXPECT_THAT(changed([](auto& a) { a.rank_max = 0; }), HasSubstr("1 to 64"));
  EXPECT_THAT(changed([](auto& a) { a.columns += 1; }), HasSubstr("2^22"));
  EXPECT_THAT(changed([](auto& a) { a.next_size += 1; }), HasSubstr("2^22"));
  EXPECT_THAT(changed([](auto& a) { a.parts[0].columns += 1; }), HasSubstr("some of the matrix's"));
  EXPECT_THAT(changed([](auto& a) { a.parts[0].b = 12; }), HasSubstr("multiples of 8"));
}

TEST(CudaAdapters, NameWhatIsWrong) {
  EXPECT_TRUE(add_adapters({}, nullptr).is_ok());
  AddAdaptersArgs args = Linear{8, {3, 5}}.args(Type::kBfloat16);
  EXPECT_TRUE(add_adapters(args, nullptr).is_ok()) << "without tiles there is no work";
  args.num_tiles = 65536;
  EXPECT_STREQ(add_adapters(args, nullptr).fault, "tiles must be at most 65535");
  args.num_tiles = 1;
  args.columns = 7;
  EXPECT_STREQ(add_adapters(args, nullptr).fault, "columns of parts must be some of the matrix's");
  args = Linear{8, {3}}.args(Type::kBfloat16);
  args.num_tiles = 1;
  args.rank_max = 65;
  EXPECT_STREQ(add_adapters(args, nullptr).fault, "rank_max must be from 1 to 64");
  args = Linear{9, {3}}.args(Type::kBfloat16);
  args.num_tiles = 1;
  EXPECT_THAT(add_adapters(args, nullptr).fault, HasSubstr("multiples of 8"));
  args = Linear{8, {3}}.args(Type::kBfloat16);
  args.num_tiles = 1;
  args.num_parts = 4;
  EXPECT_STREQ(add_adapters(args, nullptr).fault, "parts of a matrix must be at most 3");
  args = Linear{8, {3}}.args(Type::kBfloat16);
  args.num_tiles = 1;
  if (adapters_workspace(args) > 0) {
    EXPECT_STREQ(add_adapters(args, nullptr).fault,
                 "adapters need a workspace at an address of 16 bytes");
  }
}

}  // namespace
}  // namespace primerl::cuda
