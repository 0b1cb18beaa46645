// Slots without a tenant: their instances are in the plan and their groups run, without an actor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/group_stage.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

/// Actors that started and drained.
struct LivedActors {
  std::vector<std::string> started, drained;

  Strings strings() {
    Strings made;
    made.on_start = [this](Puppet& puppet) {
      started.emplace_back(puppet.world().self_name());
      return ok();
    };
    made.on_drain = [this](Puppet& puppet) {
      drained.emplace_back(puppet.world().self_name());
      return ok();
    };
    return made;
  }
};

TEST(FreeSlots, HaveNoActorsAndTheRunEndsWithItsTenants) {
  LivedActors actors;
  Strings source = actors.strings(), middle = actors.strings();
  source.on_work = counts_to(6);
  middle.on_in = [](Puppet& puppet, const Number& number) {
    puppet.out.send({.value = number.value, .bulk = {}});
    return ok();
  };
  SmallGraph graph(3);
  graph.num_free_slots = 2;
  graph.node("source", {.strings = source, .contract = make_source, .per_tenant = true})
      .node("middle", {.strings = middle, .per_tenant = true})
      .node("sink", {.strings = actors.strings()})
      .edge("source.out", "middle.in")
      .edge("middle.out", "sink.in");
  SmallRun run(graph);
  ASSERT_EQ(run.plan->num_slots(), 3U);
  const auto outcome = run->wait();
  ASSERT_EQ(outcome.end, RunEnd::kFinished) << outcome.status.error().text();
  EXPECT_THAT(actors.started, ElementsAre("source.t0", "middle.t0", "sink"));
  EXPECT_THAT(actors.drained, UnorderedElementsAre("source.t0", "middle.t0", "sink"));
  for (const auto& edge : outcome.ledger) EXPECT_EQ(edge.handled, 6U);
}

TEST(FreeSlots, OfASharedGroupHaveNoStateAndGetNoCommand) {
  LivedActors actors;
  SmallGraph graph(2);
  graph.num_free_slots = 1;
  graph.node("trainer", {.strings = actors.strings(), .per_tenant = true, .group = "learner"});
  GroupStage stage(graph, "learner");
  ASSERT_TRUE(stage.actors.start(Time()).ok());
  EXPECT_THAT(actors.started, ElementsAre("trainer.t0"));
  EXPECT_FALSE(stage.actors.running(0).is_vacant());
  EXPECT_TRUE(stage.actors.running(1).is_vacant());
  EXPECT_FALSE(stage.plan->is_vacant(GroupId(0)));
  GroupState state;
  stage.actors.save(state);
  ASSERT_EQ(state.actors.size(), 2U);
  EXPECT_TRUE(state.actors[1].state.body.empty());
  EXPECT_TRUE(stage.actors.restore_actors(state).ok());
  EXPECT_TRUE(stage.actors.are_idle());
  stage.actors.command({1, TenantSlot(1), Payload::of(Number{3, {}})}, Time());
  EXPECT_TRUE(stage.links.inbox().empty()) << "no actor gets it";
  EXPECT_THAT(stage.answers, ::testing::IsEmpty());
  stage.actors.command({2, {}, Payload::of(Number{3, {}})}, Time());
  EXPECT_EQ(stage.links.inbox().size(), 1U) << "the actor of the tenant that is there";
}

/// A shared actor would look for a tenant that does not exist. The run of the others continues.
TEST(FreeSlots, MessagesForThemComeToNoActor) {
  SmallGraph graph(2);
  graph.num_free_slots = 1;
  std::vector<int64_t> handled;
  Strings strings;
  strings.on_in = [&handled](Puppet&, const Number& number) {
    handled.push_back(number.value);
    return ok();
  };
  graph.node("source").node("sink", {.strings = strings}).edge("source.out", "sink.in");
  GroupStage stage(graph, "sink");
  ASSERT_TRUE(stage.actors.start(Time()).ok());
  MessageBatch batch;
  batch.from = stage.group("source");
  batch.to = stage.group("sink");
  batch.incarnation = 1;
  batch.messages.push_back(stage.message(0, 1, 1));
  batch.messages[0].envelope.tenant = TenantSlot(1);
  ASSERT_TRUE(stage.links.accept(stage.peer("source"), std::move(batch)).ok());
  ASSERT_TRUE(stage.receive(0, 2, 2).ok());
  while (stage.step()) continue;
  EXPECT_THAT(handled, ElementsAre(2));
  EXPECT_TRUE(stage.failures.empty());
  EXPECT_TRUE(stage.failed_tenants.empty());
  EXPECT_TRUE(stage.links.inbox().empty());
}

}  // namespace
}  // namespace primerl::testing
