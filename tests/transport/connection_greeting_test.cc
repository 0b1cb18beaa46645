// Which socket connection may act for a peer: greetings, their required contents, and connections
// that are refused.
#include <gmock/gmock.h>

#include "tests/transport/connection_ends.h"

namespace primerl {
namespace {

using ConnectionGreetingTest = PeerConnectionTest;

TEST_F(ConnectionGreetingTest, TakesNothingOfAConnectionThatHasNotGreeted) {
  open();
  send(1, note_batch(0, 1, 1));
  const auto sent = frames(1, Lane::kFrames);
  ASSERT_EQ(sent.size(), 1u);
  // Correct in every byte, but from another connection: an attacker that recorded the frame.
  const FrameOrigin stranger = {"another", 7};
  arrive(0, Lane::kFrames, sent[0], stranger);
  OutFrame bye = numbered(PeerFrameKind::kBye, 0, {}), refusal = bye, damaged = sent[0];
  refusal.header.kind = PeerFrameKind::kRefusal;
  refusal.header.check = frame_check(refusal.header, frame_payload_hash({}, {}));
  damaged.header.check ^= 1;
  arrive(0, Lane::kFrames, bye, stranger);
  arrive(0, Lane::kFrames, refusal, stranger);
  for (int i = 0; i < 1000; ++i) arrive(0, Lane::kFrames, damaged, stranger);
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kNotGreeted), 3u);
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kCheck), 1000u);
  EXPECT_EQ(at(0).state(), ConnectionState::kUp);
  EXPECT_EQ(got(0).num_messages(), 0u);
  arrive(0, Lane::kFrames, sent[0]);
  EXPECT_EQ(got(0).num_messages(), 1u);
  EXPECT_EQ(got(0).num_failed() + got(0).num_downs() + got(0).refusals().size(), 0u);
}

/// A hello of side 1 for the frames lane, with a change by the test.
OutFrame hello_of(const std::function<void(PeerGreeting&)>& change, uint32_t incarnation = 1) {
  PeerGreeting greeting;
  greeting.run = "a run";
  greeting.graph_hash = 7;
  greeting.types_hash = note_types()->hash();
  greeting.name = "side1";
  change(greeting);
  OutFrame frame;
  frame.header.kind = PeerFrameKind::kHello;
  frame.header.incarnation = incarnation;
  frame.header.peer_incarnation = 1;
  frame.header.process = ProcessId(1);
  frame.head = Blob(encode_in_body(Payload::of(std::move(greeting)))->body);
  frame.header.payload_bytes = frame.head.size();
  frame.header.check = frame_check(frame.header, frame_payload_hash(frame.head.bytes(), {}));
  return frame;
}

TEST_F(ConnectionGreetingTest, AGreetedLinkDoesNotFallBecauseOfAnotherConnection) {
  open();
  const FrameOrigin newer = {"another", 7};
  arrive(0, Lane::kFrames, hello_of([](auto& it) { it.run = "another"; }), newer);
  arrive(0, Lane::kFrames, hello_of([](auto& it) { it.graph_hash = 8; }), newer);
  arrive(0, Lane::kFrames, hello_of([](auto& it) { it.types_hash = 8; }), newer);
  arrive(0, Lane::kFrames, hello_of([](auto& it) { it.name = "someone"; }), newer);
  // Not newer than the bound connection.
  arrive(0, Lane::kFrames, hello_of([](auto&) {}), {"another", 0});
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kUnknownPeer), 5u);
  EXPECT_EQ(at(0).state(), ConnectionState::kUp);
  EXPECT_EQ(frames(0, Lane::kFrames).size(), 0u) << "no answer is sent";
  EXPECT_EQ(got(0).refusals().size(), 0u);
}

TEST_F(ConnectionGreetingTest, ANewerConnectionTakesThePlaceOfTheOneBefore) {
  open();
  const FrameOrigin newer = {"another", 1};
  arrive(0, Lane::kFrames, hello_of([](auto&) {}), newer);
  const auto answers = frames(0, Lane::kFrames);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].header.kind, PeerFrameKind::kWelcome);
  EXPECT_EQ(at(0).route_of(Lane::kFrames, answers[0]), "another");
  // Later frames of the older connection are refused.
  const OutFrame late = numbered(PeerFrameKind::kProbe, 0, {});
  arrive(0, Lane::kFrames, late);
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kNotGreeted), 1u);
  arrive(0, Lane::kFrames, late, newer);
  EXPECT_EQ(frames(0, Lane::kFrames).size(), 1u);
}

TEST_F(ConnectionGreetingTest, ASenderWithoutThePassChangesNothingAndLearnsNothing) {
  limits_ = {};
  ends_[0] = std::make_unique<End>(0, limits_, false, "what only peers know");
  const FrameOrigin origin = {"somebody", 1};
  for (const char* pass : {"", "what only peers knoW", "what only peers know and more"})
    arrive(0, Lane::kFrames, hello_of([&](auto& it) { it.pass = pass; }), origin);
  // It also does not learn the right values, or that it is too late.
  arrive(0, Lane::kFrames, hello_of([](auto& it) { it.run = "another"; }), origin);
  arrive(0, Lane::kFrames, hello_of([](auto&) {}, 0), origin);
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kUnknownPeer), 5u);
  EXPECT_EQ(frames(0, Lane::kFrames).size(), 0u);
  EXPECT_EQ(at(0).state(), ConnectionState::kConnecting);
  arrive(0, Lane::kFrames, hello_of([](auto& it) { it.pass = "what only peers know"; }), origin);
  EXPECT_EQ(frames(0, Lane::kFrames).size(), 1u);
}

