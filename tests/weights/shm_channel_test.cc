// Specific to shared memory: segments to find, to bound and to remove.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/weights/shm_directory.h"
#include "kernels/weights/shm_slot.h"
#include "tests/conformance/channel_weights.h"
#include "tests/store/scratch_folder.h"
#include "tests/weights/channels.h"
#include "tests/weights/child.h"

namespace primerl {
namespace {

class ShmChannelTest : public testing::Test {
 protected:
  ChannelSetup setup() const { return channel_setup(folder_.path().string()); }
  std::shared_ptr<WeightChannel> open() const { return open_channel("shm", setup()); }
  std::vector<std::string> segments() const {
    return shm_names(ShmDirectory::kPrefix + ShmDirectory::key_of(setup()) + "-");
  }
  Child child(const std::string& what, int64_t number, const std::string& more = "") const {
    return Child({what, "shm", folder_.path().string(), std::to_string(number), more});
  }

  const ScratchFolder folder_;
};

TEST_F(ShmChannelTest, LeavesNothingAfterACleanEnd) {
  auto publisher = open(), receiver = open();
  ASSERT_TRUE(publisher->publish(channel_weights(1)).ok());
  auto held = receiver->fetch({}, PolicyVersion(1)).value();
  EXPECT_EQ(segments().size(), 2U);
  publisher.reset();
  EXPECT_EQ(segments().size(), 2U);  // a receiver is still there
  ASSERT_TRUE(receiver->fetch({}, PolicyVersion(1)).ok());
  receiver.reset();
  EXPECT_TRUE(segments().empty());
  EXPECT_TRUE(is_whole(*held, 1));
}

TEST_F(ShmChannelTest, AReceiverThatOutlivesAKilledPublisherCleansUp) {
  Child publisher = child("publish", 0, "1");
  EXPECT_EQ(publisher.line(), "published 0");
  auto receiver = open();
  ASSERT_TRUE(receiver->fetch({}, PolicyVersion(0)).ok());
  publisher.kill();
  publisher.wait();
  EXPECT_FALSE(segments().empty());
  receiver.reset();
  EXPECT_TRUE(segments().empty());
}

TEST_F(ShmChannelTest, TheNextStartRemovesAndReportsWhatACrashLeft) {
  {
    Child publisher = child("publish", 0, "3");
    for (int i = 0; i < 3; ++i) publisher.line();
    EXPECT_TRUE(remove_shm_leftovers(setup().shm_owner).empty());  // it is alive
    publisher.kill();
    publisher.wait();
  }
  EXPECT_EQ(segments().size(), 4U);
  const auto removed = remove_shm_leftovers(setup().shm_owner);
  ASSERT_EQ(removed.size(), 1U);
  EXPECT_EQ(removed[0].run_folder, folder_.path().string());
  EXPECT_EQ(removed[0].num_segments, 4U);
  EXPECT_GT(removed[0].num_bytes, 3U * 4000 * 65 * 4);
  EXPECT_THAT(removed[0].text(),
              testing::HasSubstr("removed 4 segments of shared memory (3.2 MB)"));
  EXPECT_TRUE(segments().empty());
  EXPECT_TRUE(remove_shm_leftovers(setup().shm_owner).empty());
}

TEST_F(ShmChannelTest, ReusesItsSlotsAndNeverHasMoreThanOneToSpare) {
  const auto publisher = open(), receiver = open();
  for (int64_t version = 0; version < 20; ++version) {
    ASSERT_TRUE(publisher->publish(channel_weights(version)).ok());
    ASSERT_TRUE(receiver->fetch({}, PolicyVersion(version)).ok());
  }
  EXPECT_EQ(segments().size(), 1U + 2U + 1U);
  const auto before = segments();
  ASSERT_TRUE(publisher->publish(channel_weights(20)).ok());
  EXPECT_EQ(segments(), before);
}

TEST_F(ShmChannelTest, GivesUpASlotThatAReceiverRetains) {
  const auto publisher = open(), receiver = open();
  std::vector<std::shared_ptr<const WeightSnapshot>> held;
  for (int64_t version = 0; version < 20; ++version) {
    ASSERT_TRUE(publisher->publish(channel_weights(version)).ok());
    held.push_back(receiver->fetch({}, PolicyVersion(version)).value());
    EXPECT_LE(segments().size(), 1U + 2U + 1U);  // named ones; the others are removed with their
                                                 // readers
  }
  for (int64_t version = 0; version < 20; ++version)
    EXPECT_TRUE(is_whole(*held[static_cast<size_t>(version)], version));
}

TEST_F(ShmChannelTest, RefusesAVersionWhoseBytesWereChanged) {
  const auto publisher = open(), receiver = open();
  ASSERT_TRUE(publisher->publish(channel_weights(1)).ok());
  {
    const auto slot = ShmSegment::open(segments().back(), ShmSegment::Access::kWrite).value();
    slot->writable()[slot->bytes().size() / 2] ^= std::byte{1};
  }
  const auto fetched = receiver->fetch({}, PolicyVersion(1));
  ASSERT_FALSE(fetched.ok());
  EXPECT_EQ(fetched.error().code(), Code::kCorrupt);
  EXPECT_THAT(fetched.error().text(), testing::HasSubstr("the bytes of tensor 'a.weight' are not"));
  ASSERT_TRUE(publisher->publish(channel_weights(2)).ok());
  EXPECT_TRUE(receiver->fetch({}, PolicyVersion(2)).ok());
}

TEST_F(ShmChannelTest, KeepsOneToSixteenVersions) {
  ChannelSetup own = setup();
  own.versions_max = 0;
  EXPECT_EQ(make_shm_channel(own).error().code(), Code::kInvalid);
  own.versions_max = kShmVersionsMax + 1;
  EXPECT_EQ(make_shm_channel(own).error().code(), Code::kInvalid);
  own.versions_max = kShmVersionsMax;
  const auto channel = make_shm_channel(own).value();
  for (int64_t version = 0; version < 40; ++version)
    ASSERT_TRUE(channel->publish(channel_weights(version)).ok());
  EXPECT_TRUE(channel->fetch({}, PolicyVersion(24)).ok());
  EXPECT_FALSE(channel->fetch({}, PolicyVersion(23)).ok());
}

TEST_F(ShmChannelTest, TheNextStartRemovesADirectoryThatWasLeftEmpty) {
  const std::string name = ShmDirectory::slot_name(ShmDirectory::key_of(setup()), 0);
  write_text(std::filesystem::path("/dev/shm") / name, "");
  const auto removed = remove_shm_leftovers(setup().shm_owner);
  ASSERT_EQ(removed.size(), 1U);
  EXPECT_EQ(removed[0].num_segments, 1U);
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path("/dev/shm") / name));
}

