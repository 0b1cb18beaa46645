// Steps of a replay that must wait for weights which are computed again.
#include "runtime/replay/replayed_channel.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/weights/memory_channel.h"
#include "tests/replay/replay_run.h"

namespace primerl::sim {
namespace {

std::vector<std::byte> answer(int64_t version, uint64_t tenant = 0, size_t num_bytes = 16) {
  std::vector<std::byte> bytes(num_bytes);
  const uint64_t key = tenant << 32;
  std::memcpy(bytes.data(), &key, sizeof key);
  std::memcpy(bytes.data() + sizeof key, &version, sizeof version);
  return bytes;
}

class WeightsOfAReplay : public ::testing::Test {
 protected:
  bool has(std::vector<std::vector<std::byte>> answers, std::string_view node = "decode") const {
    return versions_.has(host_of(*plan_, node), answers);
  }
  int32_t channel() const {
    for (size_t i = 0; i < plan_->resources.size(); ++i)
      if (plan_->resources[i].kind == "weight_channel") return static_cast<int32_t>(i);
    return -1;
  }
  const std::shared_ptr<const Plan> plan_ = demo_plan({});
  PublishedVersions versions_{*plan_};
};

// In the recorded run an engine fetched version 3 in a step that had begun before the version was
// published.
TEST_F(WeightsOfAReplay, AreWaitedForByTheStepThatTookThem) {
  EXPECT_FALSE(has({answer(0)}));
  versions_.add(channel(), {{}, PolicyVersion(2)});
  EXPECT_TRUE(has({answer(2)}));
  EXPECT_FALSE(has({answer(2), answer(3)}));
  versions_.add(channel(), {{}, PolicyVersion(3)});
  EXPECT_TRUE(has({answer(2), answer(3)}));
  versions_.add(channel(), {{}, PolicyVersion(1)});  // the newest counts
  EXPECT_TRUE(has({answer(3)}));
}

TEST_F(WeightsOfAReplay, OfOneTenantAreNotThoseOfAnother) {
  versions_.add(channel(), {{TenantSlot(0)}, PolicyVersion(3)});
  EXPECT_FALSE(has({answer(3, 1)}));
  versions_.add(channel(), {{TenantSlot(1)}, PolicyVersion(3)});
  EXPECT_TRUE(has({answer(3, 1), answer(3, 0)}));
}

TEST_F(WeightsOfAReplay, AreNotWaitedForByOtherSteps) {
  EXPECT_TRUE(has({}));
  EXPECT_TRUE(has({answer(-1)})) << "the channel was empty";
  EXPECT_TRUE(has({answer(7, 0, 17)})) << "it was refused, or it is an answer of the engine";
}

// Another group of the replay may be behind, and fetch the version in a recorded step.
TEST(AChannelOfAReplay, DropsAKeyOnlyAfterManyOthers) {
  std::vector<WeightsKey> dropped;
  ReplayedChannelSetup setup;
  const auto weights = make_memory_channel(2);
  setup.channel = weights;
  setup.next = [](GroupId) -> const std::vector<std::byte>* { return nullptr; };
  setup.dropped = [&](WeightsKey key) { dropped.push_back(key); };
  const auto channel = make_replayed_channel(std::move(setup));
  const auto key_of = [](uint32_t use) { return WeightsKey{TenantSlot(1), AdapterId(use)}; };
  constexpr auto kMost = static_cast<uint32_t>(kDroppedLaterMax);
  for (uint32_t use = 0; use <= kMost; ++use) {
    auto snapshot = std::make_shared<WeightSnapshot>();
    snapshot->key = key_of(use);
    snapshot->version = PolicyVersion(1);
    ASSERT_TRUE(channel->publish(snapshot).ok());
    channel->drop(key_of(use));
    channel->drop(key_of(use));  // by another group
    EXPECT_EQ(dropped.empty(), use < kMost) << use;
  }
  EXPECT_EQ(dropped, std::vector{key_of(0)});
  EXPECT_TRUE(weights->newest(key_of(0)).is_none());
  EXPECT_EQ(weights->newest(key_of(1)), PolicyVersion(1));
}

TEST(AChannelOfARun, DropsAKeyAtOnce) {
  const auto weights = make_memory_channel(2);
  const auto channel = make_recording_channel(weights, [](GroupId, std::vector<std::byte>) {});
  auto snapshot = std::make_shared<WeightSnapshot>();
  snapshot->version = PolicyVersion(1);
  ASSERT_TRUE(channel->publish(snapshot).ok());
  channel->drop({});
  EXPECT_TRUE(weights->newest({}).is_none());
}

TEST_F(WeightsOfAReplay, OfADroppedKeyAreForgotten) {
  versions_.add(channel(), {{TenantSlot(1)}, PolicyVersion(3)});
  versions_.forget(channel(), {TenantSlot(1)});
  EXPECT_FALSE(has({answer(3, 1)}));
}

}  // namespace
}  // namespace primerl::sim
