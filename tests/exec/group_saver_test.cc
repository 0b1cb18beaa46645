// A group saved for a cut and restored: every part of its state, messages in transit, other plans.
#include "runtime/exec/group_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/group_stage.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Parts final : public CutSink {
  void add_part(uint64_t number, GroupState&& state) override {
    numbers.push_back(number);
    states.push_back(std::move(state));
  }
  void add_in_transit(uint64_t number, SavedMessage&& message) override {
    in_transit.push_back(fmt::format("{}: message {}", number, message.sequence));
  }
  std::vector<uint64_t> numbers;
  std::vector<GroupState> states;
  std::vector<std::string> in_transit;
};

/// source -> middle -> sink in one process; middle sends what it gets.
SmallGraph a_line_of_three() {
  Strings middle;
  middle.on_in = [](Puppet& puppet, const Number& number) {
    puppet.out.send({.value = number.value, .bulk = {}});
    return ok();
  };
  SmallGraph graph;
  graph.node("source", {.contract = make_source})
      .node("middle", {.strings = middle})
      .node("sink")
      .edge("source.out", "middle.in", {.capacity = 4})
      .edge("middle.out", "sink.in", {.capacity = 4});
  return graph;
}

class GroupSaverTest : public ::testing::Test {
 protected:
  std::unique_ptr<GroupStage> a_group() {
    auto stage = std::make_unique<GroupStage>(graph_, "middle", nullptr, &parts_);
    EXPECT_TRUE(stage->actors.start(Time()).ok());
    return stage;
  }
  MessageBatch batch(GroupStage& stage, uint64_t sequence, uint64_t cut) {
    MessageBatch batch;
    batch.from = stage.group("source");
    batch.cut = cut;
    batch.messages.push_back(stage.message(0, sequence, static_cast<int64_t>(sequence)));
    return batch;
  }

  Parts parts_;
  SmallGraph graph_ = a_line_of_three();
};

TEST_F(GroupSaverTest, ARestoredGroupContinuesWhereTheFirstWasSaved) {
  const auto first = a_group();
  ASSERT_TRUE(first->receive(0, 1, 4).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(first->step());
  (void)first->flushed();
  const GroupState state = first->saver.state();
  EXPECT_EQ(state.num_steps, 2U);
  EXPECT_THAT(state.inputs, SizeIs(2));

  const auto second = a_group();
  const Status restored = second->saver.restore(state);
  ASSERT_TRUE(restored.ok()) << restored.error().text();
  for (GroupStage* stage : {first.get(), second.get()}) {
    while (stage->step()) continue;
    const auto sent = stage->flushed();
    EXPECT_THAT(sent.front().values, ElementsAre(3, 4));
    EXPECT_EQ(stage->puppet().count, 4);
    EXPECT_EQ(stage->steps.num_steps(), 4U);
  }
  EXPECT_EQ(encode_group_state(first->saver.state()).body,
            encode_group_state(second->saver.state()).body);
}

TEST_F(GroupSaverTest, AGroupJoinsACutOnceAfterItsWrittenBatchesLeft) {
  const auto stage = a_group();
  ASSERT_TRUE(stage->receive(0, 1, 1).ok());
  ASSERT_TRUE(stage->step());
  stage->saver.cut(3, Time());
  EXPECT_THAT(stage->sent, SizeIs(1));
  EXPECT_EQ(stage->sent[0].cut, 0U) << "it was written before the cut";
  stage->saver.cut(3, Time());
  stage->saver.cut(2, Time());
  EXPECT_THAT(parts_.numbers, ElementsAre(3));
  EXPECT_EQ(stage->saver.newest_cut(), 3U);
}

TEST_F(GroupSaverTest, ABatchWithANewerCutMakesTheGroupJoinIt) {
  const auto stage = a_group();
  stage->saver.follow_cut(stage->peer("source"), batch(*stage, 1, 5), Time());
  EXPECT_THAT(parts_.numbers, ElementsAre(5));
  EXPECT_THAT(parts_.in_transit, IsEmpty());
  stage->saver.follow_cut(stage->peer("source"), batch(*stage, 1, 5), Time());
  EXPECT_THAT(parts_.in_transit, IsEmpty());
  stage->saver.follow_cut(stage->peer("source"), batch(*stage, 2, 4), Time());
  EXPECT_THAT(parts_.in_transit, ElementsAre("5: message 2"));
}

TEST_F(GroupSaverTest, MessagesInTransitArriveAfterTheRestore) {
  const auto first = a_group();
  const GroupState state = first->saver.state();
  const auto second = a_group();
  ASSERT_TRUE(second->saver.restore(state).ok());
  const BatchedMessage message = second->message(0, 1, 8);
  const std::vector<SavedMessage> in_transit = {saved_message(message.link, message.envelope)};
  ASSERT_TRUE(second->saver.receive(in_transit).ok());
  ASSERT_TRUE(second->step());
  EXPECT_THAT(second->flushed().front().values, ElementsAre(8));
  std::vector<SavedMessage> elsewhere(1);
  elsewhere[0].link = LinkId(1);
  const Status refused = second->saver.receive(elsewhere);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("is of link 1, which ends elsewhere"));
}

TEST_F(GroupSaverTest, AStateOfAnotherPlanIsRefusedByName) {
  const auto stage = a_group();
  const GroupState state = stage->saver.state();
  const auto refused = [&](const std::function<void(GroupState&)>& change) {
    GroupState wrong = state;
    change(wrong);
    const Status restored = a_group()->saver.restore(wrong);
    return restored.ok() ? std::string("fits") : restored.error().text();
  };
  SavedInput none;
  none.kind = kNumStepKinds;
  SavedInput command;
  command.kind = static_cast<uint8_t>(StepKind::kCommand);
  command.timer = 99;
  command.message = SavedMessage();
  SavedInput timer;
  timer.kind = static_cast<uint8_t>(StepKind::kTimer);
  timer.timer = 2;
  EXPECT_EQ(refused([](GroupState&) {}), "fits");
  EXPECT_THAT(refused([](GroupState& wrong) { wrong.group = GroupId(0); }),
              HasSubstr("it is another group's"));
  EXPECT_THAT(refused([](GroupState& wrong) { wrong.peers.clear(); }),
              HasSubstr("it has other neighbours"));
  EXPECT_THAT(refused([](GroupState& wrong) { wrong.actors[0].timer_generations.pop_back(); }),
              HasSubstr("an actor has other timers"));
  EXPECT_THAT(refused([&](GroupState& wrong) { wrong.inputs = {none}; }),
              HasSubstr("an input is none"));
  EXPECT_THAT(refused([&](GroupState& wrong) { wrong.inputs = {command}; }),
              HasSubstr("it has other inputs"));
  EXPECT_THAT(refused([&](GroupState& wrong) { wrong.inputs = {timer}; }),
              HasSubstr("it has other timers"));
}

}  // namespace
}  // namespace primerl::testing
