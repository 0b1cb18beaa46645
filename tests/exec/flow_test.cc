// The flow rules: bounds, credit in messages and bytes, feedback that never waits, work calls.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;

const TenantSlot kTenant(0);

/// A sink that accepts nothing until `open`.
Strings a_closed_sink(std::vector<int64_t>* taken) {
  Strings strings;
  strings.on_start = [](Puppet& puppet) {
    puppet.world().pause("in");
    puppet.world().set_timer("tick", Duration::seconds(10));
    return ok();
  };
  strings.on_tick = [](Puppet& puppet) {
    puppet.world().resume("in");
    return ok();
  };
  strings.on_in = [taken](Puppet&, const Number& number) {
    taken->push_back(number.value);
    return ok();
  };
  return strings;
}

TEST(Flow, StopsASourceExactlyAtCapacity) {
  std::vector<int64_t> taken;
  SmallGraph graph;
  graph.node("source", {.strings = {.on_work = counts_to(100)}, .contract = make_source})
      .node("sink", {.strings = a_closed_sink(&taken)})
      .edge("source.out", "sink.in", {.capacity = 4});
  SmallRun run(graph);
  run->settle();
  EXPECT_EQ(run.edge("source.out -> sink.in").sent, 4u);
  EXPECT_EQ(run.edge("source.out -> sink.in").waiting_max, 4u);
  EXPECT_FALSE(run->group(run.group("source")).ready());
  const auto outcome = run->wait();
  EXPECT_EQ(outcome.end, RunEnd::kFinished);
  EXPECT_EQ(taken.size(), 100u);
  EXPECT_EQ(outcome.ledger[0].handled, 100u);
  EXPECT_LE(outcome.ledger[0].waiting_max, 4u);
}

TEST(Flow, SaysWhatAnEdgeCarriesAndHowLongItWasFull) {
  std::vector<int64_t> taken;
  SmallGraph graph;
  Strings sink = a_closed_sink(&taken);
  sink.on_in = [take = sink.on_in](Puppet& puppet, const Number& number) {
    puppet.world().count("taken", 1);
    return take(puppet, number);
  };
  graph.node("source", {.strings = {.on_work = counts_to(100)}, .contract = make_source})
      .node("sink", {.strings = sink})  // opens after 10 seconds
      .edge("source.out", "sink.in", {.capacity = 4});
  SmallRun run(graph);
  std::vector<InstanceLoad> instances;
  const auto load_at = [&](Duration at) {
    std::vector<EdgeLoad> edges(1);
    instances.clear();
    run->group(run.group("source")).add_load(edges, instances, Time() + at);
    run->group(run.group("sink")).add_load(edges, instances, Time() + at);
    return edges[0];
  };
  const auto seconds = [](const EdgeLoad& load) {
    return static_cast<double>(load.blocked_ns) * 1e-9;
  };
  EXPECT_EQ(load_at({}).blocked_ns, 0u);
  run->settle();
  const EdgeLoad full = load_at(Duration::seconds(3));
  EXPECT_EQ(full.num_waiting, 4u);
  EXPECT_EQ(full.unsettled_max, 4u);
  EXPECT_EQ(full.num_held_back, 0u);
  EXPECT_NEAR(seconds(full), 3, 1e-6) << "it is still full";
  EXPECT_EQ(run->wait().end, RunEnd::kFinished);
  const EdgeLoad after = load_at(Duration::seconds(1000));
  EXPECT_EQ(after.num_waiting, 0u);
  EXPECT_EQ(after.unsettled_max, 0u);
  EXPECT_NEAR(seconds(after), 10, 1e-6) << "it has been free since";
  ASSERT_EQ(instances.size(), 2u);
  EXPECT_EQ(instances[0].num_handled, 0u);
  EXPECT_EQ(instances[1].num_handled, 100u);
  ASSERT_EQ(instances[1].counts.size(), 1u) << "what the actor counted comes with it";
  EXPECT_EQ(instances[1].counts[0].name, "taken");
  EXPECT_EQ(instances[1].counts[0].value, 100);
  EXPECT_TRUE(instances[0].counts.empty());
}

