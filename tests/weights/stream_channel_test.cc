// A weight channel over links: an end that is slow, late, dead or damaged delays no other and gets
// the newest version.
#include "kernels/weights/stream_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/conformance/channel_weights.h"
#include "tests/weights/link_wire.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint32_t kTrainer = 0, kEngine = 1, kOther = 2;

class StreamChannelTest : public testing::Test {
 protected:
  StreamChannelTest() {
    trainer_ = wire_.add(setup());
    engine_ = wire_.add(setup());
    other_ = wire_.add(setup());
    wire_.carry_all();  // they request the newest
  }
  StreamChannelSetup setup() {
    StreamChannelSetup setup;
    setup.resource = "weights";
    setup.chunk_bytes = 700;  // no tensor is a multiple of it
    setup.names = {"training", "inference#0", "inference#1"};
    setup.log = [this](std::string_view line) { log_.emplace_back(line); };
    return setup;
  }
  void publish(int64_t version) {
    const Status published = trainer_->publish(channel_weights(version));
    ASSERT_TRUE(published.ok()) << published.error().text();
  }
  static Error fault_of(WeightChannel& channel, int64_t version) {
    const auto fetched = channel.fetch({}, PolicyVersion(version));
    return fetched.ok() ? error(Code::kInternal, "it was fetched") : fetched.error();
  }
  static bool has(WeightChannel& channel, int64_t version) {
    const auto fetched = channel.fetch({}, PolicyVersion(version));
    return fetched.ok() && is_whole(**fetched, version);
  }
  static uint64_t bytes_of_a_version() {
    uint64_t sum = 0;
    const auto weights = channel_weights(0);  // must stay valid in the loop
    for (const auto& tensor : weights->tensors) sum += tensor.bytes.size();
    return sum;
  }

  ConnectionWire wire_;
  std::vector<std::string> log_;
  std::shared_ptr<StreamChannel> trainer_, engine_, other_;
};

TEST_F(StreamChannelTest, AVersionThatHasNotArrivedIsRequestedAgain) {
  EXPECT_EQ(fault_of(*engine_, 1).code(), Code::kUnavailable);
  EXPECT_THAT(fault_of(*engine_, 1).text(), HasSubstr("nothing is being sent"));
  publish(1);
  wire_.carry(kTrainer, kEngine, 3);  // the offer and two chunks
  const Error coming = fault_of(*engine_, 1);
  EXPECT_EQ(coming.code(), Code::kUnavailable);
  EXPECT_THAT(coming.text(),
              HasSubstr(fmt::format(
                  "1400 of {} bytes of version 1 of tenant 0 have arrived from 'training'",
                  bytes_of_a_version())));
  EXPECT_TRUE(engine_->newest({}).is_none());
  wire_.carry_all();
  EXPECT_EQ(engine_->newest({}), PolicyVersion(1));
  EXPECT_TRUE(has(*engine_, 1));
  EXPECT_TRUE(has(*trainer_, 1));
}

TEST_F(StreamChannelTest, BytesAreSentAsSoonAsTheyArePublished) {
  publish(1);
  // No further request is needed: an offer and the data come next.
  EXPECT_EQ(wire_.carry(kTrainer, kEngine), 2 + bytes_of_a_version() / 700 + 2);
  EXPECT_TRUE(has(*engine_, 1));
}

TEST_F(StreamChannelTest, ASlowEndSkipsVersionsAndDelaysNoOther) {
  publish(1);
  wire_.carry(kTrainer, kOther, 2);
  for (int64_t version = 2; version <= 6; ++version) {
    publish(version);
    wire_.carry(kTrainer, kEngine);
    wire_.carry(kEngine, kTrainer);
    wire_.carry(kTrainer, kEngine);
    EXPECT_TRUE(has(*engine_, version)) << version;
  }
  // It still gets the whole version in transfer, and then at once the newest.
  const uint64_t before = wire_.num_bytes;
  wire_.carry_all();
  EXPECT_TRUE(has(*other_, 6));
  EXPECT_EQ(fault_of(*other_, 5).code(), Code::kNotFound);
  EXPECT_EQ(wire_.num_bytes - before, 2 * bytes_of_a_version() - 700);
}

