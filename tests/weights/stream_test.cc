#include "kernels/weights/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/random.h"
#include "kernels/weights/byte_codec.h"
#include "tests/conformance/channel_weights.h"

namespace primerl {
namespace {

constexpr size_t kChunkBytes = 700;  // no tensor is a multiple of it

class WeightStreamTest : public testing::Test {
 protected:
  void publish(int64_t version, WeightsShape shape = {}) {
    const Status published = library_->publish(channel_weights(version, shape));
    ASSERT_TRUE(published.ok()) << published.error().text();
  }
  /// Requests and moves frames until there are no more, at most `frames_max`.
  Status carry(PolicyVersion version, int frames_max = 1 << 20) {
    RETURN_IF_ERROR(sender_->handle(receiver_->ask({{}, version})));
    for (int i = 0; i < frames_max; ++i) {
      const auto frame = sender_->next();
      if (!frame) break;
      ++num_frames_;
      num_bytes_ += frame->body.size();
      RETURN_IF_ERROR(receiver_->handle(*frame));
    }
    return ok();
  }

  const std::shared_ptr<StreamLibrary> library_ = std::make_shared<StreamLibrary>();
  std::optional<WeightStreamSender> sender_{std::in_place, library_, kChunkBytes};
  std::optional<WeightStreamReceiver> receiver_{std::in_place};
  int num_frames_ = 0;
  uint64_t num_bytes_ = 0;
};

TEST_F(WeightStreamTest, CarriesAVersionWhole) {
  publish(1);
  ASSERT_TRUE(carry(PolicyVersion(1)).ok());
  EXPECT_EQ(receiver_->num_received(), receiver_->num_expected());
  const auto taken = receiver_->take();
  ASSERT_NE(taken, nullptr);
  EXPECT_TRUE(is_whole(*taken, 1));
  EXPECT_EQ(receiver_->take(), nullptr);
  publish(2);
  ASSERT_TRUE(carry(PolicyVersion()).ok());  // the newest
  EXPECT_TRUE(is_whole(*receiver_->take(), 2));
  EXPECT_TRUE(is_whole(*taken, 1));
}

TEST_F(WeightStreamTest, GivesNothingBeforeTheLastByte) {
  publish(1);
  ASSERT_TRUE(carry(PolicyVersion(1), 0).ok());
  while (const auto frame = sender_->next()) {
    EXPECT_EQ(receiver_->take(), nullptr);
    ASSERT_TRUE(receiver_->handle(*frame).ok());
  }
  EXPECT_NE(receiver_->take(), nullptr);
}

TEST_F(WeightStreamTest, GoesOnWhereTheLinkBroke) {
  publish(1);
  ASSERT_TRUE(carry(PolicyVersion(1)).ok());
  receiver_->take();
  const int num_whole = num_frames_;
  const uint64_t num_data = num_bytes_;
  for (int broken_after = 0; broken_after < num_whole; ++broken_after) {
    num_bytes_ = 0;
    receiver_.emplace();
    ASSERT_TRUE(carry(PolicyVersion(1), broken_after).ok());
    sender_->reset();
    EXPECT_FALSE(sender_->next().has_value());
    ASSERT_TRUE(carry(PolicyVersion(1)).ok()) << broken_after;
    const auto taken = receiver_->take();
    ASSERT_NE(taken, nullptr) << broken_after;
    EXPECT_TRUE(is_whole(*taken, 1)) << broken_after;
    EXPECT_EQ(num_bytes_, num_data) << broken_after;  // no byte twice
  }
}

TEST_F(WeightStreamTest, BeginsAgainWhenTheBytesAreOthers) {
  publish(1);
  ASSERT_TRUE(carry(PolicyVersion(1), 5).ok());
  EXPECT_GT(receiver_->num_received(), 0U);
  // A new publisher, whose version 1 is different.
  const auto other = std::make_shared<StreamLibrary>();
  auto changed = std::make_shared<WeightSnapshot>(*channel_weights(7));
  changed->version = PolicyVersion(1);
  ASSERT_TRUE(other->publish(changed).ok());
  sender_.emplace(other, kChunkBytes);
  const Status carried = carry(PolicyVersion(1));
  ASSERT_TRUE(carried.ok()) << carried.error().text();
  const auto taken = receiver_->take();
  ASSERT_NE(taken, nullptr);
  EXPECT_TRUE(is_whole(WeightSnapshot{{}, PolicyVersion(7), taken->tensors}, 7));
}

TEST_F(WeightStreamTest, AnotherWishReplacesTheOneInHand) {
  publish(1);
  publish(2);
  ASSERT_TRUE(carry(PolicyVersion(1), 5).ok());
  ASSERT_TRUE(carry(PolicyVersion(2)).ok());
  EXPECT_TRUE(is_whole(*receiver_->take(), 2));
}

TEST_F(WeightStreamTest, SaysWhatThePublisherDoesNotHave) {
  auto refused = carry(PolicyVersion(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kNotFound);
  EXPECT_THAT(refused.error().text(), testing::HasSubstr("nothing of tenant 0 was published yet"));
  for (int64_t version = 1; version <= 3; ++version) publish(version);
  refused = carry(PolicyVersion(1));
  EXPECT_EQ(refused.error().code(), Code::kNotFound);
  EXPECT_THAT(refused.error().text(), testing::HasSubstr("its newest is version 3"));
  ASSERT_TRUE(carry(PolicyVersion(2)).ok());
  EXPECT_TRUE(is_whole(*receiver_->take(), 2));
}

TEST_F(WeightStreamTest, AVersionInTransferOutlivesItsRetirement) {
  publish(1);
  ASSERT_TRUE(carry(PolicyVersion(1), 3).ok());
  for (int64_t version = 2; version <= 4; ++version) publish(version);
  while (const auto frame = sender_->next()) ASSERT_TRUE(receiver_->handle(*frame).ok());
  EXPECT_TRUE(is_whole(*receiver_->take(), 1));
}

TEST_F(WeightStreamTest, RefusesOtherTensorsBeforeAByteOfData) {
  publish(1);
  ASSERT_TRUE(receiver_->expect(manifest_of(*channel_weights(0, {12})).value()).ok());
  const Status refused = carry(PolicyVersion(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kInvalid);
  EXPECT_THAT(refused.error().text(),
              testing::HasSubstr("'a.weight' is offered as F32 [33, 65], wanted as F32 [12, 65]"));
  EXPECT_EQ(num_bytes_, 0U);
}

TEST_F(WeightStreamTest, RefusesAVersionBeyondTheLimitAndTakesOneAtIt) {
  publish(1);
  const uint64_t needed = 33 * 65 * 4 + 60 + 64 + 129 * 8;  // each at a multiple of 64
  receiver_.emplace(needed - 1);
  EXPECT_EQ(carry(PolicyVersion(1)).error().code(), Code::kExhausted);
  receiver_.emplace(needed);
  ASSERT_TRUE(carry(PolicyVersion(1)).ok());
  EXPECT_TRUE(is_whole(*receiver_->take(), 1));
}

TEST_F(WeightStreamTest, FindsEveryFlippedByte) {
  publish(1);
  RandomStream draws(stable_hash("flips"));
  ASSERT_TRUE(carry(PolicyVersion(1)).ok());
  receiver_->take();
  const int num_whole = num_frames_;
  for (int flipped = 0; flipped < num_whole; ++flipped) {
    ASSERT_TRUE(sender_->handle(receiver_->ask({{}, PolicyVersion(1)})).ok());
    Status handled;
    for (int i = 0; handled.ok(); ++i) {
      auto frame = sender_->next();
      if (!frame) break;
      if (i == flipped) {
        std::vector<std::byte> body(frame->body.bytes().begin(), frame->body.bytes().end());
        auto& victim = body.empty() ? frame->head : body;
        victim[draws.below(victim.size())] ^= std::byte{0x40};
        frame->body = Blob(std::move(body));
      }
      handled = receiver_->handle(*frame);
    }
    EXPECT_EQ(handled.ok() ? Code::kInternal : handled.error().code(), Code::kCorrupt) << flipped;
    EXPECT_EQ(receiver_->take(), nullptr);
  }
  ASSERT_TRUE(carry(PolicyVersion(1)).ok());
  EXPECT_TRUE(is_whole(*receiver_->take(), 1));
}

TEST_F(WeightStreamTest, RefusesFramesOutOfTurn) {
  publish(1);
  EXPECT_FALSE(receiver_->handle(receiver_->ask({{}, PolicyVersion(1)})).ok());
  ASSERT_TRUE(carry(PolicyVersion(1), 2).ok());
  (void)sender_->next();  // lost
  const auto later = sender_->next();
  ASSERT_TRUE(later.has_value());
  EXPECT_EQ(receiver_->handle(*later).error().code(), Code::kCorrupt);
  EXPECT_FALSE(sender_->handle(*later).ok());
  EXPECT_FALSE(receiver_->handle(PeerFrame()).ok());
}

TEST_F(WeightStreamTest, CarriesAVersionWithoutTensors) {
  auto none = std::make_shared<WeightSnapshot>();
  none->version = PolicyVersion(0);
  ASSERT_TRUE(library_->publish(none).ok());
  ASSERT_TRUE(carry(PolicyVersion(0)).ok());
  const auto taken = receiver_->take();
  ASSERT_NE(taken, nullptr);
  EXPECT_TRUE(taken->tensors.empty());
}

TEST_F(WeightStreamTest, BringsTheNewestOfEveryKeyTheOldestPublicationFirst) {
  const WeightsKey first{TenantSlot(0)}, second{TenantSlot(1)}, third{TenantSlot(2)};
  for (const int64_t version : {1, 2, 3})
    for (const WeightsKey key : {third, first})
      ASSERT_TRUE(library_->publish(channel_weights_of(key, version)).ok());
  ASSERT_TRUE(library_->publish(channel_weights_of(second, 3)).ok());
  VersionsByKey has;
  ASSERT_TRUE(has.set(first, PolicyVersion(3)));
  ASSERT_TRUE(has.set(third, PolicyVersion(2)));
  std::vector<KeyedVersion> come;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(sender_->handle(receiver_->ask({}, has)).ok());
    while (const auto frame = sender_->next()) ASSERT_TRUE(receiver_->handle(*frame).ok());
    const auto taken = receiver_->take();
    if (taken == nullptr) break;
    EXPECT_TRUE(are_same(*taken, *channel_weights_of(taken->key, 3)));
    come.push_back(taken->name());
    ASSERT_TRUE(has.set(taken->key, taken->version));
  }
  EXPECT_EQ(come,
            (std::vector<KeyedVersion>{{third, PolicyVersion(3)}, {second, PolicyVersion(3)}}));
}

TEST_F(WeightStreamTest, TakesAWishAboveAsManyKeysAsWrittenAndNoMore) {
  VersionsByKey has;
  for (uint32_t tenant = 0; tenant < kWeightsKeysMax; ++tenant)
    ASSERT_TRUE(has.set({TenantSlot(tenant)}, PolicyVersion(1)));
  publish(2);
  ASSERT_TRUE(sender_->handle(receiver_->ask({}, has)).ok());
  EXPECT_TRUE(sender_->next().has_value());
  // A frame with one key too many: the number of keys is the 19th byte, before the entries.
  auto frame = receiver_->ask({}, has);
  ByteWriter grown;
  for (size_t i = 0; i < frame.head.size() - sizeof(uint32_t); ++i) {
    if (i == 18 + sizeof(uint32_t)) {
      grown.key({TenantSlot(70'000)});
      grown.number(int64_t{1});
    }
    grown.number(static_cast<uint8_t>(static_cast<int>(frame.head[i]) + (i == 18 ? 1 : 0)));
  }
  EXPECT_FALSE(sender_->handle({grown.take(), {}}).ok());
}

TEST(StreamLibrary, RefusesVersionsThatDoNotRiseOrHaveOtherTensors) {
  StreamLibrary library;
  ASSERT_TRUE(library.publish(channel_weights(3)).ok());
  EXPECT_FALSE(library.publish(channel_weights(3)).ok());
  EXPECT_FALSE(library.publish(channel_weights(4, {9})).ok());
  EXPECT_FALSE(library.publish(nullptr).ok());
  EXPECT_EQ(library.newest({}), PolicyVersion(3));
}

}  // namespace
}  // namespace primerl
