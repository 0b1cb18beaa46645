// ActorGroup alone: timers, pausing, atomic steps, drain, services.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const TenantSlot kTenant(0);

TEST(ActorGroup, ATimerFiresOnceNotBeforeItsTime) {
  std::vector<double> fired;
  Strings strings;
  strings.on_start = [](Puppet& puppet) {
    puppet.world().set_timer("tick", Duration::seconds(3));
    puppet.world().set_timer("tock", Duration::seconds(1));
    return ok();
  };
  const auto note = [&](Puppet& puppet) {
    fired.push_back((puppet.world().now() - Time()).to_seconds());
    return ok();
  };
  strings.on_tick = note;
  strings.on_tock = note;
  SmallGraph graph;
  graph.node("clock", {.strings = strings});
  SmallRun run(graph);
  run->wait();
  EXPECT_THAT(fired, ElementsAre(1.0, 3.0));
}

TEST(ActorGroup, SettingATimerAgainReplacesItAndCancellingStopsIt) {
  std::vector<std::string> fired;
  Strings strings;
  strings.on_start = [](Puppet& puppet) {
    puppet.world().set_timer("tick", Duration::seconds(1));
    puppet.world().set_timer("tick", Duration::seconds(2));
    puppet.world().set_timer("tock", Duration::seconds(2));
    return ok();
  };
  strings.on_tick = [&](Puppet& puppet) {
    fired.push_back(fmt::format("tick {}", (puppet.world().now() - Time()).to_seconds()));
    // The timer expires at this very moment and may be in the inbox already: it must not fire any
    // more.
    puppet.world().cancel_timer("tock");
    return ok();
  };
  strings.on_tock = [&](Puppet&) {
    fired.push_back("tock");
    return ok();
  };
  SmallGraph graph;
  graph.node("clock", {.strings = strings});
  SmallRun run(graph);
  run->wait();
  EXPECT_THAT(fired, ElementsAre("tick 2"));
}

TEST(ActorGroup, APausedInputWaitsWhileOthersPass) {
  std::vector<int64_t> order;
  Strings strings;
  strings.on_start = [](Puppet& puppet) {
    puppet.world().pause("in");
    return ok();
  };
  strings.on_in = [&](Puppet&, const Number& number) {
    order.push_back(number.value);
    return ok();
  };
  strings.on_side = [&](Puppet& puppet, const Number& number) {
    order.push_back(-number.value);
    if (number.value == 3) puppet.world().resume("in");
    return ok();
  };
  SmallGraph graph;
  graph.node("a", {.strings = {.on_work = counts_to(3, false)}, .contract = make_source})
      .node("b", {.strings = {.on_work = counts_to(3, false)}, .contract = make_source})
      .node("sink", {.strings = strings})
      .edge("a.out", "sink.in")
      .edge("b.out", "sink.side");
  SmallRun run(graph);
  run->settle();
  EXPECT_THAT(order, ElementsAre(-1, -2, -3, 1, 2, 3));
}

TEST(ActorGroup, ADeliveryTellsWhoSentItAndNowStandsStill) {
  Delivery seen;
  Time begun;
  Strings strings;
  strings.on_in = [&](Puppet& puppet, const Number&) {
    seen = puppet.world().delivery();
    begun = puppet.world().now();
    return ok();
  };
  SmallGraph graph;
  graph.node("source", {.strings = {.on_work = counts_to(1, false)}, .contract = make_source})
      .node("sink", {.strings = strings})
      .edge("source.out", "sink.in");
  SmallRun run(graph);
  run->settle();
  EXPECT_EQ(seen.tenant, kTenant);
  EXPECT_EQ(seen.sender, InstanceId(0));
  EXPECT_EQ(seen.origin, InstanceId(0));
  EXPECT_EQ(seen.ref.instance, InstanceId(1));
  EXPECT_EQ(seen.ref.step, 1u);
  EXPECT_EQ(begun, Time());
}