TEST_F(StreamChannelTest, ALateOrRestartedEndGetsTheNewest) {
  for (int64_t version = 1; version <= 3; ++version) publish(version);
  wire_.carry_all();
  engine_ = wire_.restart(kEngine, setup());
  const uint64_t before = wire_.num_bytes;
  wire_.carry_all();
  EXPECT_TRUE(has(*engine_, 3));
  EXPECT_EQ(fault_of(*engine_, 2).code(), Code::kNotFound);
  EXPECT_EQ(wire_.num_bytes - before, bytes_of_a_version());
  publish(4);
  wire_.carry_all();
  EXPECT_TRUE(has(*engine_, 4));
  EXPECT_TRUE(has(*other_, 4));
}

TEST_F(StreamChannelTest, AnEngineThatDiesMidwayLeavesNothingBehind) {
  publish(1);
  wire_.carry(kTrainer, kEngine, 4);
  engine_ = wire_.restart(kEngine, setup());
  EXPECT_EQ(wire_.carry(kTrainer, kEngine), 1u);  // its request; nothing of the old transfer
  wire_.carry_all();
  EXPECT_TRUE(has(*engine_, 1));
}

TEST_F(StreamChannelTest, ARestartedPublisherMayBeginAtAnyVersion) {
  for (int64_t version = 4; version <= 5; ++version) publish(version);
  wire_.carry_all();
  trainer_ = wire_.restart(kTrainer, setup());
  EXPECT_TRUE(has(*engine_, 5));  // a complete version stays until there is a newer one
  publish(3);
  wire_.carry_all();
  EXPECT_EQ(engine_->newest({}), PolicyVersion(3));
  EXPECT_TRUE(has(*engine_, 3));
  EXPECT_EQ(fault_of(*engine_, 5).code(), Code::kUnavailable);
}

TEST_F(StreamChannelTest, ThereIsOnePublisherWhileItLives) {
  publish(1);
  wire_.carry_all();
  const Status second = engine_->publish(channel_weights(2));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code(), Code::kExists);
  EXPECT_THAT(second.error().text(),
              HasSubstr("weight channel 'weights' has a publisher already: 'training'"));
  engine_->peer_ended(kTrainer, 1);
  EXPECT_TRUE(engine_->publish(channel_weights(2)).ok());
  EXPECT_TRUE(has(*engine_, 2));
  EXPECT_EQ(fault_of(*engine_, 1).code(), Code::kNotFound);
}

TEST_F(StreamChannelTest, OtherTensorsAreRefusedWithBothShapesAndDelayNoOther) {
  const auto wanted = manifest_of(*channel_weights(0, {12})).value();
  ASSERT_TRUE(engine_->expect(wanted).ok());
  for (int64_t version = 1; version <= 2; ++version) {
    publish(version);
    wire_.carry_all();
    const Error refused = fault_of(*engine_, version);
    EXPECT_EQ(refused.code(), Code::kInvalid);
    EXPECT_THAT(refused.text(),
                HasSubstr("'a.weight' is offered as F32 [33, 65], wanted as F32 [12, 65]"));
    EXPECT_FALSE(engine_->wait_for({}, PolicyVersion(version), Duration::forever()));
    EXPECT_TRUE(has(*other_, version));
  }
}

TEST_F(StreamChannelTest, VersionsThatArrivedBeforeExpectAreComparedToo) {
  publish(1);
  wire_.carry_all();
  ASSERT_TRUE(engine_->expect(manifest_of(*channel_weights(0, {12})).value()).ok());
  EXPECT_THAT(fault_of(*engine_, 1).text(), HasSubstr("offered as F32 [33, 65]"));
}

TEST_F(StreamChannelTest, ALateEndGetsTheNewestOfEveryKey) {
  const WeightsKey first{TenantSlot(0)}, second{TenantSlot(1)};
  for (const int64_t version : {1, 2})
    for (const WeightsKey key : {first, second})
      ASSERT_TRUE(trainer_->publish(channel_weights_of(key, version)).ok());
  wire_.carry_all();
  for (const WeightsKey key : {first, second}) {
    EXPECT_EQ(engine_->newest(key), PolicyVersion(2));
    const auto fetched = engine_->fetch(key, PolicyVersion(2));
    ASSERT_TRUE(fetched.ok()) << fetched.error().text();
    EXPECT_TRUE(are_same(**fetched, *channel_weights_of(key, 2)));
  }
  EXPECT_TRUE(engine_->wait_for(second, PolicyVersion(2), Duration()));
  EXPECT_FALSE(engine_->wait_for({TenantSlot(2)}, PolicyVersion(0), Duration()));
}

