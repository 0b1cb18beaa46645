/// The guarantees of every WeightChannel (kernels/weights/snapshot.h and channel.h), as tests over
/// a factory. tests/weights/channel_process_test.cc tests what only channels between processes
/// guarantee.
///
/// Include in one test file and write
///   INSTANTIATE_TEST_SUITE_P(Shm, ChannelConformance, ::testing::Values(my_channel_under_test()));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <thread>

#include "kernels/weights/channel.h"
#include "tests/conformance/channel_weights.h"
#include "tests/store/scratch_folder.h"

namespace primerl {

/// The two ends of a channel; one object for a channel inside one process.
struct ChannelEnds {
  std::shared_ptr<WeightChannel> publisher;
  std::shared_ptr<WeightChannel> receiver;
};

struct ChannelUnderTest {
  std::string name;
  std::function<ChannelEnds(const ChannelSetup&)> make;
};

inline std::ostream& operator<<(std::ostream& out, const ChannelUnderTest& channel) {
  return out << channel.name;
}

class ChannelConformance : public ::testing::TestWithParam<ChannelUnderTest> {
 protected:
  ChannelSetup setup(size_t versions_max = 2) const {
    ChannelSetup made;
    made.run_folder = folder_.path();
    made.resource = "weights";
    made.versions_max = versions_max;
    return made;
  }
  ChannelEnds make(size_t versions_max = 2) { return GetParam().make(setup(versions_max)); }

  static void must_publish(WeightChannel& channel, int64_t version) {
    const Status published = channel.publish(channel_weights(version));
    ASSERT_TRUE(published.ok()) << published.error().text();
  }
  static void must_fetch(WeightChannel& channel, int64_t version) {
    const auto fetched = channel.fetch({}, PolicyVersion(version));
    ASSERT_TRUE(fetched.ok()) << fetched.error().text();
    EXPECT_TRUE(is_whole(**fetched, version));
  }
  static Code code_of_fetch(WeightChannel& channel, int64_t version) {
    const auto fetched = channel.fetch({}, PolicyVersion(version));
    return fetched.ok() ? Code::kInternal : fetched.error().code();
  }

  static void must_publish_of(WeightChannel& channel, WeightsKey key, int64_t version) {
    const Status published = channel.publish(channel_weights_of(key, version));
    ASSERT_TRUE(published.ok()) << published.error().text();
  }
  static void must_fetch_of(WeightChannel& channel, WeightsKey key, int64_t version) {
    const auto fetched = channel.fetch(key, PolicyVersion(version));
    ASSERT_TRUE(fetched.ok()) << fetched.error().text();
    EXPECT_TRUE(are_same(**fetched, *channel_weights_of(key, version)))
        << to_string((*fetched)->name());
  }

