#include "runtime/transport/peer_connection.h"

#include <gmock/gmock.h>

#include "tests/transport/connection_ends.h"

namespace primerl {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(PeerConnectionTest, HandsOutGrantsAheadOfBulkAndMessagesInOrder) {
  ConnectionLimits limits;
  limits.bulk_bytes_min = 1000;
  open(limits);
  send(1, note_batch(0, 1, 1, 1000));  // on the bulk lane
  MessageBatch with_grant = note_batch(0, 1, 2);
  with_grant.grants.push_back({LinkId(4), 5, 6, 1});
  send(1, with_grant);               // after it
  send(1, note_batch(2, 1, 1, 10));  // of another group: it does not wait
  pass_all(1, Lane::kFrames);
  // Only the grant of the first group, and the batch of the other.
  EXPECT_THAT(got(0).numbers_from(GroupId(0)), ElementsAre());
  EXPECT_THAT(got(0).numbers_from(GroupId(2)), ElementsAre(1));
  ASSERT_EQ(got(0).batches().size(), 2u);
  EXPECT_EQ(got(0).batches()[0].grants.size(), 1u);
  EXPECT_TRUE(got(0).batches()[0].messages.empty());
  pass_all(1, Lane::kBulk);
  EXPECT_THAT(got(0).numbers_from(GroupId(0)), ElementsAre(1, 2));
  EXPECT_TRUE(got(0).batches().back().grants.empty());
  EXPECT_TRUE(got(0).is_whole());
}

TEST_F(PeerConnectionTest, AcknowledgesABatchOnlyWhenItsBulkHasArrived) {
  ConnectionLimits limits;
  limits.bulk_bytes_min = 1000;
  limits.chunk_bytes = 400;
  open(limits);
  send(1, note_batch(0, 1, 1, 1000));
  pass_all(1, Lane::kFrames);
  pass_all(0, Lane::kFrames);
  EXPECT_EQ(status(1).unacknowledged.num_batches, 1u);
  const auto pieces = frames(1, Lane::kBulk);
  ASSERT_EQ(pieces.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got(0).num_messages(), 0u);
    arrive(0, Lane::kBulk, pieces[i]);
  }
  EXPECT_EQ(got(0).num_messages(), 1u);
  pass_all(0, Lane::kBulk);
  EXPECT_EQ(status(1).unacknowledged, TransferCounts());
}

TEST_F(PeerConnectionTest, HasNoMoreUnderWayThanItsWindow) {
  ConnectionLimits limits;
  limits.frame_bytes = 1;
  limits.window_frames = 4;
  open(limits);
  for (uint64_t number = 1; number <= 10; ++number) send(1, note_batch(0, 1, number));
  const auto first = frames(1, Lane::kFrames);
  ASSERT_EQ(first.size(), 4u);
  arrive(0, Lane::kFrames, first[0]);
  pass_all(0, Lane::kFrames);  // an acknowledgement
  EXPECT_EQ(frames(1, Lane::kFrames).size(), 1u);
}

TEST_F(PeerConnectionTest, SharesAFrameUpToItsSizeAndNoFurther) {
  open();
  const size_t one = [&] {
    BatchEncoder encoder;
    EXPECT_TRUE(encoder.encode(note_batch(0, 1, 1), *note_types(), {}).ok());
    return encoder.bytes().size();
  }();
  ConnectionLimits limits;
  limits.frame_bytes = 3 * one;
  open(limits);
  BatchEncoder encoder;
  for (uint64_t number = 1; number <= 7; ++number) {
    ASSERT_TRUE(encoder.encode(note_batch(0, 1, number), *note_types(), {}).ok());
    bool is_first = false;
    ASSERT_TRUE(ends_[1]->outbox.put(encoder, 1, is_first).ok());
    EXPECT_EQ(is_first, number == 1);
  }
  at(1).take_outbox();
  const auto sent = frames(1, Lane::kFrames);
  ASSERT_EQ(sent.size(), 3u);
  EXPECT_EQ(sent[0].header.payload_bytes, 3 * one);
  EXPECT_EQ(sent[2].header.payload_bytes, one);
  for (const auto& frame : sent) arrive(0, Lane::kFrames, frame);
  EXPECT_THAT(got(0).numbers_from(GroupId(0)), ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

TEST_F(PeerConnectionTest, AnswersAGapWithItsPositionOnceAndCountsDuplicates) {
  ConnectionLimits limits;
  limits.frame_bytes = 1;
  open(limits);
  for (uint64_t number = 1; number <= 4; ++number) send(1, note_batch(0, 1, number));
  const auto sent = frames(1, Lane::kFrames);
  ASSERT_EQ(sent.size(), 4u);
  arrive(0, Lane::kFrames, sent[0]);
  arrive(0, Lane::kFrames, sent[2]);  // the second was lost
  arrive(0, Lane::kFrames, sent[3]);
  arrive(0, Lane::kFrames, sent[0]);
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kGap), 2u);
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kDuplicate), 1u);
  const auto answers = frames(0, Lane::kFrames);
  ASSERT_GE(answers.size(), 1u);
  EXPECT_EQ(answers[0].header.kind, PeerFrameKind::kPosition);
  EXPECT_EQ(answers[0].header.acknowledged, 1u);
  for (const auto& answer : answers) {
    EXPECT_TRUE(&answer == &answers[0] || answer.header.kind == PeerFrameKind::kAck);
    arrive(1, Lane::kFrames, answer);
  }
  pass_all(1, Lane::kFrames);
  EXPECT_THAT(got(0).numbers_from(GroupId(0)), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(status(1).num_frames_resent, 3u);
}

