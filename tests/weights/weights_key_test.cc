#include "kernels/weights/weights_key.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr WeightsKey key(uint32_t tenant, uint32_t adapter = 0) {
  return {TenantSlot(tenant), AdapterId(adapter)};
}

/// The same version for that many tenants.
VersionsByKey versions_of(size_t num_keys) {
  VersionsByKey versions;
  for (size_t i = 0; i < num_keys; ++i)
    EXPECT_TRUE(versions.set(key(static_cast<uint32_t>(i)), PolicyVersion(5)));
  return versions;
}

TEST(WeightsKey, IsReadable) {
  EXPECT_EQ(to_string(WeightsKey()), "tenant 0");
  EXPECT_EQ(to_string(key(1, 2)), "adapter 2 of tenant 1");
  EXPECT_EQ(fmt::format("{}", KeyedVersion{key(1), PolicyVersion(3)}), "version 3 of tenant 1");
}

TEST(SnapshotKey, IsOfATenancyAndNamesIt) {
  const WeightsKey snapshot = snapshot_key(key(1, 2), 3);
  EXPECT_EQ(snapshot, key(1, 2 + (3U << 14)));
  EXPECT_TRUE(snapshot.is_snapshot());
  EXPECT_EQ(snapshot.snapshot_number(), 3U);
  EXPECT_EQ(snapshot.moving_key(), key(1, 2));
  EXPECT_FALSE(key(1, 2).is_snapshot());
  EXPECT_EQ(key(1, 2).moving_key(), key(1, 2));
  EXPECT_EQ(to_string(snapshot), "snapshot 3 of adapter 2 of tenant 1");
  EXPECT_EQ(to_string(snapshot_key(key(1), 1)), "snapshot 1 of tenant 1");
}

TEST(SnapshotKey, GoesToTheLastNumberOfTheLastTenancy) {
  const WeightsKey first = key(0), last = key(0, (1U << kTenancyBits) - 1);
  EXPECT_FALSE(last.is_snapshot());
  for (const WeightsKey moving : {first, last})
    for (const uint32_t n : {1U, kSnapshotNumberMax}) {
      const WeightsKey snapshot = snapshot_key(moving, n);
      EXPECT_FALSE(snapshot.adapter.is_none());
      EXPECT_TRUE(snapshot.is_snapshot());
      EXPECT_EQ(snapshot.snapshot_number(), n);
      EXPECT_EQ(snapshot.moving_key(), moving);
    }
  EXPECT_EQ(kSnapshotNumberMax, 262142U);
}

TEST(SnapshotKeyDeathTest, OneBeyondTheBoundsIsAMistake) {
  EXPECT_DEATH((void)snapshot_key(key(0), 0), "the number of a snapshot is out of range");
  EXPECT_DEATH((void)snapshot_key(key(0), kSnapshotNumberMax + 1),
               "the number of a snapshot is out of range");
  EXPECT_DEATH((void)snapshot_key(key(0, 1U << kTenancyBits), 1), "a snapshot of a snapshot");
}

TEST(VersionsByKey, OfOneTenantAreThoseOfItsKeys) {
  VersionsByKey versions;
  for (const WeightsKey one : {key(0), key(1), snapshot_key(key(1), 2), key(2)})
    ASSERT_TRUE(versions.set(one, PolicyVersion(3)));
  const auto keys_of = [&](uint32_t tenant) {
    std::vector<WeightsKey> keys;
    for (const auto& each : versions.of_tenant(TenantSlot(tenant))) keys.push_back(each.key);
    return keys;
  };
  EXPECT_THAT(keys_of(1), ElementsAre(key(1), snapshot_key(key(1), 2)));
  EXPECT_THAT(keys_of(2), ElementsAre(key(2)));
  EXPECT_THAT(keys_of(3), ::testing::IsEmpty());
}

