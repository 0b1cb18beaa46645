#include "kernels/engine/kv_layout.h"

#include <gtest/gtest.h>

#include "kernels/engine/block_hash.h"

namespace primerl {
namespace {

ModelConfig two_layers() {
  ModelConfig config;
  config.attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 8};
  config.layers.resize(2);
  return config;
}

TEST(KvLayout, HasKeysAndValuesOfEachLayer) {
  const KvLayout layout = kv_layout(two_layers(), DataType::kF32);
  EXPECT_EQ(layout.text(), "all: 0.keys F32 16, 0.values F32 16, 1.keys F32 16, 1.values F32 16");
  EXPECT_EQ(layout.bytes_per_token(), 2 * 2 * 16 * 4);
  EXPECT_EQ(layout.cache_bytes(10, 16), 10.0 * 16 * 256);
}

TEST(KvLayout, ATokenOfBf16HasHalfTheBytes) {
  EXPECT_EQ(kv_layout(two_layers(), DataType::kBF16).bytes_per_token(),
            kv_layout(two_layers(), DataType::kF32).bytes_per_token() / 2);
}

TEST(KvLayout, ACacheLargerThanAnIntegerHasASizeToo) {
  const KvLayout layout = kv_layout(two_layers(), DataType::kF32);
  EXPECT_EQ(layout.cache_bytes(int64_t{1} << 40, int64_t{1} << 30), 256 * 0x1p70);
}

/// With several groups the text says which planes belong together.
TEST(KvLayout, GroupsAreApartInTheText) {
  const KvPlane plane{.layer = 0, .name = "keys", .width = 1};
  const KvLayout apart{.groups = {{"all", {plane}}, {"window", {plane}}}};
  const KvLayout together{.groups = {{"all", {plane, plane}}}};
  EXPECT_EQ(apart.text(), "all: 0.keys F32 1; window: 0.keys F32 1");
  EXPECT_EQ(apart.bytes_per_token(), together.bytes_per_token());
  EXPECT_NE(apart.text(), together.text());
}

/// An engine that read fp32 bytes as bf16 would compute garbage without an error.
TEST(KvLayout, CachesOfTwoLayoutsShareNoName) {
  const std::vector<int32_t> tokens = {1, 2, 3, 4};
  const BlockScope scope{{TenantSlot(0), kWholeWeights}, "main:0", PolicyVersion(0)};
  ModelConfig wider = two_layers();
  wider.attention.num_kv_heads = 4;
  std::vector<BlockName> names;
  for (const KvLayout& layout :
       {kv_layout(two_layers(), DataType::kF32), kv_layout(two_layers(), DataType::kBF16),
        kv_layout(wider, DataType::kF32)}) {
    BlockHasher hasher("the same fingerprint", layout.text(), 4);
    names.push_back(hasher.next(hasher.begin(), tokens, scope).name());
  }
  EXPECT_NE(names[0], names[1]);
  EXPECT_NE(names[0], names[2]);
  EXPECT_NE(names[1], names[2]);
}

}  // namespace
}  // namespace primerl
