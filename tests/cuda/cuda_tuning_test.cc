// The parts in which operations are cut, by the size of the device.
#include "kernels/cuda/ops/cuda_tuning.h"

#include <gtest/gtest.h>

namespace primerl::cuda {
namespace {

constexpr Tuning kH200{.num_processors = 132};
constexpr HeadShape kHeads{16, 8, 128};

TEST(CudaTuning, SplitsOfDecodeAttentionFillTheDeviceAndHaveEnoughKeys) {
  EXPECT_EQ(decode_splits(kH200, 256, kHeads, 100'000), 1) << "the rows fill the device";
  EXPECT_EQ(decode_splits(kH200, 1, kHeads, 100'000), 64) << "the most";
  EXPECT_EQ(decode_splits(kH200, 1, kHeads, 1024), 4) << "256 keys each";
  EXPECT_EQ(decode_splits(kH200, 1, kHeads, 1023), 3);
  EXPECT_EQ(decode_splits(kH200, 1, kHeads, 5), 1);
  EXPECT_EQ(decode_splits(kH200, 0, kHeads, 0), 1);
}

TEST(CudaTuning, SplitsOfDecodeAttentionGrowWithTheDevice) {
  // 8 blocks of one row; a multiprocessor runs 4.
  EXPECT_EQ(decode_splits({.num_processors = 2}, 1, kHeads, 100'000), 1);
  EXPECT_EQ(decode_splits({.num_processors = 3}, 1, kHeads, 100'000), 2);
  EXPECT_EQ(decode_splits({.num_processors = 126}, 1, kHeads, 100'000), 63);
}

/// The matrices with few columns of Qwen3's 0.6B: 128 blocks each. Those of 8B use the library.
TEST(CudaTuning, SmallMGemmsHavePartsIfTheirBlocksFitTheDeviceAtOnce) {
  EXPECT_EQ(small_m_parts(kH200, 2048, 1024), 4);
  EXPECT_EQ(small_m_parts(kH200, 3072, 1024), 4);
  EXPECT_EQ(small_m_parts(kH200, 128, 32), 1);
  EXPECT_EQ(small_m_parts(kH200, 4096, 4096), 0);
  EXPECT_EQ(small_m_parts({.num_processors = 128}, 2048, 1024), 4) << "128 blocks";
  EXPECT_EQ(small_m_parts({.num_processors = 127}, 2048, 1024), 0) << "a block too many";
}

TEST(CudaTuning, SmallMGemmsHaveWholeChunksOfTermsAndTilesOfColumns) {
  EXPECT_EQ(small_m_parts(kH200, 768, 4096), 1) << "all terms are requested at once";
  EXPECT_EQ(small_m_parts(kH200, 896, 4096), 0) << "a chunk too many";
  EXPECT_EQ(small_m_parts(kH200, 100, 1024), 0) << "no whole chunks of terms";
  EXPECT_EQ(small_m_parts(kH200, 128, 33), 0) << "no whole tiles of columns";
  EXPECT_EQ(small_m_parts(kH200, 0, 1024), 0) << "no matrix";
}

}  // namespace
}  // namespace primerl::cuda