TEST(VersionsByKey, AreSortedByTenantAndThenByAdapter) {
  VersionsByKey versions;
  EXPECT_TRUE(versions.of({}).is_none());
  for (const WeightsKey one : {key(2), key(0, 7), key(0), key(1)})
    ASSERT_TRUE(versions.set(one, PolicyVersion(3)));
  ASSERT_TRUE(versions.set(key(1), PolicyVersion(1)));
  const PolicyVersion one(1), three(3);
  EXPECT_THAT(versions.list(),
              ElementsAre(KeyedVersion{key(0), three}, KeyedVersion{key(0, 7), three},
                          KeyedVersion{key(1), one}, KeyedVersion{key(2), three}));
  EXPECT_EQ(versions.of(key(0, 7)), three);
  EXPECT_TRUE(versions.of(key(1, 7)).is_none());
}

TEST(VersionsByKey, AreRaisedAndNeverLowered) {
  VersionsByKey versions;
  for (const int64_t version : {3, 2, 3}) ASSERT_TRUE(versions.raise({}, PolicyVersion(version)));
  EXPECT_EQ(versions.of({}), PolicyVersion(3));
}

TEST(VersionsByKey, ADroppedKeyMakesRoomForAnother) {
  auto versions = versions_of(kWeightsKeysMax);
  versions.erase(key(kWeightsKeysMax));
  EXPECT_EQ(versions.list().size(), kWeightsKeysMax) << "it has no such key";
  versions.erase(key(7));
  EXPECT_TRUE(versions.of(key(7)).is_none());
  EXPECT_EQ(versions.of(key(8)), PolicyVersion(5));
  EXPECT_TRUE(versions.set(key(kWeightsKeysMax), PolicyVersion(1)));
  EXPECT_FALSE(versions.set(key(7), PolicyVersion(1)));
  for (const KeyedVersion& one : std::vector(versions.list())) versions.erase(one.key);
  EXPECT_TRUE(versions.empty());
}

TEST(VersionsByKey, HoldAsManyKeysAsWrittenAndNoMore) {
  auto versions = versions_of(kWeightsKeysMax);
  const auto before = versions;
  const auto one_more = key(kWeightsKeysMax);
  EXPECT_FALSE(versions.set(one_more, PolicyVersion(0)));
  EXPECT_FALSE(versions.raise(one_more, PolicyVersion(0)));
  EXPECT_EQ(versions, before);
  EXPECT_TRUE(versions.set(key(7), PolicyVersion(6)));
  EXPECT_EQ(versions.of(key(7)), PolicyVersion(6));
}

TEST(VersionsByKey, AnErasedKeyLeavesItsPlaceToAnother) {
  auto versions = versions_of(kWeightsKeysMax);
  versions.erase(key(kWeightsKeysMax));
  EXPECT_EQ(versions, versions_of(kWeightsKeysMax)) << "it was not there";
  versions.erase(key(7));
  EXPECT_TRUE(versions.of(key(7)).is_none());
  EXPECT_EQ(versions.of(key(8)), PolicyVersion(5));
  EXPECT_TRUE(versions.set(key(kWeightsKeysMax), PolicyVersion(0)));
}

TEST(CheckRises, RefusesWhatDoesNotRiseAndAKeyTooMany) {
  const KeyedVersion next{key(kWeightsKeysMax), PolicyVersion(0)};
  EXPECT_TRUE(check_rises(versions_of(kWeightsKeysMax - 1), next).ok());
  const auto full = versions_of(kWeightsKeysMax);
  const Status too_many = check_rises(full, next);
  ASSERT_FALSE(too_many.ok());
  EXPECT_EQ(too_many.error().code(), Code::kExhausted);
  EXPECT_TRUE(check_rises(full, {key(3), PolicyVersion(6)}).ok());
  const Status lower = check_rises(full, {key(3), PolicyVersion(5)});
  ASSERT_FALSE(lower.ok());
  EXPECT_EQ(lower.error().code(), Code::kInvalid);
  EXPECT_THAT(lower.error().text(),
              HasSubstr("version 5 of tenant 3 was published after version 5"));
}

TEST(DescribeNewest, NamesTheFirstFew) {
  EXPECT_EQ(describe_newest({}), "nothing was published yet");
  EXPECT_EQ(describe_newest(versions_of(2)),
            "newest: version 5 of tenant 0, version 5 of tenant 1");
  EXPECT_THAT(describe_newest(versions_of(9)), ::testing::EndsWith("of tenant 7, ..."));
}

}  // namespace
}  // namespace primerl
