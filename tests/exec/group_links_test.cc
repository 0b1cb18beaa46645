// The links of a group by themselves: credit, outboxes, grants, refused arrivals, other processes.
#include "runtime/exec/group_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/group_stage.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// source -> middle -> sink, capacity 4; sink is in another process. Middle sends `num_copies` of
/// each number, times ten.
struct Line {
  explicit Line(int num_copies = 1, Strings middle = {}) {
    middle.on_in = [num_copies](Puppet& puppet, const Number& number) {
      for (int i = 0; i < num_copies; ++i)
        puppet.out.send({.value = number.value * 10, .bulk = {}});
      return ok();
    };
    const auto change = [num_copies](Contract& contract) {
      contract.outputs[0].burst = exactly(num_copies);
    };
    graph.node("source", {.contract = make_source})
        .node("middle", {.strings = middle, .contract = change})
        .node("sink", {.process = 1})
        .edge("source.out", "middle.in", {.capacity = 4})
        .edge("middle.out", "sink.in", {.capacity = 4});
    stage = std::make_unique<GroupStage>(graph, "middle");
    EXPECT_TRUE(stage->actors.start(Time()).ok());
  }
  GroupStage* operator->() const { return stage.get(); }
  SmallGraph graph;
  std::unique_ptr<GroupStage> stage;
};

TEST(GroupLinks, AFullOutputStopsTheInputUntilCreditReturns) {
  Line line;
  ASSERT_TRUE(line->receive(0, 1, 5).ok());
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(line->step());
  EXPECT_FALSE(line->steps.ready());
  EXPECT_THAT(line->flushed().front().values, ElementsAre(10, 20, 30, 40));
  EXPECT_EQ(line->links.num_held(), 1U);
  ASSERT_TRUE(line->receive_grant(0, 1).ok());
  ASSERT_TRUE(line->step());
  EXPECT_THAT(line->flushed().front().values, ElementsAre(50));
}

TEST(GroupLinks, MessagesBeyondTheCreditWaitInTheOutbox) {
  Line line(3);
  ASSERT_TRUE(line->receive(0, 1, 2).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(line->step());
  EXPECT_THAT(line->flushed().front().values, ElementsAre(10, 10, 10, 20));
  EXPECT_TRUE(line->common->flow->has_outbox());
  EXPECT_EQ(line->links.num_held(), 2U);
  ASSERT_TRUE(line->receive_grant(0, 1).ok());
  EXPECT_THAT(line->flushed().front().values, ElementsAre(20));
  ASSERT_TRUE(line->receive_grant(0, 4).ok());
  EXPECT_THAT(line->flushed().front().values, ElementsAre(20));
  EXPECT_FALSE(line->common->flow->has_outbox());
}

TEST(GroupLinks, CreditReturnsAtHalfAWindow) {
  Line line;
  ASSERT_TRUE(line->receive(0, 1, 2).ok());
  ASSERT_TRUE(line->step());
  for (const auto& batch : line->flushed()) EXPECT_THAT(batch.grants, IsEmpty());
  ASSERT_TRUE(line->step());
  const auto sent = line->flushed();
  const auto granted = std::find_if(sent.begin(), sent.end(),
                                    [](const SentBatch& batch) { return !batch.grants.empty(); });
  ASSERT_NE(granted, sent.end());
  EXPECT_EQ(granted->to, line->group("source"));
  EXPECT_EQ(granted->grants[0].num_messages, 2U);
}

TEST(GroupLinks, AGapIsAnErrorAndTheRestOfTheBatchIsAccepted) {
  Line line;
  ASSERT_TRUE(line->receive(0, 1, 1).ok());
  const Status gap = line->receive(0, 3, 3);
  ASSERT_FALSE(gap.ok());
  EXPECT_THAT(gap.error().text(), HasSubstr("edge 'source.out -> middle.in'"));
  EXPECT_THAT(gap.error().text(), HasSubstr("message 3 of link 0 arrived after message 1"));
  EXPECT_TRUE(line->receive(0, 1, 1).ok()) << "a duplicate is counted";
  EXPECT_EQ(line->links.inbox().links[0].num_refused_duplicates.get(), 1U);
  EXPECT_TRUE(line->receive(0, 2, 2).ok());
  EXPECT_EQ(line->links.inbox().size(), 2U);
}

TEST(GroupLinks, AGrantForMoreThanWasSentIsRefused) {
  Line line;
  ASSERT_TRUE(line->receive(0, 1, 1).ok());
  ASSERT_TRUE(line->step());
  const Status refused = line->receive_grant(0, 2);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(),
              HasSubstr("'middle' got a grant for 2 messages and 0 bytes of edge 'middle.out -> "
                        "sink.in', on which it has sent 1 and 0"));
  EXPECT_TRUE(line->receive_grant(0, 1).ok());
}