TEST(Flow, CapacityOneAlternates) {
  std::vector<int64_t> taken;
  SmallGraph graph;
  graph.node("source", {.strings = {.on_work = counts_to(5)}, .contract = make_source})
      .node("sink", {.strings = a_closed_sink(&taken)})
      .edge("source.out", "sink.in", {.capacity = 1});
  SmallRun run(graph);
  EXPECT_EQ(run->wait().end, RunEnd::kFinished);
  EXPECT_THAT(taken, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(run.edge("source.out -> sink.in").waiting_max, 1u);
}

TEST(Flow, WithholdsForwardInputWhileAnOutputIsFullButNotFeedback) {
  std::vector<int64_t> taken;
  Puppet* relay = nullptr;
  Strings relaying;
  relaying.on_start = [&](Puppet& puppet) {
    relay = &puppet;
    return ok();
  };
  relaying.on_in = [](Puppet& puppet, const Number& number) {
    puppet.out.send({.value = number.value, .bulk = {}});
    return ok();
  };
  Strings told = {.on_work = counts_to(20, false)};
  Strings teller;
  teller.on_start = [](Puppet& puppet) {
    puppet.world().set_timer("tick", Duration::seconds(1));
    return ok();
  };
  teller.on_tick = [](Puppet& puppet) {
    puppet.tell.send({.value = -1, .bulk = {}}, for_tenant(kTenant));
    return ok();
  };
  SmallGraph graph;
  graph.node("source", {.strings = told, .contract = make_source})
      .node("relay", {.strings = relaying})
      .node("sink", {.strings = a_closed_sink(&taken)})
      .node("teller", {.strings = teller})
      .edge("source.out", "relay.in", {.capacity = 3})
      .edge("relay.out", "sink.in", {.capacity = 2})
      .edge("teller.tell", "relay.back", {.at_most = 1});
  SmallRun run(graph);
  run->settle();
  EXPECT_EQ(run.edge("relay.out -> sink.in").sent, 2u);
  EXPECT_THAT(relay->seen, ElementsAre(1, 2));
  EXPECT_EQ(run.edge("source.out -> relay.in").in_flight, 3u);
  ASSERT_TRUE(run->run_until([&] { return run->now() >= Time() + Duration::seconds(1); }));
  run->settle();
  EXPECT_THAT(relay->seen, ElementsAre(1, 2, -1)) << "feedback passes a full output";
}

TEST(Flow, CountsBlobBytesAndLetsOneOversizeMessagePass) {
  // 40 + 40 of 100 bytes fit; the third message waits in the outbox although the message limit is
  // not reached.
  std::vector<int64_t> sizes{40, 40, 40, 500, 10};
  std::vector<int64_t> taken;
  Strings sending;
  sending.on_start = [](Puppet& puppet) {
    puppet.world().set_timer("tick", Duration());
    return ok();
  };
  sending.on_tick = [sizes](Puppet& puppet) {
    for (int64_t size : sizes)
      puppet.out.send({.value = size, .bulk = blob_of(static_cast<size_t>(size))},
                      for_tenant(kTenant));
    return ok();
  };
  SmallGraph graph;
  graph
      .node("sender",
            {.strings = sending, .contract = [](Contract& c) { c.outputs[0].burst = exactly(5); }})
      .node("sink", {.strings = a_closed_sink(&taken)})
      .edge("sender.out", "sink.in", {.capacity = 10, .bytes_max = 100});
  SmallRun run(graph);
  ASSERT_TRUE(run->run_until([&] { return run.edge("sender.out -> sink.in").sent == 5; }));
  run->settle();
  EXPECT_EQ(run->group(run.group("sink")).num_waiting_in(0), 2u);
  EXPECT_EQ(run->group(run.group("sender")).num_waiting_out(0), 3u);
  EXPECT_TRUE(run->run_until([&] { return taken.size() == 5; }));
  EXPECT_THAT(taken, ElementsAre(40, 40, 40, 500, 10));
}

TEST(Flow, LatestWinsKeepsOneValuePerTenantAndCountsTheRest) {
  std::vector<int64_t> taken;
  Strings sending;
  sending.on_start = [](Puppet& puppet) {
    puppet.world().set_timer("tick", Duration());
    return ok();
  };
  sending.on_tick = [](Puppet& puppet) {
    for (int64_t i = 1; i <= 20; ++i)
      puppet.tell.send({.value = i, .bulk = {}},
                       for_tenant(TenantSlot(static_cast<uint32_t>(i % 2))));
    return ok();
  };
  Strings hearing;
  hearing.on_back = [&](Puppet&, const Number& number) {
    taken.push_back(number.value);
    return ok();
  };
  SmallGraph graph(2);
  graph
      .node("sender",
            {.strings = sending, .contract = [](Contract& c) { c.outputs[5].burst = exactly(20); }})
      .node("hearer", {.strings = hearing})
      .edge("sender.tell", "hearer.back", {.latest_wins = true});
  SmallRun run(graph);
  ASSERT_TRUE(run->run_until([&] { return run.edge("sender.tell -> hearer.back").sent == 20; }));
  run->settle();
  ASSERT_GE(taken.size(), 2u);
  EXPECT_THAT(std::vector<int64_t>(taken.end() - 2, taken.end()),
              ::testing::UnorderedElementsAre(19, 20));
  const auto ledger = run.edge("sender.tell -> hearer.back");
  EXPECT_EQ(ledger.handled, taken.size());
  EXPECT_EQ(ledger.dropped, 20 - taken.size());
  EXPECT_TRUE(ledger.balances());
}

TEST(Flow, AnAddressedOutputIsFullOnlyWhenAllItsTargetsAre) {
  std::vector<int64_t> taken;
  Strings choosing;
  choosing.on_work = [](Puppet& puppet) -> Result<bool> {
    for (InstanceId target : puppet.pick.targets()) {
      if (puppet.pick.room(target) <= 0) continue;
      puppet.pick.send({.value = ++puppet.count, .bulk = {}}, to(target).for_tenant(kTenant));
      return true;
    }
    return false;
  };
  SmallGraph graph;
  graph.node("chooser", {.strings = choosing, .contract = make_source})
      .node("sink", {.strings = a_closed_sink(&taken), .replicas = 3})
      .edge("chooser.pick", "sink.in", {.capacity = 2});
  SmallRun run(graph);
  run->settle();
  EXPECT_EQ(run.edge("chooser.pick -> sink.in").sent, 6u);
}

TEST(Flow, KeyedMessagesOfOneKeyReachOneInstanceInOrder) {
  std::map<std::string, std::vector<int64_t>> by_instance;
  Strings sending;
  sending.on_work = [](Puppet& puppet) -> Result<bool> {
    if (puppet.count == 60) return false;
    puppet.keyed.send({.value = puppet.count++ % 6, .bulk = {}}, for_tenant(kTenant));
    return true;
  };
  Strings taking;
  taking.on_in = [&](Puppet& puppet, const Number& number) {
    by_instance[std::string(puppet.world().self_name())].push_back(number.value);
    return ok();
  };
  SmallGraph graph;
  graph.node("sender", {.strings = sending, .contract = make_source})
      .node("sink", {.strings = taking, .replicas = 3})
      .edge("sender.keyed", "sink.in", {.capacity = 4});
  SmallRun run(graph);
  ASSERT_TRUE(run->run_until([&] { return run.edge("sender.keyed -> sink.in").handled == 60; }));
  std::map<int64_t, int> owners;
  for (auto& [name, values] : by_instance) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    for (int64_t value : values) ++owners[value];
  }
  ASSERT_EQ(owners.size(), 6u);
  for (const auto& [value, num_owners] : owners) EXPECT_EQ(num_owners, 1) << value;
  EXPECT_GT(by_instance.size(), 1u) << "the keys spread";
}

