/// The guarantees of every Transport (runtime/transport/transport.h), as tests over a stage with
/// two processes. Include in one test file and write
///   INSTANTIATE_TEST_SUITE_P(Memory, TransportConformance, ::testing::Values(on_memory()));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/conformance/transport_stage.h"

namespace primerl {

struct TransportUnderTest {
  std::string name;
  std::function<std::unique_ptr<TransportStage>()> make;
};

inline std::ostream& operator<<(std::ostream& out, const TransportUnderTest& transport) {
  return out << transport.name;
}

class TransportConformance : public ::testing::TestWithParam<TransportUnderTest> {
 protected:
  void SetUp() override { stage_ = GetParam().make(); }

  /// Limits so long that no test depends on the speed of the machine.
  static ConnectionLimits patient() {
    ConnectionLimits limits;
    limits.silent_after = limits.greet_timeout = kPatience;
    return limits;
  }
  /// Both processes, connected or connecting.
  void open(ConnectionLimits limits = patient()) {
    open_one(0, {}, limits);
    open_one(1, {}, limits);
    ASSERT_TRUE(meet().ok());
  }
  void open_one(size_t side, std::function<void(TransportIdentity&)> change,
                ConnectionLimits limits, uint32_t incarnation = 1) {
    TransportIdentity identity = identity_of(side, incarnation);
    identity.pass = pass_of(side);
    if (change) change(identity);
    stage_->open(side, identity, limits, receivers_[side]);
  }
  Status meet(uint32_t epoch0 = 1, uint32_t epoch1 = 1) {
    RETURN_IF_ERROR(at(0).add_peer(stage_->peer_of(0, epoch1)));
    return at(1).add_peer(stage_->peer_of(1, epoch0));
  }
  Transport& at(size_t side) { return stage_->transport(side); }
  CollectingReceiver& got(size_t side) { return receivers_[side]; }
  void expect(const std::string& what, const std::function<bool()>& done) {
    ASSERT_TRUE(stage_->wait(done)) << what << "\n" << stage_->describe();
  }
  ConnectionStatus status(size_t side) { return at(side).status().at(0); }
  void send(size_t side, MessageBatch batch) {
    const auto taken = at(side).send(ProcessId(1 - side), std::move(batch));
    ASSERT_TRUE(taken.ok()) << taken.error().text();
  }
  /// Checks that `side` got the numbers 1, 2, ... `count` from group `from`.
  void expect_in_order(size_t side, uint32_t from, uint64_t count) {
    const auto numbers = got(side).numbers_from(GroupId(from));
    ASSERT_EQ(numbers.size(), count) << stage_->describe();
    for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(numbers[i], i + 1) << stage_->describe();
  }

