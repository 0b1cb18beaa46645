// What channels between processes promise: whole versions, even if any process dies at any time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/random.h"
#include "tests/conformance/channel_weights.h"
#include "tests/store/scratch_folder.h"
#include "tests/weights/channels.h"
#include "tests/weights/child.h"

namespace primerl {
namespace {

constexpr WeightsShape kLarge = {4000, "b.buffer"};  // the same as the child's

class ChannelProcesses : public testing::TestWithParam<std::string> {
 protected:
  std::vector<std::string> arguments(const std::string& what, int64_t number,
                                     const std::string& more = "") const {
    return {what, GetParam(), folder_.path().string(), std::to_string(number), more};
  }
  ChannelSetup setup() const { return channel_setup(folder_.path().string()); }
  std::shared_ptr<WeightChannel> open() const { return open_channel(GetParam(), setup()); }

  /// The newest version, which must be complete.
  static int64_t newest_whole(WeightChannel& channel) {
    const PolicyVersion newest = channel.newest({});
    const auto fetched = channel.fetch({}, newest);
    EXPECT_TRUE(fetched.ok()) << (fetched.ok() ? "" : fetched.error().text());
    EXPECT_TRUE(fetched.ok() && is_whole(**fetched, newest.value, kLarge)) << newest.value;
    return newest.value;
  }