TEST_F(PeerConnectionTest, ProbesUnacknowledgedFramesAndResendsFromTheAnswer) {
  open();
  send(1, note_batch(0, 1, 1));
  (void)frames(1, Lane::kFrames);  // lost
  now_ = now_ + (limits_.probe_after - Duration::nanoseconds(1));
  at(1).wake(now_);
  EXPECT_TRUE(frames(1, Lane::kFrames).empty());
  now_ = now_ + Duration::nanoseconds(1);
  at(1).wake(now_);
  const auto probe = frames(1, Lane::kFrames);
  ASSERT_EQ(probe.size(), 1u);
  EXPECT_EQ(probe[0].header.kind, PeerFrameKind::kProbe);
  arrive(0, Lane::kFrames, probe[0]);
  pass_all(0, Lane::kFrames);
  pass_all(1, Lane::kFrames);
  EXPECT_THAT(got(0).numbers_from(GroupId(0)), ElementsAre(1));
}

TEST_F(PeerConnectionTest, CallsALinkBrokenAfterSilenceAndWholeAgainAfterAWord) {
  open();
  now_ = now_ + (limits_.silent_after - Duration::nanoseconds(1));
  at(0).wake(now_);
  EXPECT_EQ(at(0).state(), ConnectionState::kUp);
  now_ = now_ + Duration::nanoseconds(1);
  at(0).wake(now_);
  EXPECT_EQ(at(0).state(), ConnectionState::kBroken);
  EXPECT_THAT(got(0).downs(), ElementsAre(HasSubstr("nothing was heard of 'side1' for 2s")));
  at(1).wake(now_);  // sends hello, on both lanes
  for (const Lane lane : kLanes) pass_all(1, lane);
  EXPECT_EQ(at(0).state(), ConnectionState::kUp);
  EXPECT_EQ(got(0).num_ups(), 2u);
}

/// A silent socket may be a new one, whose frames the peer refuses before a hello.
TEST_F(PeerConnectionTest, SaysHelloAgainOnASilentConnection) {
  open();
  now_ = now_ + limits_.silent_after;
  for (const size_t side : {0, 1}) at(side).wake(now_);
  ASSERT_EQ(at(0).state(), ConnectionState::kBroken);
  for (const Lane lane : kLanes)
    for (const OutFrame& frame : frames(1, lane)) arrive(0, lane, frame, {"another", 1});
  EXPECT_EQ(at(0).state(), ConnectionState::kUp);
}

TEST_F(PeerConnectionTest, SendsNoNumberedFrameOnANewSocketBeforeItsHelloIsAnswered) {
  open();
  at(1).connect_again(now_);
  send(1, note_batch(0, 1, 1));
  const auto first = frames(1, Lane::kFrames);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].header.kind, PeerFrameKind::kHello);
  arrive(0, Lane::kFrames, first[0], {"another", 1});
  pass_all(0, Lane::kFrames);  // the welcome
  for (const OutFrame& frame : frames(1, Lane::kFrames))
    arrive(0, Lane::kFrames, frame, {"another", 1});
  EXPECT_THAT(got(0).numbers_from(GroupId(0)), ElementsAre(1));
}