TEST_F(StreamChannelTest, DamagedVersionsAreRequestedAgainAFewTimes) {
  for (const int so_often : {3, 4}) {
    int left = so_often;
    wire_.on_frame = [&](uint32_t, uint32_t to, PeerFrame& frame) {
      if (to != kEngine || frame.body.empty() || left == 0) return true;
      --left;
      std::vector<std::byte> bytes(frame.body.bytes().begin(), frame.body.bytes().end());
      bytes[bytes.size() / 2] ^= std::byte{1};
      frame.body = Blob(std::move(bytes));
      return true;
    };
    // One tensor of one chunk is damaged at a time: each checksum is tested separately.
    log_.clear();
    auto one = std::make_shared<WeightSnapshot>();
    one->version = trainer_->newest({}).is_none() ? PolicyVersion(1) : trainer_->newest({}).next();
    one->tensors.push_back(channel_tensor("a", DataType::kU8, {500}, one->version.value));
    ASSERT_TRUE(trainer_->publish(one).ok());
    wire_.carry_all();
    EXPECT_EQ(left, 0);
    EXPECT_EQ(log_.size(), 3u);
    EXPECT_THAT(log_.front(),
                AllOf(HasSubstr("from 'training' is requested again"), HasSubstr("'a'")));
    const auto fetched = engine_->fetch({}, one->version);
    if (so_often == 3)
      EXPECT_TRUE(fetched.ok());
    else
      EXPECT_EQ(fetched.ok() ? Code::kInternal : fetched.error().code(), Code::kCorrupt);
    EXPECT_TRUE(other_->fetch({}, one->version).ok());
  }
}

TEST_F(StreamChannelTest, FramesOfAnOlderIncarnationAreIgnored) {
  publish(1);
  const auto stale = trainer_->next(kEngine, 1);
  ASSERT_TRUE(stale.has_value());
  engine_->handle(kTrainer, 2, *trainer_->next(kOther, 1));  // a frame of its next incarnation
  engine_->handle(kTrainer, 1, *stale);
  EXPECT_FALSE(engine_->next(kTrainer, 1).has_value());
  EXPECT_TRUE(engine_->next(kTrainer, 2).has_value());
}

TEST_F(StreamChannelTest, StrangeFramesAreLoggedAndDoNoHarm) {
  engine_->handle(kTrainer, 1, PeerFrame());
  trainer_->handle(kEngine, 1, {{std::byte{1}, std::byte{0}, std::byte{7}}, {}});
  EXPECT_EQ(log_.size(), 2u);
  publish(1);
  wire_.carry_all();
  EXPECT_TRUE(has(*engine_, 1));
  EXPECT_TRUE(has(*other_, 1));
}

/// Empty tensors whose names and shapes have that many bytes.
std::shared_ptr<WeightSnapshot> names_of(size_t num_bytes, size_t num_tensors) {
  auto made = std::make_shared<WeightSnapshot>();
  made->version = PolicyVersion(1);
  const auto fill = [&](size_t more) {
    made->tensors.clear();
    for (size_t i = 0; i < num_tensors; ++i)
      made->tensors.push_back(
          {fmt::format("{:06}", i) +
               std::string(more / num_tensors + (i < more % num_tensors ? 1 : 0), 'x'),
           DataType::kU8,
           {0},
           Blob()});
    return encode(manifest_of(*made).value()).size();
  };
  EXPECT_EQ(fill(num_bytes - fill(0)), num_bytes);
  return made;
}

TEST_F(StreamChannelTest, HostileFramesDoNoHarm) {
  const uint64_t seed = stable_hash("hostile");
  SCOPED_TRACE(fmt::format("seed {}", seed));
  RandomStream draws(seed);
  wire_.on_frame = [&](uint32_t from, uint32_t, PeerFrame& frame) {
    // One in four frames of the other engine is cut short, changed or extended.
    if (from != kOther && draws.below(4) != 0) return true;
    auto& head = frame.head;
    switch (draws.below(4)) {
      case 0:
        head.resize(draws.below(head.size() + 1));
        break;
      case 1:
        head[draws.below(head.size())] ^= static_cast<std::byte>(1 + draws.below(255));
        break;
      case 2:
        head.resize(head.size() + draws.below(64));
        break;
      default:
        frame.body = Blob(std::vector<std::byte>(draws.below(2000)));
    }
    return true;
  };
  for (int64_t version = 1; version <= 50; ++version) {
    publish(version);
    for (uint32_t i = 0; i < 30; ++i) {
      wire_.carry(kTrainer, kEngine, 20);
      wire_.carry(kEngine, kTrainer, 20);
      wire_.carry(kOther, kEngine, 20);
    }
    const PolicyVersion newest = engine_->newest({});
    EXPECT_TRUE(newest.is_none() || has(*engine_, newest.value)) << newest.value;
  }
  wire_.on_frame = nullptr;
  engine_ = wire_.restart(kEngine, setup());
  wire_.carry_all();
  EXPECT_TRUE(has(*engine_, 50));
}