  const ScratchFolder folder_;
};

TEST_P(ChannelProcesses, CarryVersionsToReceiversInOtherProcesses) {
  Child first(arguments("receive", 40)), second(arguments("receive", 40));
  EXPECT_EQ(first.line(), "receiving 40");  // before there is a publisher
  Child publisher(arguments("publish", 0, "41"));
  Child late(arguments("receive", 40));
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(second.wait(), 0);
  EXPECT_EQ(late.wait(), 0);
  EXPECT_EQ(publisher.finish(), 0);
}

TEST_P(ChannelProcesses, APublisherKilledBeforeAnyStepLeavesWholeVersionsOnly) {
  std::vector<std::string> steps;
  {
    const ScratchFolder other;
    ChannelSetup watched = channel_setup(other.path().string());
    watched.probe = [&](std::string_view step) { steps.emplace_back(step); };
    const auto channel = open_channel(GetParam(), watched);
    ASSERT_TRUE(channel->publish(channel_weights(0, kLarge)).ok());
  }
  ASSERT_GE(steps.size(), 4U);
  const auto receiver = open();
  int64_t version = 0;
  {
    Child publisher(arguments("publish", version, "1"));
    EXPECT_EQ(publisher.line(), "published 0");
    EXPECT_EQ(newest_whole(*receiver), 0);
    EXPECT_EQ(publisher.finish(), 0);
  }
  for (const auto& step : steps) {
    const bool is_last = step == steps.back();
    Child dying(arguments("die", version + 1, step));
    EXPECT_EQ(dying.wait(), -SIGKILL) << step;
    // The last step comes after the one that makes the version visible.
    EXPECT_EQ(newest_whole(*receiver), is_last ? version + 1 : version) << step;
    Child next(arguments("publish", version + 1, "2"));
    EXPECT_EQ(next.line(), "published " + std::to_string(version + 1)) << step;
    EXPECT_EQ(next.line(), "published " + std::to_string(version + 2)) << step;
    EXPECT_EQ(newest_whole(*receiver), version + 2) << step;
    EXPECT_TRUE(receiver->fetch({}, PolicyVersion(version + 1)).ok()) << step;
    EXPECT_EQ(next.finish(), 0);
    version += 2;
  }
}

TEST_P(ChannelProcesses, APublisherKilledAtAnyMomentLeavesWholeVersionsOnly) {
  const uint64_t seed = stable_hash(folder_.path().string());
  SCOPED_TRACE(fmt::format("seed {}", seed));
  RandomStream draws(seed);
  const auto receiver = open();
  int64_t seen = -1;
  for (int round = 0; round < 12; ++round) {
    Child publisher(arguments("forever", seen + 1));
    const uint64_t num_lines = 1 + draws.below(6);
    std::string line;
    for (uint64_t i = 0; i < num_lines; ++i) line = publisher.line();
    // After reading so many bytes, wherever the publisher is by then.
    volatile uint64_t sum = 0;
    for (uint64_t i = draws.below(2'000'000); i > 0; --i) sum = sum + i;
    publisher.kill();
    EXPECT_EQ(publisher.wait(), -SIGKILL);
    const int64_t newest = newest_whole(*receiver);
    EXPECT_GE(newest, std::stoll(line.substr(line.find(' ')))) << line;
    seen = newest;
  }
}

TEST_P(ChannelProcesses, RefuseASecondPublisherWhileTheFirstLives) {
  Child first(arguments("publish", 5, "1"));
  EXPECT_EQ(first.line(), "published 5");
  const auto second = open();
  const Status refused = second->publish(channel_weights(6, kLarge));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kExists);
  EXPECT_EQ(newest_whole(*second), 5);
  first.kill();
  first.wait();
  // A new publisher may start at any version: it resumes from a checkpoint.
  ASSERT_TRUE(second->publish(channel_weights(3, kLarge)).ok());
  EXPECT_EQ(newest_whole(*second), 3);
  EXPECT_EQ(second->fetch({}, PolicyVersion(5)).error().code(), Code::kNotFound);
}

TEST_P(ChannelProcesses, ANewPublisherReplacesOnlyOldVersionsOfItsKeys) {
  const WeightsKey key{TenantSlot(0)}, other{TenantSlot(1)};
  const auto receiver = open();
  auto first = open();
  for (const int64_t version : {5, 6})
    for (const WeightsKey one : {key, other})
      ASSERT_TRUE(first->publish(channel_weights_of(one, version)).ok());
  EXPECT_EQ(receiver->newest(key), PolicyVersion(6));
  first.reset();
  const auto second = open();
  ASSERT_TRUE(second->publish(channel_weights_of(key, 3)).ok());
  EXPECT_EQ(receiver->newest(key), PolicyVersion(3));
  EXPECT_FALSE(receiver->fetch(key, PolicyVersion(6)).ok());
  EXPECT_EQ(receiver->newest(other), PolicyVersion(6));
  for (const int64_t version : {5, 6}) {
    const auto fetched = receiver->fetch(other, PolicyVersion(version));
    ASSERT_TRUE(fetched.ok()) << fetched.error().text();
    EXPECT_TRUE(are_same(**fetched, *channel_weights_of(other, version)));
  }
}

TEST_P(ChannelProcesses, AReceiverThatRetainsOrDiesDelaysNoOther) {
  const auto publisher = open();
  ASSERT_TRUE(publisher->publish(channel_weights(0, kLarge)).ok());
  Child holding(arguments("hold", 0)), dying(arguments("hold", 0));
  EXPECT_EQ(holding.line(), "holding 0");
  EXPECT_EQ(dying.line(), "holding 0");
  for (int64_t version = 1; version <= 10; ++version) {
    ASSERT_TRUE(publisher->publish(channel_weights(version, kLarge)).ok());
    if (version == 5) dying.kill();
  }
  EXPECT_EQ(newest_whole(*publisher), 10);
  EXPECT_EQ(holding.finish(), 0);  // the retained version never changed
}

TEST_P(ChannelProcesses, ARestartedReceiverGetsTheNewest) {
  const auto publisher = open();
  for (int64_t version = 0; version < 4; ++version)
    ASSERT_TRUE(publisher->publish(channel_weights(version, kLarge)).ok());
  for (int i = 0; i < 2; ++i) {
    Child receiver(arguments("receive", 3));
    EXPECT_EQ(receiver.line(), "receiving 3");
    EXPECT_EQ(receiver.line(), "received 1");
    EXPECT_EQ(receiver.wait(), 0);
  }
}

TEST_P(ChannelProcesses, RefuseAVersionBeyondTheLimitAndTakeOneAtIt) {
  const auto weights = channel_weights(0);
  uint64_t least = 0;
  for (const auto& tensor : weights->tensors) least += tensor.bytes.size();
  ChannelSetup small = setup();
  uint64_t limit = least;
  for (;; ++limit) {  // shm also counts its bytes around the tensors
    small.bytes_max = limit;
    small.resource = fmt::format("weights{}", limit);
    if (open_channel(GetParam(), small)->publish(weights).ok()) break;
    ASSERT_LT(limit, least + 4096);
  }
  small.bytes_max = limit - 1;
  small.resource = "small";
  const auto channel = open_channel(GetParam(), small);
  EXPECT_EQ(channel->publish(weights).error().code(), Code::kExhausted);
  EXPECT_TRUE(channel->newest({}).is_none());
}

INSTANTIATE_TEST_SUITE_P(Every, ChannelProcesses, testing::ValuesIn(process_channels()),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace primerl