TEST_F(PeerConnectionTest, AsksAgainForMissingFramesWhenItsAnswerWasLost) {
  ConnectionLimits limits;
  limits.frame_bytes = 1;
  open(limits);
  for (uint64_t number = 1; number <= 3; ++number) send(1, note_batch(0, 1, number));
  const auto sent = frames(1, Lane::kFrames);
  ASSERT_EQ(sent.size(), 3u);
  const auto answers_to = [&](const OutFrame& frame) {
    arrive(0, Lane::kFrames, frame);
    std::vector<PeerFrameKind> kinds;
    for (const OutFrame& answer : frames(0, Lane::kFrames)) kinds.push_back(answer.header.kind);
    return kinds;
  };
  EXPECT_THAT(answers_to(sent[1]), Contains(PeerFrameKind::kPosition)) << "the first was lost";
  EXPECT_THAT(answers_to(sent[2]), Not(Contains(PeerFrameKind::kPosition))) << "asked already";
  now_ = now_ + limits_.probe_after;
  at(0).wake(now_);
  EXPECT_THAT(answers_to(sent[2]), Contains(PeerFrameKind::kPosition));
}

TEST_F(PeerConnectionTest, RefusesNumberedFramesBeforeTheGreeting) {
  limits_ = {};
  ends_[0] = std::make_unique<End>(0, limits_);
  arrive(0, Lane::kFrames, numbered(PeerFrameKind::kBatches, 1, {}));
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kNotGreeted), 1u);
  EXPECT_EQ(at(0).state(), ConnectionState::kConnecting);
}

TEST_F(PeerConnectionTest, RefusesAFrameThatWasChangedAndFailsWhenEveryOneIs) {
  open();
  for (int i = 1; i <= 16; ++i) {
    OutFrame frame = numbered(PeerFrameKind::kBatches, 1, std::vector<std::byte>(40));
    frame.header.check ^= 1;
    EXPECT_FALSE(at(0).is_over()) << i;
    arrive(0, Lane::kFrames, frame);
  }
  // And the one that failed the connection.
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kCheck), 17u);
  EXPECT_EQ(at(0).state(), ConnectionState::kFailed);
}

TEST_F(PeerConnectionTest, FailsAndSaysWhyWhenThePeerBreaksTheProtocol) {
  struct Case {
    Lane lane;
    OutFrame frame;
    FrameRefusal refusal;
  };
  std::vector<std::byte> chunk(kChunkHeaderBytes + 1);
  encode_chunk_header({3, 1, 0}, std::span(chunk).first<kChunkHeaderBytes>());
  OutFrame unsent = numbered(PeerFrameKind::kBatches, 1, {});
  unsent.header.acknowledged = 1;
  unsent.header.check = frame_check(unsent.header, frame_payload_hash({}, {}));
  const std::vector<Case> cases = {
      {Lane::kFrames, numbered(PeerFrameKind::kBatches, 1, std::vector<std::byte>(39)),
       FrameRefusal::kBytesDiffer},
      {Lane::kBulk, numbered(PeerFrameKind::kChunk, 1, chunk), FrameRefusal::kChunk},
      {Lane::kBulk, numbered(PeerFrameKind::kChunk, 1, std::vector<std::byte>(23)),
       FrameRefusal::kSize},
      {Lane::kFrames, unsent, FrameRefusal::kGap},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(to_string(each.refusal));
    open();
    arrive(0, each.lane, each.frame);
    EXPECT_EQ(at(0).state(), ConnectionState::kFailed);
    EXPECT_EQ(status(0).num_refused(each.refusal), 1u);
    ASSERT_EQ(got(0).num_failed(), 1u);
    EXPECT_THAT(got(0).failures()[0], HasSubstr("breaks the protocol"));
    // The peer is notified.
    pass_all(0, Lane::kFrames);
    EXPECT_EQ(at(1).state(), ConnectionState::kFailed);
    ASSERT_EQ(got(1).refusals().size(), 1u);
    EXPECT_EQ(got(1).refusals()[0].field, "protocol");
  }
}

TEST_F(PeerConnectionTest, SendsLargeBlobsAsReferencesOnceThePeerReadsItsPool) {
  shares_memory_ = true;
  open();
  pass_all(1, Lane::kFrames);  // the notice that it reads the pool
  for (size_t side = 0; side < 2; ++side) {
    send(side, note_batch(0, 1, 1, 1'000'000));
    pass_all(side, Lane::kFrames);
    const auto pieces = frames(side, Lane::kBulk);
    ASSERT_EQ(pieces.size(), 1u);
    EXPECT_EQ(pieces[0].header.kind, PeerFrameKind::kReference);
    EXPECT_EQ(pieces[0].header.payload_bytes, kReferenceBytes);
    EXPECT_EQ(status(side).unacknowledged.num_batches, 1u);
    EXPECT_GE(status(side).unacknowledged.num_bytes, 1'000'000u) << "credit is as ever";
    arrive(1 - side, Lane::kBulk, pieces[0]);
    arrive(1 - side, Lane::kBulk, pieces[0]);  // sent again: refused, not accepted twice
    EXPECT_EQ(got(1 - side).num_messages(), 1u);
    EXPECT_EQ(status(1 - side).num_refused(FrameRefusal::kDuplicate), 1u);
    EXPECT_TRUE(got(1 - side).is_whole());
    for (const Lane lane : kLanes) pass_all(1 - side, lane);
    EXPECT_EQ(status(side).unacknowledged, TransferCounts());
    EXPECT_EQ(status(side).num_bytes_shared, 1'000'000u);
  }
}