TEST(Flow, BroadcastReachesTheTenantsOwnAndSharedInstances) {
  std::map<std::string, std::vector<int64_t>> by_instance;
  Strings taking;
  taking.on_in = [&](Puppet& puppet, const Number& number) {
    by_instance[std::string(puppet.world().self_name())].push_back(number.value);
    return ok();
  };
  Strings sending;
  sending.on_work = [](Puppet& puppet) -> Result<bool> {
    if (puppet.count == 2) return false;
    const TenantSlot tenant(static_cast<uint32_t>(puppet.count++));
    puppet.many.send({.value = puppet.count, .bulk = {}}, for_tenant(tenant));
    return true;
  };
  SmallGraph graph(2);
  graph.node("sender", {.strings = sending, .contract = make_source})
      .node("own", {.strings = taking, .per_tenant = true})
      .node("shared", {.strings = taking})
      .edge("sender.many", "own.in")
      .edge("sender.many", "shared.in");
  SmallRun run(graph);
  run->settle();
  EXPECT_THAT(by_instance["own.t0"], ElementsAre(1));
  EXPECT_THAT(by_instance["own.t1"], ElementsAre(2));
  EXPECT_THAT(by_instance["shared"], ElementsAre(1, 2));
}

TEST(Flow, AnswersGoToWhoBegan) {
  std::map<std::string, std::vector<int64_t>> answers;
  Strings asking = {.on_work = counts_to(5, false)};
  asking.on_back = [&](Puppet& puppet, const Number& number) {
    answers[std::string(puppet.world().self_name())].push_back(number.value);
    return ok();
  };
  Strings relaying;
  relaying.on_in = [](Puppet& puppet, const Number& number) {
    puppet.out.send({.value = number.value, .bulk = {}});
    return ok();
  };
  Strings answering;
  answering.on_in = [](Puppet& puppet, const Number& number) {
    puppet.reply.send({.value = number.value * 10, .bulk = {}});
    return ok();
  };
  SmallGraph graph;
  graph.node("asker", {.strings = asking, .contract = make_source, .replicas = 2})
      .node("relay", {.strings = relaying})
      .node("answerer", {.strings = answering})
      .edge("asker.out", "relay.in")
      .edge("relay.out", "answerer.in")
      .edge("answerer.reply", "asker.back", {.at_most = 20});
  SmallRun run(graph);
  run->settle();
  EXPECT_THAT(answers["asker#0"], ElementsAre(10, 20, 30, 40, 50));
  EXPECT_THAT(answers["asker#1"], ElementsAre(10, 20, 30, 40, 50));
}