TEST(ActorGroup, RandomNumbersFollowSeedTenantNodePurposeAndIndex) {
  const auto draw = [](int64_t seed, const std::string& node, std::string_view purpose,
                       uint64_t index) {
    uint64_t number = 0;
    Strings strings;
    strings.on_start = [&](Puppet& puppet) {
      number = puppet.world().random(kTenant, purpose, index).next();
      return ok();
    };
    SmallGraph graph;
    graph.settings.seed = seed;
    graph.node(node, {.strings = strings});
    SmallRun run(graph);
    return number;
  };
  EXPECT_EQ(draw(1, "a", "x", 0), draw(1, "a", "x", 0));
  EXPECT_NE(draw(1, "a", "x", 0), draw(2, "a", "x", 0));
  EXPECT_NE(draw(1, "a", "x", 0), draw(1, "b", "x", 0));
  EXPECT_NE(draw(1, "a", "x", 0), draw(1, "a", "y", 0));
  EXPECT_NE(draw(1, "a", "x", 0), draw(1, "a", "x", 1));
}

/// An actor that tenants share gets other random numbers for each tenant.
TEST(ActorGroup, RandomNumbersOfTenantsDiffer) {
  std::set<uint64_t> numbers;
  Strings strings;
  strings.on_start = [&](Puppet& puppet) {
    for (uint32_t tenant = 0; tenant < 3; ++tenant)
      numbers.insert(puppet.world().random(TenantSlot(tenant), "x", 0).next());
    return ok();
  };
  SmallGraph graph(3);
  graph.node("a", {.strings = strings});
  SmallRun run(graph);
  EXPECT_EQ(numbers.size(), 3U);
}

TEST(ActorGroup, AnErrorDiscardsWhatTheHandlerSentAndRefuseAnswers) {
  std::vector<int64_t> arrived;
  Strings failing;
  failing.on_in = [](Puppet& puppet, const Number& number) -> Status {
    puppet.out.send({.value = number.value, .bulk = {}});
    if (number.value == 2) return error(Code::kInvalid, "two is not welcome");
    return ok();
  };
  failing.on_refuse = [](Puppet& puppet, const Number& number, const Error& error) {
    EXPECT_EQ(error.message(), "two is not welcome");
    puppet.out.send({.value = -number.value, .bulk = {}});
  };
  Strings taking;
  taking.on_in = [&](Puppet&, const Number& number) {
    arrived.push_back(number.value);
    return ok();
  };
  SmallGraph graph;
  graph.node("source", {.strings = {.on_work = counts_to(3)}, .contract = make_source})
      .node("picky", {.strings = failing})
      .node("sink", {.strings = taking})
      .edge("source.out", "picky.in")
      .edge("picky.out", "sink.in");
  SmallRun run(graph);
  const auto outcome = run->wait();
  EXPECT_EQ(outcome.end, RunEnd::kFinished);
  EXPECT_THAT(arrived, ElementsAre(1, -2, 3));
  EXPECT_EQ(outcome.ledger[0].failed, 1u);
  EXPECT_EQ(outcome.ledger[0].handled, 3u);
  EXPECT_THAT(run->counters(), ::testing::Contains(::testing::Pair("picky.errors", 1)));
}

TEST(ActorGroup, DrainLetsWhatIsInFlightEndAndStopsSources) {
  std::vector<int64_t> arrived;
  bool was_drained = false;
  Strings taking;
  taking.on_in = [&](Puppet&, const Number& number) {
    arrived.push_back(number.value);
    return ok();
  };
  taking.on_drain = [&](Puppet&) {
    was_drained = true;
    return ok();
  };
  SmallGraph graph;
  graph
      .node("source",
            {.strings = {.on_work = counts_to(1'000'000, false)}, .contract = make_source})
      .node("sink", {.strings = taking})
      .edge("source.out", "sink.in", {.capacity = 8});
  SmallRun run(graph);
  ASSERT_TRUE(run->run_until([&] { return arrived.size() >= 50; }));
  run->request_drain();
  const auto outcome = run->wait();
  EXPECT_EQ(outcome.end, RunEnd::kInterrupted);
  EXPECT_TRUE(was_drained);
  EXPECT_EQ(outcome.ledger[0].handled, outcome.ledger[0].sent);
  EXPECT_EQ(outcome.ledger[0].in_flight, 0u);
}