TEST_F(PeerConnectionTest, FailsAtAReferenceThatCannotBe) {
  std::vector<std::byte> payload(kReferenceBytes);
  encode_reference({0, 70'000, 0, 5, 1}, std::span(payload).first<kReferenceBytes>());
  for (const bool shares : {false, true}) {
    shares_memory_ = shares;
    open();
    arrive(0, Lane::kBulk, numbered(PeerFrameKind::kReference, 1, payload));
    EXPECT_EQ(at(0).state(), ConnectionState::kFailed);
    EXPECT_EQ(status(0).num_refused(FrameRefusal::kChunk), 1u);
  }
}

TEST_F(PeerConnectionTest, NamesBothVersionsWhenThePeerSpeaksAnother) {
  limits_ = {};
  ends_[0] = std::make_unique<End>(0, limits_);
  for (int i = 0; i < 3; ++i) at(0).refuse_version(9);
  ASSERT_EQ(got(0).refusals().size(), 1u);
  EXPECT_EQ(got(0).refusals()[0].text(),
            fmt::format("'side1' (process 1) was refused: version: ours {}, theirs 9",
                        kPeerProtocolVersion));
}

TEST_F(PeerConnectionTest, AStreamFillsItsWindowAndNoMore) {
  ConnectionLimits limits;
  limits.window_streams = 3;
  limits.bulk_bytes_min = 1000;
  open(limits);
  std::vector<StreamFrame> given;
  for (uint64_t number = 0; number < 10; ++number)
    given.push_back(stream_frame(4, number, 20, 5000));
  got(0).give_streams(given);
  const auto first = frames(0, Lane::kBulk);
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(got(0).num_streams_left(), 7u);
  EXPECT_EQ(frames(0, Lane::kFrames).size(), 0u);  // small frames have their own lane
  // A Blob is sent after those three, and before the rest.
  send(0, note_batch(0, 1, 1, 1000));
  const auto blob = frames(0, Lane::kBulk);
  ASSERT_EQ(blob.size(), 1u);
  EXPECT_EQ(blob[0].header.kind, PeerFrameKind::kChunk);
  arrive(1, Lane::kBulk, first[0]);
  pass_all(1, Lane::kBulk);  // the acknowledgement of one frame allows one more
  EXPECT_EQ(frames(0, Lane::kBulk).size(), 1u);
  EXPECT_EQ(got(0).num_streams_left(), 6u);
  // When it learns that the other frames are missing it resends them, and the stream gets no frame
  // twice.
  now_ = now_ + limits_.probe_after;
  at(0).wake(now_);
  for (int i = 0; i < 20; ++i)
    for (size_t side = 0; side < 2; ++side)
      for (const Lane lane : kLanes) pass_all(side, lane);
  ASSERT_EQ(got(1).num_streams(), given.size());
  for (size_t i = 0; i < given.size(); ++i)
    EXPECT_TRUE(are_equal(got(1).streams()[i], given[i])) << i;
  EXPECT_EQ(status(0).num_stream_bytes_sent, status(1).num_stream_bytes_received);
}

TEST_F(PeerConnectionTest, AStreamEndsWithItsLink) {
  open();
  std::vector<StreamFrame> given(100, stream_frame(4, 1, 20, 5000));
  got(0).give_streams(given);
  at(0).leave();
  // No stream frame is sent after bye.
  for (const OutFrame& frame : frames(0, Lane::kBulk))
    EXPECT_NE(frame.header.kind, PeerFrameKind::kStream);
  EXPECT_EQ(got(0).num_streams_left(), given.size());
}

TEST_F(PeerConnectionTest, FailsAtAStreamWithoutItsNumber) {
  open();
  arrive(0, Lane::kBulk, numbered(PeerFrameKind::kStream, 1, std::vector<std::byte>(3)));
  EXPECT_EQ(at(0).state(), ConnectionState::kFailed);
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kSize), 1u);
  open();
  arrive(0, Lane::kBulk, numbered(PeerFrameKind::kStream, 1, std::vector<std::byte>(4)));
  EXPECT_EQ(at(0).state(), ConnectionState::kUp);
  EXPECT_EQ(got(0).num_streams(), 1u);
}

}  // namespace
}  // namespace primerl
