#include "kernels/weights/memory_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace primerl {
namespace {

std::shared_ptr<const WeightSnapshot> snapshot(int64_t version) {
  auto made = std::make_shared<WeightSnapshot>();
  made->version = PolicyVersion(version);
  return made;
}

TEST(MemoryChannel, HasNothingBeforeTheFirstVersion) {
  const auto channel = make_memory_channel();
  EXPECT_TRUE(channel->newest({}).is_none());
  const auto fetched = channel->fetch({}, PolicyVersion(0));
  ASSERT_FALSE(fetched.ok());
  EXPECT_EQ(fetched.error().code(), Code::kNotFound);
  EXPECT_FALSE(channel->publish(nullptr).ok());
}

TEST(MemoryChannel, RefusesAVersionThatDoesNotRise) {
  const auto channel = make_memory_channel();
  ASSERT_TRUE(channel->publish(snapshot(4)).ok());
  EXPECT_FALSE(channel->publish(snapshot(4)).ok());
  EXPECT_FALSE(channel->publish(snapshot(3)).ok());
  EXPECT_TRUE(channel->publish(snapshot(7)).ok());
  EXPECT_EQ(channel->newest({}), PolicyVersion(7));
}

TEST(MemoryChannel, RetiresAVersionWhenTwoNewerOnesExist) {
  const auto channel = make_memory_channel();
  const auto first = snapshot(1);
  ASSERT_TRUE(channel->publish(first).ok());
  ASSERT_TRUE(channel->publish(snapshot(2)).ok());
  EXPECT_EQ(channel->fetch({}, PolicyVersion(1)).value(), first);
  ASSERT_TRUE(channel->publish(snapshot(3)).ok());
  EXPECT_EQ(channel->fetch({}, PolicyVersion(1)).error().code(), Code::kNotFound);
  EXPECT_TRUE(channel->fetch({}, PolicyVersion(2)).ok());
}

TEST(MemoryChannel, ServesReceiversOnOtherThreads) {
  const auto channel = make_memory_channel();
  ASSERT_TRUE(channel->publish(snapshot(1)).ok());
  std::thread receiver([&] {
    for (PolicyVersion seen; seen < PolicyVersion(500);) {
      const auto newest = channel->newest({});
      EXPECT_GE(newest, seen);
      seen = newest;
      if (const auto fetched = channel->fetch({}, newest); fetched.ok()) {
        EXPECT_EQ(fetched.value()->version, newest);
      }
    }
  });
  for (int64_t version = 2; version <= 500; ++version)
    EXPECT_TRUE(channel->publish(snapshot(version)).ok());
  receiver.join();
}

TEST(MemoryChannel, HoldsAsManyKeysAsWrittenAndNoMore) {
  const auto channel = make_memory_channel();
  const auto publish = [&](size_t tenant, int64_t version) {
    auto snapshot = std::make_shared<WeightSnapshot>();
    snapshot->key.tenant = TenantSlot(static_cast<uint32_t>(tenant));
    snapshot->version = PolicyVersion(version);
    return channel->publish(snapshot);
  };
  for (size_t tenant = 0; tenant < kWeightsKeysMax; ++tenant) ASSERT_TRUE(publish(tenant, 0).ok());
  const Status refused = publish(kWeightsKeysMax, 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_TRUE(publish(0, 1).ok());
  const WeightsKey last{TenantSlot(static_cast<uint32_t>(kWeightsKeysMax) - 1)};
  EXPECT_EQ(channel->newest(last), PolicyVersion(0));
}

}  // namespace
}  // namespace primerl
