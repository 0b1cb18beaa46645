// Arguments that the operations of a device refuse, at each bound and one past it: plain functions,
// so that no device is needed. Checks of adapters also depend on workspace sizes:
// adapter_ops_test.cc.
#include "kernels/cuda/ops/cuda_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace primerl::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMostRows = (int64_t{1} << 31) - 1;
constexpr int64_t kMostElements = kMostRows * 256;

/// "": no fault.
template <class... Args>
std::string fault(const Args&... args) {
  const char* text = fault_of(args...);
  return text == nullptr ? "" : text;
}

TEST(CudaChecks, NormsHaveTheWidthOfABlocksRegisters) {
  const auto norm = [](Type type, int64_t width, const void* x = nullptr) {
    return fault(RmsNormArgs{.rows = 1, .width = width, .type = type, .x = x});
  };
  EXPECT_EQ(norm(Type::kFloat32, 16384), "");
  EXPECT_THAT(norm(Type::kFloat32, 16388), HasSubstr("at most 65536 bytes"));
  EXPECT_EQ(norm(Type::kBfloat16, 32768), "");
  EXPECT_THAT(norm(Type::kBfloat16, 32776), HasSubstr("at most 65536 bytes"));
  const void* const odd = reinterpret_cast<const void*>(uintptr_t{4});
  EXPECT_EQ(norm(Type::kFloat32, 4096, odd), "");
  EXPECT_THAT(norm(Type::kFloat32, 4100, odd), HasSubstr("aligned to 16"));
  EXPECT_THAT(norm(Type::kFloat32, 0), HasSubstr("at least 1"));
  EXPECT_EQ(fault(RmsNormArgs{.rows = kMostRows, .width = 8}), "");
  EXPECT_THAT(fault(RmsNormArgs{.rows = kMostRows + 1, .width = 8}), HasSubstr("2^31 - 1"));
  EXPECT_THAT(fault(RmsNormArgs{.rows = -1, .width = 8}), HasSubstr("2^31 - 1"));
}

TEST(CudaChecks, RowsTimesWidthHaveABlockFor256Elements) {
  const auto swiglu = [](int64_t rows, int64_t width) {
    return fault(SwigluArgs{.rows = rows, .width = width});
  };
  EXPECT_EQ(swiglu(kMostElements, 1), "");
  EXPECT_THAT(swiglu(kMostElements + 1, 1), HasSubstr("2^39"));
  const auto gather = [](int64_t rows, int64_t width) {
    return fault(GatherRowsArgs{.rows = rows, .width = width});
  };
  EXPECT_EQ(gather(kMostElements / 4096, 4096), "");
  EXPECT_THAT(gather(kMostElements / 4096 + 1, 4096), HasSubstr("2^39"));
  const auto dot = [](int64_t rows, int32_t terms) {
    return fault(DotRowsArgs{.rows = rows, .width = 1, .terms = terms});
  };
  EXPECT_EQ(dot(kMostRows / 2, 2), "");
  EXPECT_THAT(dot(kMostRows / 2 + 1, 2), HasSubstr("2^31 - 1"));
  const auto drop = [](int64_t rows, int64_t width) {
    return fault(DropRowsArgs{.rows = rows, .width = width});
  };
  EXPECT_EQ(drop(kMostRows, 1024), "") << "256 random numbers per row";
  EXPECT_THAT(drop(kMostRows, 1025), HasSubstr("2^39 draws"));
  const auto embedding = [](int64_t width) {
    return fault(EmbeddingBackwardArgs{.num_ids = 1, .width = width});
  };
  EXPECT_EQ(embedding((1 << 24) - 256), "");
  EXPECT_THAT(embedding((1 << 24) - 255), HasSubstr("2^24 - 256"));
}