  const ScratchFolder folder_;
};

TEST_P(ChannelConformance, HasNothingBeforeTheFirstVersion) {
  const auto ends = make();
  EXPECT_TRUE(ends.receiver->newest({}).is_none());
  // kUnavailable: a channel whose bytes may be in transit.
  EXPECT_THAT(code_of_fetch(*ends.receiver, 0),
              testing::AnyOf(Code::kNotFound, Code::kUnavailable));
  EXPECT_EQ(code_of_fetch(*ends.receiver, -1), Code::kNotFound);
  EXPECT_FALSE(ends.publisher->publish(nullptr).ok());
}

TEST_P(ChannelConformance, CarriesEveryByteNameTypeAndShape) {
  const auto ends = make();
  for (int64_t version = 0; version < 6; ++version) {
    must_publish(*ends.publisher, version);
    EXPECT_EQ(ends.receiver->newest({}), PolicyVersion(version));
    must_fetch(*ends.receiver, version);
  }
}

TEST_P(ChannelConformance, RefusesAVersionThatDoesNotRise) {
  const auto ends = make();
  must_publish(*ends.publisher, 4);
  EXPECT_EQ(ends.publisher->publish(channel_weights(4)).error().code(), Code::kInvalid);
  EXPECT_EQ(ends.publisher->publish(channel_weights(3)).error().code(), Code::kInvalid);
  must_publish(*ends.publisher, 7);
  EXPECT_EQ(ends.receiver->newest({}), PolicyVersion(7));
  must_fetch(*ends.receiver, 4);
}

TEST_P(ChannelConformance, KeepsAsManyVersionsAsWrittenAndNoMore) {
  for (const size_t versions_max : {size_t{1}, size_t{2}, size_t{3}}) {
    const ScratchFolder folder;
    ChannelSetup own = setup(versions_max);
    own.run_folder = folder.path();
    const auto ends = GetParam().make(own);
    const auto kept = static_cast<int64_t>(versions_max);
    for (int64_t version = 1; version <= kept; ++version) must_publish(*ends.publisher, version);
    must_fetch(*ends.receiver, 1);
    must_publish(*ends.publisher, kept + 1);
    EXPECT_EQ(code_of_fetch(*ends.receiver, 1), Code::kNotFound);
    must_fetch(*ends.receiver, 2);
    must_fetch(*ends.receiver, kept + 1);
  }
}

TEST_P(ChannelConformance, KeepsEqualVersionsOfSeveralKeysApart) {
  const auto ends = make();
  const WeightsKey keys[] = {
      {TenantSlot(0)}, {TenantSlot(1)}, {TenantSlot(1), AdapterId(2)}, {TenantSlot(70'000)}};
  for (const int64_t version : {3, 4}) {
    for (const WeightsKey key : keys) {
      EXPECT_EQ(ends.receiver->newest(key), PolicyVersion(version == 3 ? -1 : 3)) << to_string(key);
      must_publish_of(*ends.publisher, key, version);
      EXPECT_EQ(ends.receiver->newest(key), PolicyVersion(version)) << to_string(key);
    }
    for (const WeightsKey key : keys) must_fetch_of(*ends.receiver, key, version);
  }
  for (const WeightsKey key : keys) must_fetch_of(*ends.receiver, key, 3);
}

TEST_P(ChannelConformance, AVersionIsRetiredOnlyByNewerOnesOfItsKey) {
  const auto ends = make();
  const WeightsKey slow{TenantSlot(1)}, fast{TenantSlot(0)};
  must_publish_of(*ends.publisher, slow, 1);
  for (int64_t version = 1; version <= 9; ++version) {
    must_publish_of(*ends.publisher, fast, version);
    must_fetch_of(*ends.receiver, fast, version);
  }
  must_fetch_of(*ends.receiver, slow, 1);
  must_fetch_of(*ends.receiver, fast, 8);
  const auto retired = ends.receiver->fetch(fast, PolicyVersion(7));
  ASSERT_FALSE(retired.ok());
  EXPECT_EQ(retired.error().code(), Code::kNotFound);
  EXPECT_THAT(retired.error().text(), testing::HasSubstr("version 7 of tenant 0"));
  must_publish_of(*ends.publisher, slow, 2);
  EXPECT_EQ(ends.publisher->publish(channel_weights_of(slow, 2)).error().code(), Code::kInvalid);
  must_fetch_of(*ends.receiver, slow, 1);
}

TEST_P(ChannelConformance, FetchedWeightsNeverChangeAndStayValid) {
  auto ends = make();
  std::vector<std::shared_ptr<const WeightSnapshot>> held;
  for (int64_t version = 1; version <= 9; ++version) {
    must_publish(*ends.publisher, version);
    auto fetched = ends.receiver->fetch({}, PolicyVersion(version));
    ASSERT_TRUE(fetched.ok()) << fetched.error().text();
    held.push_back(*fetched);
  }
  for (int64_t version = 1; version <= 9; ++version)
    EXPECT_TRUE(is_whole(*held[static_cast<size_t>(version - 1)], version)) << version;
  ends = {};
  for (int64_t version = 1; version <= 9; ++version)
    EXPECT_TRUE(is_whole(*held[static_cast<size_t>(version - 1)], version)) << version;
}

TEST_P(ChannelConformance, RefusesTensorsThatChangeBetweenVersions) {
  const auto ends = make();
  must_publish(*ends.publisher, 1);
  const Status other = ends.publisher->publish(channel_weights(2, {34}));
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code(), Code::kInvalid);
  EXPECT_THAT(other.error().text(),
              testing::HasSubstr("'a.weight' is offered as F32 [34, 65], wanted as F32 [33, 65]"));
  EXPECT_EQ(ends.receiver->newest({}), PolicyVersion(1));
  must_publish(*ends.publisher, 2);
}

TEST_P(ChannelConformance, RefusesAnInconsistentSnapshot) {
  const auto ends = make();
  auto short_bytes = std::make_shared<WeightSnapshot>(*channel_weights(1));
  short_bytes->tensors[0].shape = {1, 65};
  EXPECT_EQ(ends.publisher->publish(short_bytes).error().code(), Code::kInvalid);
  auto twice = std::make_shared<WeightSnapshot>(*channel_weights(1));
  twice->tensors[1] = twice->tensors[0];
  EXPECT_EQ(ends.publisher->publish(twice).error().code(), Code::kInvalid);
  EXPECT_TRUE(ends.receiver->newest({}).is_none());
}

TEST_P(ChannelConformance, FindsUnknownMissingAndMisshapenTensorsBeforeAnythingIsGiven) {
  const auto ends = make();
  const auto wanted = manifest_of(*channel_weights(0, {12, "b.other"})).value();
  ASSERT_TRUE(ends.receiver->expect(wanted).ok());
  must_publish(*ends.publisher, 0);
  const auto fetched = ends.receiver->fetch({}, PolicyVersion(0));
  ASSERT_FALSE(fetched.ok());
  EXPECT_EQ(fetched.error().code(), Code::kInvalid);
  EXPECT_THAT(fetched.error().text(),
              testing::AllOf(testing::HasSubstr(
                                 "'a.weight' is offered as F32 [33, 65], wanted as F32 [12, 65]"),
                             testing::HasSubstr("'b.buffer' is unknown, offered as U8 [7, 0, 3]"),
                             testing::HasSubstr("'b.other' is missing, wanted as U8 [7, 0, 3]")));
}

TEST_P(ChannelConformance, GivesWhatTheReceiverExpects) {
  const auto ends = make();
  ASSERT_TRUE(ends.receiver->expect(WeightManifest()).ok());
  ASSERT_TRUE(ends.receiver->expect(manifest_of(*channel_weights(0)).value()).ok());
  ASSERT_TRUE(ends.receiver->expect(manifest_of(*channel_weights(3)).value()).ok());
  EXPECT_FALSE(ends.receiver->expect(manifest_of(*channel_weights(0, {5})).value()).ok());
  must_publish(*ends.publisher, 0);
  must_fetch(*ends.receiver, 0);
}

TEST_P(ChannelConformance, TakesWeightsWithoutTensors) {
  const auto ends = make();
  auto none = std::make_shared<WeightSnapshot>();
  none->version = PolicyVersion(0);
  ASSERT_TRUE(ends.publisher->publish(none).ok());
  const auto fetched = ends.receiver->fetch({}, PolicyVersion(0));
  ASSERT_TRUE(fetched.ok()) << fetched.error().text();
  EXPECT_TRUE((*fetched)->tensors.empty());
}

TEST_P(ChannelConformance, GivesTwoReceiversOfOneProcessTheSameBytes) {
  const auto ends = make();
  must_publish(*ends.publisher, 1);
  const auto one = ends.receiver->fetch({}, PolicyVersion(1));
  const auto two = ends.receiver->fetch({}, PolicyVersion(1));
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(*one, *two);
}

/// The receiver drops it first, or the publisher.
TEST_P(ChannelConformance, ADroppedKeyIsGoneAtBothEndsAndNoOther) {
  const auto ends = make();
  const WeightsKey stays{TenantSlot(0)};
  for (uint32_t use = 1; use <= 2; ++use) {
    const WeightsKey gone{TenantSlot(1), AdapterId(use)};
    for (const int64_t version : {3, 4}) {
      must_publish_of(*ends.publisher, gone, version);
      must_publish_of(*ends.publisher, stays, 10 * use + version);
    }
    const auto held = ends.receiver->fetch(gone, PolicyVersion(4));
    ASSERT_TRUE(held.ok()) << held.error().text();
    (use == 1 ? ends.receiver : ends.publisher)->drop(gone);
    (use == 1 ? ends.publisher : ends.receiver)->drop(gone);
    for (const auto& end : {ends.publisher, ends.receiver}) {
      EXPECT_TRUE(end->newest(gone).is_none());
      for (const int64_t version : {3, 4})
        EXPECT_FALSE(end->fetch(gone, PolicyVersion(version)).ok());
    }
    EXPECT_TRUE(are_same(**held, *channel_weights_of(gone, 4))) << "it was fetched before";
    must_fetch_of(*ends.receiver, stays, 10 * use + 3);
    must_fetch_of(*ends.receiver, stays, 10 * use + 4);
  }
}

TEST_P(ChannelConformance, DroppingAnUnknownKeyChangesNothing) {
  const auto ends = make();
  for (const auto& end : {ends.publisher, ends.receiver}) end->drop({TenantSlot(5)});
  must_publish(*ends.publisher, 1);
  for (const auto& end : {ends.publisher, ends.receiver}) end->drop({TenantSlot(5)});
  must_fetch(*ends.receiver, 1);
  EXPECT_EQ(ends.publisher->publish(channel_weights(1)).error().code(), Code::kInvalid);
}

/// A later tenant may have another rank, and more tenants come than a channel has keys.
TEST_P(ChannelConformance, ServesMoreUsesOfASlotThanItHoldsKeys) {
  const auto ends = make();
  const WeightsKey stays{TenantSlot(0)};
  must_publish_of(*ends.publisher, stays, 1);
  const std::string& name = GetParam().name;
  const uint32_t num_uses = name.starts_with("memory") ? 10'000 : 300;
  for (uint32_t use = 1; use <= num_uses; ++use) {
    auto weights = std::make_shared<WeightSnapshot>(*channel_weights(1, {use % 2 == 0 ? 3 : 4}));
    weights->key = {TenantSlot(1), AdapterId(use)};
    const Status published = ends.publisher->publish(weights);
    ASSERT_TRUE(published.ok()) << use << ": " << published.error().text();
    if (use % 50 == 0) {
      EXPECT_TRUE(ends.receiver->fetch(weights->key, PolicyVersion(1)).ok());
    }
    ends.publisher->drop(weights->key);
    ends.receiver->drop(weights->key);
  }
  EXPECT_THAT(ends.receiver->describe(), testing::Not(testing::HasSubstr("adapter")));
  must_fetch_of(*ends.receiver, stays, 1);
}

TEST_P(ChannelConformance, ServesReceiversOnOtherThreadsWhileItPublishes) {
  const auto ends = make();
  constexpr int64_t kLast = 30;
  must_publish(*ends.publisher, 1);
  const auto receive = [&] {
    for (PolicyVersion seen; seen < PolicyVersion(kLast);) {
      const auto newest = ends.receiver->newest({});
      EXPECT_GE(newest, seen);
      seen = newest;
      const auto fetched = ends.receiver->fetch({}, newest);
      if (fetched.ok()) {
        EXPECT_TRUE(is_whole(**fetched, newest.value));
      } else {
        EXPECT_EQ(fetched.error().code(), Code::kNotFound) << fetched.error().text();
      }
    }
  };
  std::thread first(receive), second(receive);
  for (int64_t version = 2; version <= kLast; ++version) must_publish(*ends.publisher, version);
  first.join();
  second.join();
}

}  // namespace primerl
