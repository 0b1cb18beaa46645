#include "kernels/weights/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/conformance/channel_weights.h"

namespace primerl {
namespace {

WeightManifest manifest() { return manifest_of(*channel_weights(3)).value(); }

TEST(WeightManifest, IsWhatASnapshotHasWithoutItsBytes) {
  const auto made = manifest();
  ASSERT_EQ(made.tensors.size(), 4U);
  EXPECT_EQ(describe(made.tensors[0]), "F32 [33, 65]");
  EXPECT_EQ(describe(made.tensors[1]), "BF16 []");
  EXPECT_EQ(num_bytes(made.tensors[1]).value(), 2U);
  EXPECT_EQ(num_bytes(made.tensors[2]).value(), 0U);
  EXPECT_EQ(manifest_of(*channel_weights(4)).value().hash(), made.hash());
  EXPECT_NE(manifest_of(*channel_weights(4, {34})).value().hash(), made.hash());
}

TEST(WeightManifest, CountsNoBytesThatSixtyFourBitsCannot) {
  EXPECT_FALSE(num_bytes({"x", DataType::kF32, {int64_t{1} << 40, int64_t{1} << 40}}).ok());
  EXPECT_FALSE(num_bytes({"x", DataType::kF32, {-1}}).ok());
}

TEST(WeightManifest, NamesEightDifferencesAndCountsTheRest) {
  WeightManifest wanted, offered;
  for (int i = 10; i < 30; ++i) wanted.tensors.push_back({std::to_string(i), DataType::kF32, {i}});
  EXPECT_TRUE(check_offered(wanted, wanted).ok());
  const Status refused = check_offered(wanted, offered);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), testing::HasSubstr("'17' is missing, wanted as F32 [17]"));
  EXPECT_THAT(refused.error().text(), testing::Not(testing::HasSubstr("'18'")));
  EXPECT_THAT(refused.error().text(), testing::HasSubstr("and 12 more tensors that differ"));
}

TEST(WeightManifest, ReadsBackWhatItWrote) {
  EXPECT_EQ(decode_manifest(encode(manifest())).value(), manifest());
  EXPECT_EQ(decode_manifest(encode(WeightManifest())).value(), WeightManifest());
  VersionRecord record{{{}, PolicyVersion(9)}, 77, {1, 2, 0xffffffff}};
  EXPECT_EQ(decode_version_record(encode(record)).value(), record);
}

TEST(WeightManifest, RefusesEveryFlippedBitAndEveryCut) {
  const auto whole = encode(manifest());
  for (size_t i = 0; i < whole.size(); ++i) {
    auto changed = whole;
    changed[i] ^= std::byte{4};
    EXPECT_FALSE(decode_manifest(changed).ok()) << i;
    EXPECT_FALSE(decode_manifest(std::span(whole).first(i)).ok()) << i;
  }
  const auto record = encode(VersionRecord{{{}, PolicyVersion(9)}, 77, {1, 2, 3}});
  for (size_t i = 0; i < record.size(); ++i) {
    auto changed = record;
    changed[i] ^= std::byte{4};
    EXPECT_FALSE(decode_version_record(changed).ok()) << i;
    EXPECT_FALSE(decode_version_record(std::span(record).first(i)).ok()) << i;
  }
}

TEST(WeightManifest, RefusesTensorsOutOfOrder) {
  auto swapped = manifest();
  std::swap(swapped.tensors[0], swapped.tensors[3]);
  EXPECT_FALSE(decode_manifest(encode(swapped)).ok());
}

TEST(WeightManifest, ChecksBytes) {
  const auto snapshot = channel_weights(3);
  VersionRecord record{{{}, PolicyVersion(3)}, manifest().hash(), {0, 0, 0, 0}};
  EXPECT_EQ(check_bytes(*snapshot, record).error().code(), Code::kCorrupt);
  record.checks.pop_back();
  EXPECT_EQ(check_bytes(*snapshot, record).error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace primerl