TEST(CudaChecks, AttentionHasHeadsOf64To256AndAtMost64Parts) {
  const auto decode = [](HeadShape heads, int32_t num_splits, int32_t block_size) {
    float workspace = 0;
    DecodeAttentionArgs args{
        .rows = 1, .heads = heads, .num_splits = num_splits, .workspace = &workspace};
    args.cache.block_size = block_size;
    return fault(args);
  };
  EXPECT_EQ(decode({65535, 1, 64}, 64, 16), "");
  EXPECT_THAT(decode({65536, 1, 64}, 1, 16), HasSubstr("65535"));
  EXPECT_THAT(decode({2, 1, 64}, 65, 16), HasSubstr("1 to 64"));
  EXPECT_THAT(decode({2, 1, 64}, 0, 16), HasSubstr("1 to 64"));
  EXPECT_THAT(decode({2, 1, 64}, 1, 8), HasSubstr("16 or more"));
  EXPECT_THAT(decode({2, 1, 64}, 1, 24), HasSubstr("power of two"));
  EXPECT_THAT(decode({2, 1, 96}, 1, 16), HasSubstr("64, 128 or 256"));
  EXPECT_THAT(decode({3, 2, 64}, 1, 16), HasSubstr("must divide"));
  const auto rotary = [](int64_t rows) {
    return fault(PagedRotaryArgs{.rows = rows, .heads = {6, 1, 64}, .rotary_dim = 64});
  };
  EXPECT_EQ(rotary(kMostRows), "") << "eight heads per row";
  EXPECT_THAT(rotary(kMostRows + 1), HasSubstr("2^34"));
}

TEST(CudaChecks, SamplersCountIdsIn24Bits) {
  int64_t workspace = 0;
  const auto sample = [&](int64_t rows, int64_t vocab_size, void* memory) {
    return fault(SampleArgs{
        .rows = rows, .vocab_size = vocab_size, .row_stride = vocab_size, .workspace = memory});
  };
  EXPECT_EQ(sample(65535, (1 << 24) - 1, &workspace), "");
  EXPECT_THAT(sample(1, 1 << 24, &workspace), HasSubstr("2^24 - 1"));
  EXPECT_THAT(sample(65536, 10, &workspace), HasSubstr("65535"));
  EXPECT_EQ(sample(65536, 10, nullptr), "") << "one block per row";
  EXPECT_THAT(fault(CrossEntropyArgs{.rows = 1, .vocab_size = 5, .row_stride = 4}),
              HasSubstr("at least vocab_size"));
}

TEST(CudaChecks, NarrowProductsHaveColumnsOfAGrid) {
  const auto narrow = [](int64_t terms, int64_t columns) {
    return fault(LowRankGemmArgs{.terms = terms, .columns = columns, .num_tiles = 1});
  };
  EXPECT_EQ(narrow(16, 8388480), "");
  EXPECT_THAT(narrow(16, 8388488), HasSubstr("up to 8388480"));
  EXPECT_THAT(narrow(24, 8), HasSubstr("multiple of 16"));
}

TEST(CudaChecks, MatricesOfFp8AreBlocksOf128) {
  const auto blocks = [](int64_t rows) {
    return fault(
        QuantiseBlocksArgs{.rows = rows, .width = 128, .code_stride = 128, .scale_stride = 1});
  };
  EXPECT_EQ(blocks((1 << 23) - 128), "");
  EXPECT_THAT(blocks(1 << 23), HasSubstr("2^23 - 128"));
  EXPECT_THAT(blocks(64), HasSubstr("multiples of 128"));
  const auto rows = [](int64_t count) {
    return fault(
        QuantiseRowsArgs{.rows = count, .width = 128, .code_stride = 256, .scale_stride = count});
  };
  EXPECT_EQ(rows(kMostElements / 256), "");
  EXPECT_THAT(rows(kMostElements / 256 + 1), HasSubstr("2^31 - 1"));
}

TEST(CudaChecks, RoutersHaveUpTo1024ExpertsAndPairsOfAnInt) {
  const auto router = [](int32_t experts, int32_t of_token) {
    return fault(RouterShape{.num_experts = experts, .experts_per_token = of_token}, int64_t{1});
  };
  EXPECT_EQ(router(1024, 1024), "");
  EXPECT_THAT(router(1025, 1), HasSubstr("1 to 1024"));
  EXPECT_THAT(router(8, 9), HasSubstr("to num_experts"));
  const auto sort = [](int64_t pairs) {
    return fault(SortByExpertArgs{.rows = pairs, .experts_per_token = 1, .num_experts = 8});
  };
  EXPECT_EQ(sort(kMostRows - 512), "");
  EXPECT_THAT(sort(kMostRows - 511), HasSubstr("2^31 - 1"));
}

}  // namespace
}  // namespace primerl::cuda
