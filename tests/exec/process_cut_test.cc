// A cut of a process is complete when every group has saved its state and no message sent before it
// is missing.
#include "runtime/exec/process_cut.h"

#include <gmock/gmock.h>

#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

struct Pair {
  Pair() {
    graph.node("a", {.strings = {.on_work = counts_to(1)}, .contract = make_source}).node("b");
    graph.edge("a.out", "b.in");
    plan = graph.plan();
    wiring = make_wiring(*plan);
    collector = std::make_unique<CutCollector>(
        plan, wiring, ProcessId(0), [this](ProcessCut&& cut) { done.push_back(std::move(cut)); });
  }
  /// The part of one node's group, which has shipped or received this many messages.
  GroupState part(uint32_t group, uint64_t num_messages) const {
    GroupState state;
    state.group = GroupId(group);
    const GroupWiring& wires = wiring->groups[group];
    state.in_links.resize(wires.in.size());
    state.out_links.resize(wires.out.size());
    for (auto& in : state.in_links) in.num_received_incarnation = num_messages;
    for (auto& out : state.out_links) out.num_shipped = num_messages;
    return state;
  }
  SmallGraph graph;
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Wiring> wiring;
  std::vector<ProcessCut> done;
  std::unique_ptr<CutCollector> collector;
};

TEST(CutCollector, IsDoneWhenAllHaveSavedTheirState) {
  Pair pair;
  const uint64_t number = pair.collector->begin();
  pair.collector->add_part(number, pair.part(0, 5));
  EXPECT_TRUE(pair.collector->is_open());
  pair.collector->add_part(number, pair.part(1, 5));
  EXPECT_FALSE(pair.collector->is_open());
  ASSERT_EQ(pair.done.size(), 1U);
  EXPECT_EQ(pair.done.front().number, number);
  EXPECT_EQ(pair.done.front().groups.size(), 2U);
  EXPECT_TRUE(pair.done.front().in_transit.empty());
}

TEST(CutCollector, WaitsForEveryMessageThatIsOnItsWay) {
  Pair pair;
  const uint64_t number = pair.collector->begin();
  pair.collector->add_part(number, pair.part(0, 5));
  pair.collector->add_part(number, pair.part(1, 3));
  SavedMessage message;
  message.link = LinkId(0);
  pair.collector->add_in_transit(number, SavedMessage(message));
  EXPECT_TRUE(pair.done.empty());
  pair.collector->add_in_transit(number, SavedMessage(message));
  ASSERT_EQ(pair.done.size(), 1U);
  EXPECT_EQ(pair.done.front().in_transit.size(), 2U);
}

TEST(CutCollector, LeavesOutWhatBelongsToACutThatWasGivenUp) {
  Pair pair;
  const uint64_t given_up = pair.collector->begin();
  pair.collector->add_part(given_up, pair.part(0, 5));
  const uint64_t number = pair.collector->begin();
  EXPECT_GT(number, given_up);
  pair.collector->add_part(given_up, pair.part(1, 5));
  pair.collector->add_part(number, pair.part(1, 5));
  EXPECT_TRUE(pair.done.empty());
  pair.collector->add_part(number, pair.part(0, 5));
  ASSERT_EQ(pair.done.size(), 1U);
  pair.collector->add_part(number, pair.part(0, 6));  // also after the cut is complete
  EXPECT_EQ(pair.done.size(), 1U);
}

TEST(GroupState, OfAnotherGraphIsRefusedByName) {
  SmallGraph graph;
  graph.node("a", {.strings = {.on_work = counts_to(3)}, .contract = make_source}).node("b");
  graph.edge("a.out", "b.in");
  SmallRun run(graph);
  run->settle();
  GroupState state = run->group(run.group("b")).state();
  const auto refused = [&](const GroupState& wrong) {
    SmallRun other(graph);
    const Status restored = other->group(other.group("b")).restore(wrong, Time());
    return restored.ok() ? std::string("fits") : restored.error().text();
  };
  EXPECT_EQ(refused(state), "fits");
  GroupState wrong = state;
  wrong.actors.emplace_back();
  EXPECT_THAT(refused(wrong), ::testing::HasSubstr("'b' is of another graph: it has other actors"));
  wrong = state;
  wrong.in_links.clear();
  EXPECT_THAT(refused(wrong), ::testing::HasSubstr("it has other edges"));
  wrong = state;
  wrong.timers = {{Time(), 0, 99, 0}};
  EXPECT_THAT(refused(wrong), ::testing::HasSubstr("it has other timers"));
  wrong = state;
  wrong.group = GroupId(0);
  EXPECT_THAT(refused(wrong), ::testing::HasSubstr("it is another group's"));
  wrong = state;
  wrong.actors.front().state.body = Blob(std::vector<std::byte>(3, std::byte{0xc1}));
  EXPECT_THAT(refused(wrong), ::testing::HasSubstr("the state of 'puppet'"));
}

}  // namespace
}  // namespace primerl::testing
