// Batches for other groups: which leave, in which order, with which grants and cut.
#include "runtime/exec/peer_batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/group_stage.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// middle gets from a, and sends to b and c; c is in another process.
SmallGraph a_middle() {
  SmallGraph graph;
  graph.node("a").node("middle").node("b").node("c", {.process = 1}).node("alone");
  graph.edge("a.out", "middle.in").edge("middle.out", "b.in").edge("middle.pick", "c.in");
  return graph;
}

class PeerBatchesTest : public ::testing::Test {
 protected:
  void add(std::string_view peer, int64_t value) {
    Envelope envelope;
    envelope.payload = Payload::of(Number{value, {}});
    batches_.add(stage_.peer(peer), LinkId(0), std::move(envelope));
  }
  std::vector<SentBatch> flushed() {
    batches_.flush(stage_.links.inbox().links);
    return std::exchange(stage_.sent, {});
  }

  SmallGraph graph_ = a_middle();
  GroupStage stage_{graph_, "middle"};
  PeerBatches batches_{*stage_.common};
};

TEST_F(PeerBatchesTest, OnlyGroupsWithACommonLinkArePeers) {
  EXPECT_EQ(batches_.size(), 3U);
  EXPECT_EQ(batches_.index_of(stage_.group("alone")), PeerBatches::kNone);
  EXPECT_EQ(batches_.index_of(stage_.group("middle")), PeerBatches::kNone);
  EXPECT_FALSE(batches_.is_remote(stage_.peer("b")));
  EXPECT_TRUE(batches_.is_remote(stage_.peer("c")));
}

TEST_F(PeerBatchesTest, LeaveOnceInTheOrderInWhichTheyBecameDue) {
  EXPECT_TRUE(batches_.is_empty());
  add("c", 1);
  add("b", 2);
  add("c", 3);
  EXPECT_FALSE(batches_.is_empty());
  const auto sent = flushed();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].to, stage_.group("c"));
  EXPECT_THAT(sent[0].values, ElementsAre(1, 3));
  EXPECT_THAT(sent[1].values, ElementsAre(2));
  EXPECT_THAT(flushed(), IsEmpty());
  EXPECT_TRUE(batches_.is_empty());
}

TEST_F(PeerBatchesTest, AGrantWaitsUntilItsBatchIsDue) {
  InLink& in = stage_.links.inbox().links[0];
  in.settled_messages = 3;
  in.settled_bytes = 40;
  in.is_ungranted = true;
  batches_.request_grant(stage_.peer("a"), 0);
  EXPECT_THAT(flushed(), IsEmpty());
  batches_.mark_due(stage_.peer("a"));
  batches_.mark_due(stage_.peer("a"));
  const auto sent = flushed();
  ASSERT_THAT(sent, SizeIs(1));
  ASSERT_THAT(sent[0].grants, SizeIs(1));
  EXPECT_EQ(sent[0].grants[0].num_messages, 3U);
  EXPECT_EQ(sent[0].grants[0].num_bytes, 40U);
  EXPECT_EQ(in.granted_messages, 3U);
  EXPECT_FALSE(in.is_ungranted);
  batches_.mark_due(stage_.peer("a"));
  EXPECT_THAT(flushed().front().grants, IsEmpty()) << "it was granted already";
}

TEST_F(PeerBatchesTest, CarryTheNumberOfTheNewestCut) {
  add("b", 1);
  EXPECT_EQ(flushed().front().cut, 0U);
  batches_.set_cut(7);
  add("b", 2);
  EXPECT_EQ(flushed().front().cut, 7U);
}

TEST_F(PeerBatchesTest, AnIncarnationNeverGoesBackAndIsSaved) {
  const uint32_t peer = stage_.peer("c");
  batches_.set_incarnation(peer, 3);
  batches_.set_incarnation(peer, 2);
  EXPECT_TRUE(batches_.is_old(peer, 2));
  EXPECT_FALSE(batches_.is_old(peer, 3));
  PeerBatches restored(*stage_.common);
  EXPECT_FALSE(restored.is_old(peer, 2));
  restored.restore(batches_.saved());
  EXPECT_TRUE(restored.is_old(peer, 2));
}

}  // namespace
}  // namespace primerl::testing