TEST_F(ShmChannelTest, HoldsAsManyKeysAsItHasSegmentsForAndNoMore) {
  ChannelSetup made = setup();
  made.versions_max = kShmVersionsMax;
  const auto channel = open_channel("shm", made);
  const auto keys_max = static_cast<uint32_t>((kShmSlotsMax - 1) / kShmVersionsMax);
  const auto publish = [&](uint32_t tenant, int64_t version) {
    return channel->publish(channel_weights_of({TenantSlot(tenant)}, version));
  };
  for (uint32_t tenant = 0; tenant < keys_max; ++tenant) ASSERT_TRUE(publish(tenant, 0).ok());
  const Status refused = publish(keys_max, 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_THAT(refused.error().text(), testing::HasSubstr("16 versions of each of 31 keys"));
  for (int64_t version = 1; version < 2 * static_cast<int64_t>(kShmVersionsMax); ++version)
    for (uint32_t tenant = 0; tenant < keys_max; ++tenant)
      ASSERT_TRUE(publish(tenant, version).ok());
  for (uint32_t tenant = 0; tenant < keys_max; ++tenant)
    for (const int64_t version : {kShmVersionsMax, 2 * kShmVersionsMax - 1})
      EXPECT_TRUE(channel->fetch({TenantSlot(tenant)}, PolicyVersion(version)).ok()) << tenant;
}

TEST_F(ShmChannelTest, ADroppedKeyGivesItsSegmentsBackAndItsPlace) {
  auto publisher = open(), receiver = open();
  const auto key = [](uint32_t tenant) { return WeightsKey{TenantSlot(tenant)}; };
  ASSERT_TRUE(publisher->publish(channel_weights_of(key(0), 1)).ok());
  const size_t before = segments().size();
  uint32_t num_keys = 1;
  while (publisher->publish(channel_weights_of(key(num_keys), 1)).ok()) ++num_keys;
  const auto held = receiver->fetch(key(1), PolicyVersion(1)).value();
  for (uint32_t tenant = 1; tenant < num_keys; ++tenant) publisher->drop(key(tenant));
  receiver->drop(key(1));
  EXPECT_EQ(segments().size(), before);
  EXPECT_TRUE(are_same(*held, *channel_weights_of(key(1), 1))) << "its mapping stays";
  for (uint32_t tenant = 1; tenant < num_keys; ++tenant)
    ASSERT_TRUE(publisher->publish(channel_weights_of(key(1000 + tenant), 1)).ok()) << tenant;
  EXPECT_EQ(publisher->publish(channel_weights_of(key(2000), 1)).error().code(), Code::kExhausted);
  ASSERT_TRUE(receiver->fetch(key(1001), PolicyVersion(1)).ok());
}

TEST_F(ShmChannelTest, RunsInTheSameFolderDoNotShareSegments) {
  const auto publisher = open();
  ASSERT_TRUE(publisher->publish(channel_weights(1)).ok());
  ChannelSetup other = setup();
  other.run_id = "another run";
  EXPECT_TRUE(open_channel("shm", other)->newest({}).is_none());
  other = setup();
  other.resource = "other";
  EXPECT_TRUE(open_channel("shm", other)->newest({}).is_none());
}

TEST(ShmSlot, RefusesMalformedHeaders) {
  EXPECT_FALSE(read_slot({}).ok());
  std::vector<std::byte> bytes(4096, std::byte{0xff});
  EXPECT_EQ(read_slot(bytes).error().code(), Code::kCorrupt);
}

TEST(ShmTable, TheNewestIsWhatWasPublishedLast) {
  ShmTable table;
  EXPECT_EQ(table.newest({}), nullptr);
  table.slots = {
      {{{}, PolicyVersion(9)}, 1, 4, 10}, {{{}, PolicyVersion(5)}, 2, 6, 10}, {{}, 3, 5, 10}};
  EXPECT_EQ(table.newest({})->version.version, PolicyVersion(5));
  EXPECT_EQ(table.find({{}, PolicyVersion(9)})->serial, 1U);
  EXPECT_EQ(table.find({}), nullptr);
}

}  // namespace
}  // namespace primerl
