// Links and inputs as saved values, and back.
#include "runtime/exec/link_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/group_stage.h"

namespace primerl::testing {
namespace {

class LinkStateTest : public ::testing::Test {
 protected:
  LinkStateTest() {
    graph_.node("a")
        .node("b", {.process = 1})
        .edge("a.out", "b.in")
        .edge("b.tell", "a.back", {.at_most = 4});
    stage_ = std::make_unique<GroupStage>(graph_, "a");
  }
  SmallGraph graph_;
  std::unique_ptr<GroupStage> stage_;
};

TEST_F(LinkStateTest, EveryNumberOfALinkIsSaved) {
  InLink in = stage_->links.inbox().links[0];
  in.last_sequence = 1;
  in.settled_messages = 2;
  in.granted_bytes = 3;
  in.excess = 4;
  in.is_ungranted = true;
  in.num_overwritten.set(5);
  in.sent_by_dead.set(6);
  InLink in_back = stage_->links.inbox().links[0];
  load_link(saved_link(in), in_back);
  EXPECT_EQ(in_back.last_sequence, 1U);
  EXPECT_EQ(in_back.settled_messages, 2U);
  EXPECT_EQ(in_back.granted_bytes, 3U);
  EXPECT_EQ(in_back.excess, 4U);
  EXPECT_TRUE(in_back.is_ungranted);
  EXPECT_EQ(in_back.num_overwritten.get(), 5U);
  EXPECT_EQ(in_back.sent_by_dead.get(), 6U);

  OutLink& out = stage_->common->flow->links[0];
  out.num_emitted.set(7);
  out.past_dropped.set(8);
  out.bytes_settled = 9;
  out.last_settled_sequence = 10;
  const SavedOutLink saved = saved_link(out);
  out.num_emitted.set(0);
  out.past_dropped.set(0);
  out.bytes_settled = out.last_settled_sequence = 0;
  load_link(saved, out);
  EXPECT_EQ(out.num_emitted.get(), 7U);
  EXPECT_EQ(out.past_dropped.get(), 8U);
  EXPECT_EQ(out.bytes_settled, 9U);
  EXPECT_EQ(out.last_settled_sequence, 10U);
}

TEST_F(LinkStateTest, ATimerAndAPeerEventKeepWhatTheyAre) {
  Input timer;
  timer.kind = StepKind::kTimer;
  timer.port = 1;
  timer.generation = 5;
  const SavedInput saved = saved_input(timer, stage_->links.inbox().links);
  EXPECT_EQ(saved.timer, 1U);
  EXPECT_EQ(saved.generation, 5U);
  EXPECT_FALSE(saved.message.has_value());
  Input peer;
  peer.kind = StepKind::kPeer;
  peer.peer = {PeerEvent::Kind::kUp, InstanceId(1), 3};
  const SavedInput event = saved_input(peer, stage_->links.inbox().links);
  EXPECT_TRUE(event.peer_is_up);
  EXPECT_EQ(event.peer, InstanceId(1));
  EXPECT_EQ(event.peer_incarnation, 3U);
}

TEST_F(LinkStateTest, AMessageIsRestoredWithTheEndsOfItsLink) {
  const BatchedMessage message = stage_->message(0, 4, 44);
  const WiredLink& link = *stage_->links.inbox().links[0].link;
  const MessageType& type = *message.envelope.payload.type;
  const auto back = restored_message(saved_message(message.link, message.envelope), link, type);
  ASSERT_TRUE(back.ok()) << back.error().text();
  EXPECT_EQ(back->payload.as<Number>().value, 44);
  EXPECT_EQ(back->sequence, 4U);
  EXPECT_EQ(back->sender, link.sender);
  EXPECT_EQ(back->target, link.target);
  SavedMessage broken = saved_message(message.link, message.envelope);
  broken.payload.body = Blob(std::vector<std::byte>(3, std::byte{0xc1}));
  EXPECT_FALSE(restored_messages({broken}, link, type).ok());
}

}  // namespace
}  // namespace primerl::testing