TEST(GroupLinks, ALinkThatEndsElsewhereIsRefused) {
  Line line;
  MessageBatch batch;
  batch.from = line->group("source");
  batch.messages.push_back(line->message(0, 1, 1));
  batch.messages[0].link = LinkId(1);
  batch.grants.push_back({LinkId(99), 1, 0, 1});
  const Status refused = line->links.accept(line->peer("source"), std::move(batch));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("a grant for link 99, which it does not send on"));
  EXPECT_TRUE(line->links.inbox().empty());
}

TEST(GroupLinks, MoreMessagesThanTheBoundEndTheRunOnce) {
  Line line;
  const int64_t bound = line->links.inbox().links[0].link->bound;
  ASSERT_TRUE(line->receive(0, 1, static_cast<uint64_t>(bound)).ok());
  EXPECT_THAT(line->failures, IsEmpty());
  ASSERT_TRUE(
      line->receive(0, static_cast<uint64_t>(bound) + 1, static_cast<uint64_t>(bound) + 2).ok());
  ASSERT_THAT(line->failures, SizeIs(1));
  EXPECT_THAT(line->failures[0],
              HasSubstr(fmt::format("had {} messages waiting, its bound is {}", bound + 1, bound)));
}

/// A driver asks over a router, and a third process answers.
TEST(GroupLinks, AnswersToRepeatedRequestsMayWaitAfterADeath) {
  SmallGraph graph;
  graph.node("driver", {.contract = make_source})
      .node("router", {.process = 1})
      .node("worker", {.process = 2})
      .edge("driver.out", "router.in", {.capacity = 4})
      .edge("router.out", "worker.in", {.capacity = 4})
      .edge("worker.tell", "driver.back", {.at_most = 4});
  GroupStage stage(graph, "driver");
  ASSERT_TRUE(stage.actors.start(Time()).ok());
  const auto bound = static_cast<uint64_t>(stage.links.inbox().links[0].link->bound);
  stage.links.peer_down(stage.group("router"), 1);
  ASSERT_TRUE(stage.receive(0, 1, 2 * bound).ok());
  EXPECT_THAT(stage.failures, IsEmpty()) << "each request was answered twice";
  ASSERT_TRUE(stage.receive(0, 2 * bound + 1, 2 * bound + 1).ok());
  EXPECT_THAT(stage.failures, SizeIs(1));
}

TEST(GroupLinks, ADeadProcessReturnsMessagesAndNotifiesItsActors) {
  std::vector<PeerEvent> events;
  Strings middle;
  middle.on_peer = [&events](Puppet&, const PeerEvent& event) { events.push_back(event); };
  Line line(1, middle);
  ASSERT_TRUE(line->receive(0, 1, 2).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(line->step());
  line->links.peer_down(line->group("sink"), 1);
  ASSERT_TRUE(line->step());
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].kind, PeerEvent::Kind::kDown);
  EXPECT_EQ(line->common->flow->links[0].num_returned.get(), 2U);
  EXPECT_TRUE(line->receive_grant(0, 2).ok()) << "a late grant of the dead is ignored";

  line->links.peer_up(line->group("sink"), 2);
  ASSERT_TRUE(line->step());
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[1].kind, PeerEvent::Kind::kUp);
  (void)line->flushed();
  ASSERT_TRUE(line->receive(0, 3, 3).ok());
  ASSERT_TRUE(line->step());
  EXPECT_THAT(line->flushed().front().values, ElementsAre(30)) << "with full credit";
}

TEST(GroupLinks, TheLedgerOfEveryMessageBalances) {
  Line line;
  ASSERT_TRUE(line->receive(0, 1, 3).ok());
  ASSERT_TRUE(line->step());
  std::vector<EdgeLedger> ledger(line->plan->edges.size());
  line->links.add_to(ledger);
  EXPECT_EQ(ledger[0].handled, 1U);
  EXPECT_EQ(ledger[1].sent, 1U);
  EXPECT_EQ(ledger[1].in_flight, 1U);
  std::vector<EdgeLoad> loads(line->plan->edges.size());
  std::vector<InstanceLoad> instances;
  line->links.add_load(loads, instances, Time());
  EXPECT_EQ(loads[0].num_waiting, 2U);
  ASSERT_THAT(instances, SizeIs(1));
  EXPECT_EQ(instances[0].num_handled, 1U);
}

}  // namespace
}  // namespace primerl::testing