  // The receivers must be destroyed after the transports on the stage.
  CollectingReceiver receivers_[2];
  std::unique_ptr<TransportStage> stage_;
};

TEST_P(TransportConformance, DeliversOnceAndInOrderBothWays) {
  open();
  constexpr uint64_t kCount = 300;
  for (uint64_t number = 1; number <= kCount; ++number)
    for (uint32_t group = 0; group < 3; ++group) {
      const size_t bytes = number % 50 == 0 ? 100'000 : number;  // some are sent on the bulk lane
      send(0, note_batch(group, 10 + group, number, bytes));
      send(1, note_batch(10 + group, group, number, bytes));
    }
  expect("all batches", [&] {
    return got(0).num_messages() == 3 * kCount && got(1).num_messages() == 3 * kCount;
  });
  for (uint32_t group = 0; group < 3; ++group) {
    expect_in_order(1, group, kCount);
    expect_in_order(0, 10 + group, kCount);
  }
  EXPECT_TRUE(got(0).is_whole());
  EXPECT_TRUE(got(1).is_whole());
}

TEST_P(TransportConformance, BalancesItsLedgerWhenItCloses) {
  open();
  for (uint64_t number = 1; number <= 50; ++number)
    send(0, note_batch(0, 1, number, number == 7 ? 200'000 : 10));
  const auto closed = at(0).close(kPatience);
  ASSERT_TRUE(closed.ok()) << closed.error().text();
  const ConnectionStatus sent = status(0);
  EXPECT_EQ(sent.state, ConnectionState::kEnded);
  EXPECT_EQ(sent.sent.num_batches, 50u);
  EXPECT_EQ(sent.acknowledged, sent.sent);
  EXPECT_EQ(sent.unacknowledged, TransferCounts());
  EXPECT_EQ(sent.abandoned, TransferCounts());
  EXPECT_EQ(status(1).received, sent.sent);
  EXPECT_EQ(got(1).num_messages(), 50u);
  EXPECT_EQ(at(0).send(ProcessId(1), note_batch(0, 1, 51)).error().code(), Code::kUnavailable);
}

TEST_P(TransportConformance, KeepsBlobsOfEverySizeByteForByte) {
  open();
  const std::vector<size_t> sizes = {
      0, 1, 64, 4096, 65'535, 65'536, 1'000'000, 1 << 20, (1 << 20) + 1, 3 << 20, 5'000'000};
  uint64_t number = 0;
  for (const size_t size : sizes) send(0, note_batch(0, 1, ++number, size));
  expect("all sizes", [&] { return got(1).num_messages() == sizes.size(); });
  expect_in_order(1, 0, sizes.size());
  EXPECT_TRUE(got(1).is_whole());
  EXPECT_EQ(got(1).blob_sizes(), sizes);
}

TEST_P(TransportConformance, CarriesTheWholeEnvelopeAndGrants) {
  open();
  MessageBatch batch = note_batch(3, 4, 1, 0);
  Envelope& envelope = batch.messages[0].envelope;
  envelope.edge = EdgeId(5);
  envelope.sender = InstanceId(6);
  envelope.target = InstanceId(7);
  envelope.tenant = TenantSlot(2);
  envelope.origin = InstanceId(8);
  envelope.incarnation = 9;
  envelope.sequence = uint64_t{1} << 40;
  envelope.cause = {InstanceId(11), 12};
  envelope.sent_at = Time::from_nanoseconds(-13);
  batch.messages[0].link = LinkId(14);
  batch.incarnation = 9;
  batch.grants = {{LinkId(15), 16, uint64_t{17} << 33, 18}, {LinkId(19), 20, 21, 22}};
  const MessageBatch sent = batch;
  send(0, std::move(batch));
  expect("the batch", [&] { return got(1).num_messages() == 1; });
  EXPECT_EQ(describe(got(1).batches().front()), describe(sent));
}

TEST_P(TransportConformance, HoldsMessagesAndBatchesToTheirLimits) {
  ConnectionLimits limits = patient();
  limits.blob_bytes_max = 100'000;
  limits.batch_bytes_max = 300'000;
  open(limits);
  const auto code_of = [&](MessageBatch batch) {
    const auto taken = at(0).send(ProcessId(1), std::move(batch));
    return taken.ok() ? std::string("ok") : std::string(to_string(taken.error().code()));
  };
  EXPECT_EQ(code_of(note_batch(0, 1, 1, 100'000)), "ok");
  EXPECT_EQ(code_of(note_batch(0, 1, 2, 100'001)), "exhausted");
  EXPECT_EQ(code_of(text_batch(0, 1, 2, kMessageBytesMax)), "exhausted");
  EXPECT_EQ(code_of(text_batch(0, 1, 2, kMessageBytesMax - 100)), "ok");
  MessageBatch many;
  for (int i = 0; i < 4000; ++i) {
    MessageBatch one = note_batch(0, 1, 3, 0);
    many.messages.push_back(std::move(one.messages[0]));
  }
  EXPECT_EQ(code_of(std::move(many)), "exhausted");
  // A refused batch leaves nothing behind.
  EXPECT_EQ(code_of(note_batch(0, 1, 3, 64)), "ok");
  expect("what was taken", [&] { return got(1).num_messages() == 3; });
  expect_in_order(1, 0, 3);
}

TEST_P(TransportConformance, AcceptsNoMoreThanItsLimitWithoutAcknowledgements) {
  ConnectionLimits limits = patient();
  limits.unacknowledged_batches_max = 100;
  open_one(0, {}, limits);
  open_one(1, {}, limits);
  ASSERT_TRUE(at(0).add_peer(stage_->peer_of(0, 1)).ok());
  // The other process does not know this one yet, so nothing is acknowledged.
  for (uint64_t number = 1; number <= 100; ++number) send(0, note_batch(0, 1, number));
  const auto past = at(0).send(ProcessId(1), note_batch(0, 1, 101));
  ASSERT_FALSE(past.ok());
  EXPECT_EQ(past.error().code(), Code::kExhausted);
  EXPECT_EQ(status(0).unacknowledged.num_batches, 100u);
  ASSERT_TRUE(at(1).add_peer(stage_->peer_of(1, 1)).ok());
  expect("all are acknowledged", [&] { return status(0).acknowledged.num_batches == 100; });
  send(0, note_batch(0, 1, 101));
  expect("the last one", [&] { return got(1).num_messages() == 101; });
  expect_in_order(1, 0, 101);
}

TEST_P(TransportConformance, DropsNothingForASlowReceiver) {
  ConnectionLimits limits = patient();
  limits.frame_bytes = 1;  // one frame per batch
  limits.window_frames = 16;
  open(limits);
  send(0, note_batch(0, 1, 1));
  expect("the first", [&] { return got(1).num_messages() == 1; });
  got(1).hold(true);
  for (uint64_t number = 2; number <= 2000; ++number) send(0, note_batch(0, 1, number, 4096));
  // Frames in transit stay within the window; the rest waits at the sender.
  expect("some have left", [&] { return status(0).num_frames_sent > 2; });
  EXPECT_GE(status(0).unacknowledged.num_batches, 2000u - 1 - 16 - 1);
  got(1).hold(false);
  expect("all", [&] { return got(1).num_messages() == 2000; });
  expect_in_order(1, 0, 2000);
  EXPECT_TRUE(got(1).is_whole());
}

TEST_P(TransportConformance, ResendsAfterABreak) {
  ConnectionLimits limits = patient();
  limits.frame_bytes = 1;
  limits.hello_every = Duration::milliseconds(5);
  limits.probe_after = Duration::milliseconds(20);
  open(limits);
  uint64_t number = 0;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 200; ++i) {
      send(0, note_batch(0, 1, ++number, i % 40 == 0 ? 150'000 : 100));
      send(1, note_batch(5, 6, number, 100));
    }
    stage_->break_connection();
  }
  expect("all, in spite of breaks",
         [&] { return got(1).num_messages() == number && got(0).num_messages() == number; });
  expect_in_order(1, 0, number);
  expect_in_order(0, 5, number);
  EXPECT_TRUE(got(1).is_whole());
  const auto closed = at(0).close(kPatience);
  EXPECT_TRUE(closed.ok()) << closed.error().text();
  EXPECT_EQ(status(0).acknowledged, status(0).sent);
}

TEST_P(TransportConformance, CarriesStreamsInOrderBesideBatchs) {
  open();
  std::vector<StreamFrame> frames;
  for (uint64_t number = 0; number < 60; ++number)
    frames.push_back(stream_frame(number % 3, number, number % 7 * 100, number % 5 * 70'000));
  got(0).give_streams(frames);
  at(0).streams_ready();
  for (uint64_t number = 1; number <= 60; ++number) {
    send(0, note_batch(0, 1, number, number % 6 == 0 ? 100'000 : 10));
    send(1, note_batch(2, 3, number, 10));
  }
  expect("streams and batches", [&] {
    return got(1).num_streams() == frames.size() && got(1).num_messages() == 60 &&
           got(0).num_messages() == 60;
  });
  const auto came = got(1).streams();
  for (size_t i = 0; i < frames.size(); ++i) ASSERT_TRUE(are_equal(came[i], frames[i])) << i;
  expect_in_order(1, 0, 60);
  EXPECT_TRUE(got(1).is_whole());
  EXPECT_EQ(status(0).num_stream_bytes_sent, status(1).num_stream_bytes_received);
  // Streams are in no ledger.
  expect("all is acknowledged", [&] { return status(0).acknowledged == status(0).sent; });
  EXPECT_EQ(status(0).sent.num_batches, 60u);
}

TEST_P(TransportConformance, AStreamContinuesAfterABreakWithoutAByteTwice) {
  ConnectionLimits limits = patient();
  limits.hello_every = Duration::milliseconds(5);
  limits.probe_after = Duration::milliseconds(20);
  open(limits);
  std::vector<StreamFrame> frames;
  uint64_t num_bytes = 0;
  for (uint64_t number = 0; number < 40; ++number) {
    frames.push_back(stream_frame(9, number, 30, 150'000));
    num_bytes += frames.back().num_bytes();
  }
  got(0).give_streams(frames);
  at(0).streams_ready();
  for (const size_t so_many : {1, 5, 20}) {
    expect("some frames", [&] { return got(1).num_streams() >= so_many; });
    stage_->break_connection();
  }
  expect("all frames", [&] { return got(1).num_streams() >= frames.size(); });
  const auto came = got(1).streams();
  ASSERT_EQ(came.size(), frames.size());
  for (size_t i = 0; i < frames.size(); ++i) ASSERT_TRUE(are_equal(came[i], frames[i])) << i;
  EXPECT_EQ(status(1).num_stream_bytes_received, num_bytes);
  EXPECT_EQ(status(0).num_stream_bytes_sent, num_bytes);
}

TEST_P(TransportConformance, RefusesAnotherGraphOnBothSidesWithBothValues) {
  struct Case {
    std::string field, ours, theirs;
    std::function<void(TransportIdentity&)> change;
  };
  const std::vector<Case> cases = {
      {"run", "a run", "another", [](auto& identity) { identity.run = "another"; }},
      {"graph hash", "0000000000000007", "0000000000000008",
       [](auto& identity) { identity.graph_hash = 8; }},
      {"process", "side1", "someone", [](auto& identity) { identity.name = "someone"; }},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.field);
    stage_ = GetParam().make();
    got(0).clear();
    got(1).clear();
    open_one(0, {}, patient());
    open_one(1, each.change, patient());
    ASSERT_TRUE(meet().ok());
    expect("both refuse", [&] { return !got(0).refusals().empty() && !got(1).refusals().empty(); });
    EXPECT_EQ(got(0).refusals()[0].field, each.field);
    EXPECT_EQ(got(0).refusals()[0].ours, each.ours);
    EXPECT_EQ(got(0).refusals()[0].theirs, each.theirs);
    EXPECT_EQ(got(1).refusals()[0].ours, each.theirs);
    EXPECT_EQ(got(1).refusals()[0].theirs, each.ours);
    expect("both fail", [&] { return got(0).num_failed() == 1 && got(1).num_failed() == 1; });
    EXPECT_EQ(at(0).send(ProcessId(1), note_batch(0, 1, 1)).error().code(), Code::kUnavailable);
    EXPECT_EQ(got(0).num_ups() + got(1).num_ups(), 0u);
  }
}

TEST_P(TransportConformance, RefusesOtherMessageTypes) {
  open_one(0, {}, patient());
  open_one(
      1, [](auto& identity) { identity.types = other_types(); }, patient());
  ASSERT_TRUE(meet().ok());
  expect("both refuse", [&] { return !got(0).refusals().empty() && !got(1).refusals().empty(); });
  EXPECT_EQ(got(0).refusals()[0].field, "message types");
  EXPECT_NE(got(0).refusals()[0].ours, got(0).refusals()[0].theirs);
}

TEST_P(TransportConformance, FencesAnOlderIncarnationAndBeginsAnewWithANewerOne) {
  open();
  for (uint64_t number = 1; number <= 20; ++number) send(0, note_batch(0, 1, number));
  expect("the first life", [&] { return got(1).num_messages() == 20; });
  // Process 1 dies; messages sent to it then are lost.
  stage_->kill(1);
  for (uint64_t number = 1; number <= 5; ++number) send(0, note_batch(0, 1, 100 + number));
  at(0).end_peer(ProcessId(1), 1);
  EXPECT_EQ(at(0).send(ProcessId(1), note_batch(0, 1, 1)).error().code(), Code::kUnavailable);
  EXPECT_GE(status(0).abandoned.num_batches, 5u);
  EXPECT_EQ(status(0).unacknowledged, TransferCounts());

  got(1).clear();
  open_one(1, {}, patient(), 2);
  ASSERT_TRUE(at(1).add_peer(stage_->peer_of(1, 1)).ok());
  const auto again = at(0).add_peer(stage_->peer_of(0, 1));
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code(), Code::kExists);
  ASSERT_TRUE(at(0).add_peer(stage_->peer_of(0, 2)).ok());
  for (uint64_t number = 1; number <= 7; ++number) {
    send(0, note_batch(0, 1, number));
    send(1, note_batch(2, 3, number));
  }
  expect("the second life",
         [&] { return got(1).num_messages() == 7 && got(0).num_messages() == 7; });
  expect_in_order(1, 0, 7);
  expect_in_order(0, 2, 7);
}

TEST_P(TransportConformance, TellsAProcessThatItIsOutdated) {
  open_one(0, {}, patient());
  open_one(1, {}, patient(), 1);
  // Process 0 already waits for incarnation 3 of process 1.
  ASSERT_TRUE(at(0).add_peer(stage_->peer_of(0, 3)).ok());
  ASSERT_TRUE(at(1).add_peer(stage_->peer_of(1, 1)).ok());
  expect("both hear of it", [&] { return !got(0).refusals().empty() && got(1).num_failed() == 1; });
  EXPECT_EQ(got(0).refusals()[0].field, "incarnation");
  EXPECT_EQ(got(0).refusals()[0].ours, "3");
  EXPECT_EQ(got(0).refusals()[0].theirs, "1");
  EXPECT_EQ(got(1).refusals()[0].ours, "1");
  EXPECT_EQ(got(1).refusals()[0].theirs, "3");
  EXPECT_TRUE(got(1).refusals()[0].by_peer);
  EXPECT_GE(status(0).num_refused(FrameRefusal::kIncarnation), 1u);
  // It keeps waiting for the incarnation that was added.
  EXPECT_EQ(status(0).state, ConnectionState::kConnecting);
}

TEST_P(TransportConformance, RefusesTheTenantOfAnother) {
  open_one(0, {}, patient());
  open_one(1, {}, patient());
  PeerSpec peer = stage_->peer_of(0, 1);
  peer.tenants = {TenantSlot(1), TenantSlot(4)};
  ASSERT_TRUE(at(0).add_peer(peer).ok());
  ASSERT_TRUE(at(1).add_peer(stage_->peer_of(1, 1)).ok());
  const auto with_tenant = [](TenantSlot tenant, uint64_t number) {
    MessageBatch batch = note_batch(0, 1, number);
    batch.messages[0].envelope.tenant = tenant;
    return batch;
  };
  send(1, with_tenant(TenantSlot(4), 1));
  send(1, with_tenant(TenantSlot::none(), 2));
  expect("its own and shared traffic", [&] { return got(0).num_messages() == 2; });
  send(1, with_tenant(TenantSlot(2), 3));
  expect("the link fails", [&] { return got(0).num_failed() == 1; });
  EXPECT_EQ(got(0).num_messages(), 2u);
  EXPECT_EQ(status(0).num_refused(FrameRefusal::kTenant), 1u);
}

TEST_P(TransportConformance, SaysWhoDidNotGreetInTime) {
  ConnectionLimits limits = patient();
  limits.greet_timeout = Duration::milliseconds(30);
  open_one(0, {}, limits);
  open_one(1, {}, patient());
  ASSERT_TRUE(at(0).add_peer(stage_->peer_of(0, 1)).ok());
  send(0, note_batch(0, 1, 1));
  expect("the deadline", [&] { return got(0).num_failed() == 1; });
  EXPECT_THAT(got(0).failures()[0],
              ::testing::HasSubstr("'side1' (process 1, incarnation 1) did not"));
  EXPECT_EQ(status(0).abandoned.num_batches, 1u);
  const auto closed = at(0).close(Duration());
  EXPECT_TRUE(closed.ok()) << closed.error().text();
}

TEST_P(TransportConformance, NamesThePeersThatDidNotAcknowledgeWhenItCloses) {
  open_one(0, {}, patient());
  open_one(1, {}, patient());
  ASSERT_TRUE(at(0).add_peer(stage_->peer_of(0, 1)).ok());
  send(0, note_batch(0, 1, 1));
  const auto closed = at(0).close(Duration());
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().code(), Code::kDeadline);
  EXPECT_THAT(closed.error().message(), ::testing::HasSubstr("'side1'"));
  EXPECT_EQ(status(0).abandoned.num_batches, 1u);
}

TEST_P(TransportConformance, KnowsOnlyPeersThatWereAdded) {
  open_one(0, {}, patient());
  EXPECT_EQ(at(0).send(ProcessId(1), note_batch(0, 1, 1)).error().code(), Code::kNotFound);
  PeerSpec self = stage_->peer_of(0, 1);
  self.process = ProcessId(0);
  EXPECT_EQ(at(0).add_peer(self).error().code(), Code::kInvalid);
  PeerSpec elsewhere = stage_->peer_of(0, 1);
  elsewhere.address = {"carrier-pigeon://roof", "carrier-pigeon://roof"};
  EXPECT_EQ(at(0).add_peer(elsewhere).error().code(), Code::kInvalid);
}

TEST_P(TransportConformance, TellsThePeerThatItLeavesInOrder) {
  open();
  send(0, note_batch(0, 1, 1));
  expect("the link", [&] { return got(0).num_ups() == 1 && got(1).num_ups() == 1; });
  ASSERT_TRUE(at(1).close(kPatience).ok());
  expect("goodbye", [&] { return got(0).num_downs() == 1; });
  if (stage_->may_lose_goodbye()) return;
  EXPECT_THAT(got(0).downs()[0], ::testing::HasSubstr("ended the connection in order"));
}

}  // namespace primerl