TEST(Flow, WorkTurnsQueueBehindTheInboxAndAreNotStarved) {
  // A worker under steady load from a feedback loop must get its work calls.
  int64_t num_turns = 0, num_inputs = 0;
  Strings working;
  working.on_work = [&](Puppet&) -> Result<bool> {
    ++num_turns;
    return true;
  };
  working.on_back = [&](Puppet& puppet, const Number& number) {
    ++num_inputs;
    puppet.tell.send({.value = number.value, .bulk = {}});
    return ok();
  };
  Strings echoing;
  echoing.on_start = [](Puppet& puppet) {
    puppet.world().set_timer("tick", Duration());
    return ok();
  };
  echoing.on_tick = [](Puppet& puppet) {
    for (int i = 0; i < 8; ++i) puppet.tell.send({.value = i, .bulk = {}}, for_tenant(kTenant));
    return ok();
  };
  echoing.on_back = [](Puppet& puppet, const Number& number) {
    puppet.tell.send({.value = number.value, .bulk = {}});
    return ok();
  };
  SmallGraph graph;
  graph.node("worker", {.strings = working, .contract = [](Contract& c) { c.works = true; }})
      .node("echo",
            {.strings = echoing, .contract = [](Contract& c) { c.outputs[5].burst = exactly(8); }})
      .edge("worker.tell", "echo.back", {.at_most = 8})
      .edge("echo.tell", "worker.back", {.at_most = 8});
  SmallRun run(graph);
  ASSERT_TRUE(run->run_until([&] { return num_inputs >= 1000; }));
  EXPECT_GT(num_turns, 100)
      << "a work call waits for messages in the inbox, not for an empty inbox";
}

TEST(Flow, ForwardEdgesInsideAHostDrainWhileTheyAreFull) {
  // first -> second are in one group; first sends two messages per input, so their edge is often
  // full.
  std::vector<int64_t> taken;
  Strings doubling;
  doubling.on_in = [](Puppet& puppet, const Number& number) {
    puppet.out.send({.value = number.value, .bulk = {}});
    puppet.out.send({.value = -number.value, .bulk = {}});
    return ok();
  };
  Strings relaying;
  relaying.on_in = [](Puppet& puppet, const Number& number) {
    puppet.out.send({.value = number.value, .bulk = {}});
    return ok();
  };
  SmallGraph graph;
  graph.node("source", {.strings = {.on_work = counts_to(10)}, .contract = make_source})
      .node("first", {.strings = doubling,
                      .contract = [](Contract& c) { c.outputs[0].burst = exactly(2); },
                      .group = "pair"})
      .node("second", {.strings = relaying, .group = "pair"})
      .node("sink", {.strings = a_closed_sink(&taken)})
      .edge("source.out", "first.in", {.capacity = 4})
      .edge("first.out", "second.in", {.capacity = 1})
      .edge("second.out", "sink.in", {.capacity = 1});
  SmallRun run(graph);
  EXPECT_EQ(run->wait().end, RunEnd::kFinished);
  EXPECT_EQ(taken.size(), 20u);
  EXPECT_EQ(run.edge("first.out -> second.in").waiting_max, 2u);
}

TEST(Flow, ASlowConsumerHoldsTheProducerAndNothingGrows) {
  class Slow final : public StepHooks {
   public:
    Injection before(const StepAbout& about) override {
      const bool is_sink = about.kind == StepKind::kMessage;
      return {.failure = {}, .takes = is_sink ? Duration::milliseconds(1) : Duration()};
    }
  } slow;
  SmallGraph graph;
  graph.node("source", {.strings = {.on_work = counts_to(5000)}, .contract = make_source})
      .node("sink")
      .edge("source.out", "sink.in", {.capacity = 64});
  SmallRun run(graph, 1, &slow);
  const auto outcome = run->wait();
  EXPECT_EQ(outcome.end, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[0].handled, 5000u);
  EXPECT_EQ(outcome.ledger[0].waiting_max, 64u);
  EXPECT_GE(run->now() - Time(), Duration::seconds(5));
}

}  // namespace
}  // namespace primerl::testing