TEST_F(StreamChannelTest, RefusesNamesAndShapesBeyondAFrameAndTakesThemAtTheLimit) {
  const Status refused = trainer_->publish(names_of(kStreamManifestBytesMax + 1, 2100));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_THAT(refused.error().text(),
              HasSubstr("2100 tensors need 8388609 bytes, a link carries 8388608"));
  ASSERT_TRUE(trainer_->publish(names_of(kStreamManifestBytesMax, 2100)).ok());
  wire_.carry_all();
  EXPECT_EQ(engine_->newest({}), PolicyVersion(1));
}

TEST_F(StreamChannelTest, WaitsForAVersionUntilItHasCome) {
  EXPECT_FALSE(engine_->wait_for({}, PolicyVersion(1), Duration()));
  bool has_come = false;
  std::thread waiting(
      [&] { has_come = engine_->wait_for({}, PolicyVersion(1), Duration::seconds(60)); });
  publish(1);
  wire_.carry_all();
  waiting.join();
  EXPECT_TRUE(has_come);
}

TEST(LinkChannelAlone, IsAChannelOfOneProcess) {
  const auto alone = make_stream_channel({.resource = "weights"});
  ASSERT_TRUE(alone->publish(channel_weights(1)).ok());
  const auto fetched = alone->fetch({}, PolicyVersion(1));
  ASSERT_TRUE(fetched.ok());
  EXPECT_TRUE(is_whole(**fetched, 1));
  EXPECT_EQ(alone->fetch({}, PolicyVersion(2)).error().code(), Code::kNotFound);
}

/// The key is dropped at the engine first, and at the trainer when all has been sent.
TEST_F(StreamChannelTest, NothingOfADroppedKeyIsKeptThatArrivesLater) {
  const WeightsKey gone{TenantSlot(1), AdapterId(1)};
  ASSERT_TRUE(trainer_->publish(channel_weights_of(gone, 1)).ok());
  wire_.carry(kTrainer, kEngine, 2);  // the offer and one chunk
  engine_->drop(gone);
  wire_.carry_all();
  EXPECT_TRUE(engine_->newest(gone).is_none());
  EXPECT_FALSE(engine_->fetch(gone, PolicyVersion(1)).ok());
  const uint64_t sent = wire_.num_bytes;
  publish(1);
  wire_.carry_all();
  EXPECT_EQ(wire_.num_bytes - sent, 2 * bytes_of_a_version())
      << "the dropped one is not sent again";
  EXPECT_TRUE(has(*engine_, 1));
  EXPECT_EQ(other_->newest(gone), PolicyVersion(1)) << "here it was not dropped";
  trainer_->drop(gone);
  other_->drop(gone);
  EXPECT_TRUE(other_->newest(gone).is_none());
  EXPECT_TRUE(trainer_->newest(gone).is_none());
}

/// A trainer that starts from an older checkpoint numbers its snapshots as before.
TEST_F(StreamChannelTest, AKeyThatANewPublisherUsesAgainIsReceived) {
  const WeightsKey again{TenantSlot(1), AdapterId(1)};
  ASSERT_TRUE(trainer_->publish(channel_weights_of(again, 1)).ok());
  wire_.carry_all();
  trainer_->drop(again);
  engine_->drop(again);
  trainer_ = wire_.restart(kTrainer, setup());
  ASSERT_TRUE(trainer_->publish(channel_weights_of(again, 7)).ok());
  wire_.carry_all();
  EXPECT_EQ(engine_->newest(again), PolicyVersion(7));
  EXPECT_TRUE(engine_->fetch(again, PolicyVersion(7)).ok());
}

TEST_F(StreamChannelTest, AnEndThatStartsLaterDoesNotGetADroppedKey) {
  const WeightsKey gone{TenantSlot(1), AdapterId(1)};
  ASSERT_TRUE(trainer_->publish(channel_weights_of(gone, 1)).ok());
  publish(1);
  wire_.carry_all();
  trainer_->drop(gone);
  engine_ = wire_.restart(kEngine, setup());
  wire_.carry_all();
  EXPECT_TRUE(has(*engine_, 1));
  EXPECT_TRUE(engine_->newest(gone).is_none());
}

}  // namespace
}  // namespace primerl