TEST(ActorGroup, DrainWaitsForAnActorThatIsNotIdleAndNamesItWhenItNeverIs) {
  const auto drain = [](Duration needs, Duration allowed) {
    auto done = std::make_shared<bool>(false);
    Strings strings;
    strings.on_drain = [needs](Puppet& puppet) {
      puppet.world().set_timer("tick", needs);
      return ok();
    };
    strings.on_tick = [done](Puppet&) {
      *done = true;
      return ok();
    };
    strings.is_idle = [done](const Puppet&) { return *done; };
    SmallGraph graph;
    graph.settings.drain_max = allowed;
    graph.node("slow", {.strings = strings});
    SmallRun run(graph);
    run->request_drain();
    return run->wait();
  };
  EXPECT_EQ(drain(Duration::seconds(30), Duration::seconds(30)).end, RunEnd::kInterrupted);
  const auto late = drain(Duration::seconds(31), Duration::seconds(30));
  EXPECT_EQ(late.end, RunEnd::kStalled);
  EXPECT_THAT(late.status.error().message(), HasSubstr("not drained within 30s"));
  EXPECT_THAT(late.stall.text(), HasSubstr("slow"));
}

TEST(ActorGroup, StopEndsTheRunAtOnce) {
  SmallGraph graph;
  graph.node("source", {.strings = {.on_work = counts_to(1'000'000)}, .contract = make_source})
      .node("sink")
      .edge("source.out", "sink.in");
  SmallRun run(graph);
  run->settle();
  run->request_stop();
  EXPECT_EQ(run->wait().end, RunEnd::kInterrupted);
}

/// A replay must find the stop at the call where it was noticed, in whichever actor of the work
/// call that was.
TEST(ActorGroup, ACallOfAWorkTurnThatIsToldToStopIsCountedOverAllItsActors) {
  class StopsSeen final : public StepHooks {
   public:
    void after(const StepRecord& record) override {
      if (record.stopped_at_progress != 0) at.push_back(record.stopped_at_progress);
    }
    std::vector<uint64_t> at;
  } hooks;
  std::function<void()> stop;
  std::vector<Progress> told;
  Strings first, second;
  first.on_work = [&](Puppet& puppet) -> Result<bool> {
    for (int i = 0; i < 2; ++i) told.push_back(puppet.world().progress());
    stop();
    return false;
  };
  second.on_work = [&](Puppet& puppet) -> Result<bool> {
    told.push_back(puppet.world().progress());
    return false;
  };
  SmallGraph graph;
  graph.node("first", {.strings = first, .contract = make_source, .group = "both"})
      .node("second", {.strings = second, .contract = make_source, .group = "both"});
  SmallRun run(graph, 1, &hooks);
  stop = [&] { run->request_stop(); };
  run->wait();
  EXPECT_THAT(told, ElementsAre(Progress::kGoOn, Progress::kGoOn, Progress::kStopRequested));
  EXPECT_THAT(hooks.at, ElementsAre(3U));
}

TEST(ActorGroup, AnActorThatSendsMoreThanItsContractSaysEndsTheProcess) {
  Strings sending;
  sending.on_in = [](Puppet& puppet, const Number& number) {
    puppet.out.send({.value = number.value, .bulk = {}});
    puppet.out.send({.value = number.value, .bulk = {}});
    return ok();
  };
  SmallGraph graph;
  graph.node("source", {.strings = {.on_work = counts_to(1)}, .contract = make_source})
      .node("chatty", {.strings = sending})
      .node("sink")
      .edge("source.out", "chatty.in")
      .edge("chatty.out", "sink.in");
  EXPECT_DEATH(
      {
        SmallRun run(graph);
        run->wait();
      },
      "'chatty.out' was sent 2 times in one step, its contract says 1(.|\n)*seed 1; repeat with: "
      "PRIMERL_SEED=1 runtime_test");
}

}  // namespace
}  // namespace primerl::testing