TEST_F(ConnectionGreetingTest, ARefusalGoesWhereTheHelloOfItsOwnLaneCameFrom) {
  // Each lane is a separate socket: a route of one lane is unknown on the other.
  const OutFrame other = hello_of([](auto& it) { it.run = "another"; });
  for (const bool bulk_is_first : {true, false}) {
    limits_ = {};
    ends_[0] = std::make_unique<End>(0, limits_);
    const auto say = [&](Lane lane, const char* route) { arrive(0, lane, other, {route, 1}); };
    if (bulk_is_first) {
      say(Lane::kBulk, "bulk");
      EXPECT_EQ(frames(0, Lane::kFrames).size(), 0u) << "the other lane may not be there yet";
      say(Lane::kFrames, "frames");
    } else {
      say(Lane::kFrames, "frames");
      say(Lane::kBulk, "bulk");
    }
    const auto answers = frames(0, Lane::kFrames);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].header.kind, PeerFrameKind::kRefusal);
    EXPECT_EQ(at(0).route_of(Lane::kFrames, answers[0]), "frames");
    EXPECT_EQ(got(0).refusals().size(), 1u);
  }
}

TEST_F(ConnectionGreetingTest, SendsAnOlderIncarnationAwayAndTellsOfItOnce) {
  open();
  ends_[0] = std::make_unique<End>(0, limits_, false, "", 3);
  for (const uint32_t incarnation : {1, 2}) {
    arrive(0, Lane::kFrames, hello_of([](auto&) {}, incarnation), {"older", incarnation});
    const auto answers = frames(0, Lane::kFrames);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(answers[0].header.kind, PeerFrameKind::kRefusal);
    EXPECT_EQ(at(0).route_of(Lane::kFrames, answers[0]), "older");
  }
  ASSERT_EQ(got(0).refusals().size(), 1u);
  EXPECT_FALSE(got(0).refusals()[0].ends_connection);
  EXPECT_EQ(at(0).state(), ConnectionState::kConnecting);
}

TEST_F(ConnectionGreetingTest, RefusesGreetingsWithWordsBeyondTheirLimit) {
  limits_ = {};
  ends_[0] = std::make_unique<End>(0, limits_);
  const std::string longest(kGreetingWordBytesMax + 1, 'x'), huge(3900, 'x');
  for (const std::string& word : {longest, huge}) {
    arrive(0, Lane::kFrames, hello_of([&](auto& it) { it.run = word; }));
    arrive(0, Lane::kFrames, hello_of([&](auto& it) { it.name = word; }));
  }
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kBody), 4u);
  EXPECT_EQ(at(0).state(), ConnectionState::kConnecting);
  // At the limit it is a valid run, but another one. The report about it has no control characters.
  const std::string word = "\x1b[2J" + std::string(kGreetingWordBytesMax - 4, 'x');
  arrive(0, Lane::kFrames, hello_of([&](auto& it) { it.run = word; }));
  ASSERT_EQ(got(0).refusals().size(), 1u);
  EXPECT_EQ(got(0).refusals()[0].theirs, "?" + word.substr(1));
  EXPECT_EQ(frames(0, Lane::kFrames).size(), 1u);
}

TEST_F(ConnectionGreetingTest, HelloIsForWhoListensAndWelcomeForWhoConnects) {
  open();
  OutFrame welcome = hello_of([](auto&) {});
  welcome.header.kind = PeerFrameKind::kWelcome;
  welcome.header.check = frame_check(welcome.header, frame_payload_hash(welcome.head.bytes(), {}));
  arrive(0, Lane::kFrames, welcome);
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kKind), 1u);
  // A connection that this end made is not accepted as one that the peer made.
  FrameOrigin own;
  own.is_own = true;
  arrive(0, Lane::kFrames, hello_of([](auto&) {}), own);
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kUnknownPeer), 1u);
}

TEST_F(ConnectionGreetingTest, HoldsNoMoreForBulkThanThePeerMayHaveUnderWay) {
  ConnectionLimits limits;
  limits.bulk_bytes_min = 1000;
  limits.unacknowledged_bytes_max = 4000;
  open(limits);
  // Batches whose bulk pieces never arrive.
  uint64_t sequence = 0;
  BatchEncoder encoder;
  for (int i = 0; i < 40 && !at(0).is_over(); ++i) {
    ASSERT_TRUE(encoder
                    .encode(note_batch(0, 1, 1, 1000), *note_types(),
                            {1000, limits.batch_bytes_max, limits.blob_bytes_max})
                    .ok());
    std::vector<std::byte> bytes(encoder.bytes().begin(), encoder.bytes().end());
    number_bulk(bytes, sequence);
    arrive(0, Lane::kFrames, numbered(PeerFrameKind::kBatches, ++sequence, std::move(bytes)));
  }
  EXPECT_EQ(at(0).state(), ConnectionState::kFailed);
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kTooLong), 1u);
  EXPECT_EQ(got(0).num_messages(), 0u);
}

}  // namespace
}  // namespace primerl
