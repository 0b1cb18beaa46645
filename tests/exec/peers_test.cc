// The death and restart of a process: returned messages, incarnations, refused late arrivals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const TenantSlot kTenant(0);

struct Other {
  static constexpr std::string_view kName = "Other";
  static constexpr uint32_t kVersion = 1;
  uint64_t value = 0;
  template <class F>
  static void fields(F& f) {
    f("value", &Other::value);
  }
};

/// driver (process 0) sends to a server (process 1), window 4.
struct TwoProcesses {
  TwoProcesses() {
    Strings asking = {.on_work = counts_to(40, false)};
    asking.on_peer = [this](Puppet&, const PeerEvent& event) { events.push_back(event); };
    asking.on_back = [this](Puppet&, const Number& number) {
      answers.push_back(number.value);
      return ok();
    };
    Strings serving;
    serving.on_in = [](Puppet& puppet, const Number& number) {
      puppet.tell.send({.value = number.value, .bulk = {}});
      return ok();
    };
    graph.node("driver", {.strings = asking, .contract = make_source})
        .node("server", {.strings = serving, .process = 1})
        .edge("driver.out", "server.in", {.capacity = 4})
        .edge("server.tell", "driver.back", {.at_most = 64});
  }
  SmallGraph graph;
  std::vector<PeerEvent> events;
  std::vector<int64_t> answers;
};

TEST(Peers, ADeathReturnsWhatWasNotAcknowledgedAndTheLedgerBalances) {
  TwoProcesses two;
  SmallRun run(two.graph);
  ASSERT_TRUE(run->run_until([&] { return run.edge("driver.out -> server.in").in_flight == 4; }));
  run->kill(ProcessId(1));
  run->settle();
  const auto ledger = run.edge("driver.out -> server.in");
  EXPECT_TRUE(ledger.balances());
  EXPECT_GE(ledger.returned, 4u);
  EXPECT_EQ(ledger.in_flight, 0u);
  ASSERT_EQ(two.events.size(), 1u);
  EXPECT_EQ(two.events[0].kind, PeerEvent::Kind::kDown);
  EXPECT_EQ(two.events[0].instance, InstanceId(1));
  EXPECT_EQ(two.events[0].incarnation, 1u);
}

TEST(Peers, ANewIncarnationBeginsAtOneWithFullCredit) {
  TwoProcesses two;
  SmallRun run(two.graph);
  ASSERT_TRUE(run->run_until([&] { return two.answers.size() >= 3; }));
  run->kill(ProcessId(1));
  ASSERT_TRUE(run->restart_process(ProcessId(1)).ok());
  run->settle();
  ASSERT_EQ(two.events.size(), 2u);
  EXPECT_EQ(two.events[1].kind, PeerEvent::Kind::kUp);
  EXPECT_EQ(two.events[1].incarnation, 2u);
  const auto asked = run.edge("driver.out -> server.in");
  EXPECT_EQ(asked.sent, 40u);
  EXPECT_EQ(asked.handled + asked.returned, 40u);
  EXPECT_EQ(asked.in_flight, 0u);
}

TEST(Peers, WithoutATargetAKeyedMessageIsCountedAndAToOneMessageReturned) {
  TwoProcesses two;
  SmallRun run(two.graph);
  run->kill(ProcessId(1));
  run->settle();
  const auto ledger = run.edge("driver.out -> server.in");
  EXPECT_EQ(ledger.sent, ledger.returned);
}

TEST(Peers, LateArrivalsOfAnOldIncarnationAreRefusedAndCounted) {
  // The server answers, dies while answers are in transit, and is restarted. The driver is notified
  // of the death before the answers arrive.
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    TwoProcesses two;
    SmallRun run(two.graph, seed);
    ASSERT_TRUE(run->run_until([&] { return run.edge("server.tell -> driver.back").sent >= 5; }));
    run->kill(ProcessId(1));
    ASSERT_TRUE(run->restart_process(ProcessId(1)).ok());
    run->settle();
    const auto answers = run.edge("server.tell -> driver.back");
    EXPECT_TRUE(answers.balances());
    EXPECT_EQ(answers.handled, two.answers.size());
    EXPECT_EQ(answers.in_flight, 0u);
  }
}

/// A value of the dead server waits at the driver; the first value of the new server overwrites it.
TEST(Peers, AnOverwrittenValueOfTheDeadIsNoCreditForTheNewSender) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SmallGraph graph;
    Strings serving;
    serving.on_in = [](Puppet& puppet, const Number& number) {
      puppet.tell.send({.value = number.value, .bulk = blob_of(8)});
      return ok();
    };
    graph.node("driver", {.strings = {.on_work = counts_to(40, false)}, .contract = make_source})
        .node("server", {.strings = serving, .process = 1})
        .edge("driver.out", "server.in", {.capacity = 4})
        .edge("server.tell", "driver.back", {.latest_wins = true});
    SmallRun run(graph, seed);
    RandomStream moments(seed);
    for (int death = 0; death < 5; ++death) {
      run->run_until([] { return false; }, moments.below(30));
      run->kill(ProcessId(1));
      ASSERT_TRUE(run->restart_process(ProcessId(1)).ok());
    }
    run->settle();
    const auto told = run.edge("server.tell -> driver.back");
    EXPECT_TRUE(told.balances());
    EXPECT_EQ(told.in_flight, 0U);
  }
}

TEST(Peers, ManyDeathsAtAnyMomentKeepTheLedgerAtEverySeed) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    TwoProcesses two;
    SmallRun run(two.graph, seed);
    RandomStream moments(seed);
    for (int death = 0; death < 5; ++death) {
      const uint64_t events = moments.below(60);
      run->run_until([] { return false; }, events);
      run->kill(ProcessId(1));
      run->run_until([] { return false; }, moments.below(20));
      ASSERT_TRUE(run->restart_process(ProcessId(1)).ok());
    }
    run->settle();
    for (const EdgeLedger& edge : run->ledger()) {
      EXPECT_TRUE(edge.balances());
      EXPECT_EQ(edge.in_flight, 0u);
    }
  }
}

/// A single group; the test sends its batches.
class Alone : public ::testing::Test, public GroupExecutor {
 protected:
  void SetUp() override {
    Strings serving;
    serving.on_in = [this](Puppet&, const Number& number) {
      taken.push_back(number.value);
      return ok();
    };
    graph.node("driver").node("server", {.strings = serving, .process = 1});
    graph.edge("driver.out", "server.in", {.capacity = 4});
    plan = graph.plan();
    GroupSetup setup;
    setup.plan = plan;
    setup.wiring = make_wiring(*plan);
    setup.group = GroupId(1);
    setup.process_services = &process_services;
    setup.executor = this;
    group = std::make_unique<ActorGroup>(std::move(setup));
    ASSERT_TRUE(group->start(Time()).ok());
  }
  MessageBatch batch(uint64_t sequence, uint32_t incarnation = 1) {
    MessageBatch batch;
    batch.from = GroupId(0);
    batch.to = GroupId(1);
    batch.incarnation = incarnation;
    Envelope envelope;
    envelope.edge = EdgeId(0);
    envelope.sender = InstanceId(0);
    envelope.target = InstanceId(1);
    envelope.tenant = kTenant;
    envelope.origin = InstanceId(0);
    envelope.incarnation = incarnation;
    envelope.sequence = sequence;
    envelope.payload = Payload::of(Number{static_cast<int64_t>(sequence), {}});
    batch.messages.push_back({LinkId(0), envelope});
    return batch;
  }
  Status give(uint64_t sequence, uint32_t incarnation = 1) {
    const Status status = group->accept(batch(sequence, incarnation), Time());
    while (group->ready()) group->step(Time());
    return status;
  }
  void ship(MessageBatch&& batch) override { shipped.push_back(std::move(batch)); }
  void tenant_finished(TenantSlot, uint32_t) override {}
  void tenant_failed(TenantSlot, uint32_t, std::string) override {}
  void group_failed(GroupId, Error error) override { failures.push_back(error.message()); }

  SmallGraph graph;
  MemoryHostServices process_services;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<ActorGroup> group;
  std::vector<int64_t> taken;
  std::vector<MessageBatch> shipped;
  std::vector<std::string> failures;
};

TEST_F(Alone, RefusesDuplicatesAndOldIncarnationsAndReportsGaps) {
  EXPECT_TRUE(give(1).ok());
  EXPECT_TRUE(give(1).ok()) << "a duplicate is refused silently";
  EXPECT_TRUE(give(2).ok());
  const Status gap = give(4);
  ASSERT_FALSE(gap.ok());
  EXPECT_EQ(gap.error().message(),
            "edge 'driver.out -> server.in': message 4 of link 0 arrived after message 2");
  EXPECT_TRUE(give(1, 2).ok()) << "a new incarnation begins at 1";
  EXPECT_TRUE(give(3, 1).ok()) << "its forerunner is refused";
  EXPECT_THAT(taken, ElementsAre(1, 2, 1));
  EXPECT_THAT(group->counters(),
              ElementsAre(::testing::Pair("driver.out -> server.in.refused", 2)));
}

TEST_F(Alone, LeavesOutWhatDoesNotFitAndTakesTheRestOfTheBatch) {
  MessageBatch mixed = batch(1);
  for (const uint64_t sequence : {9, 2}) {
    MessageBatch more = batch(sequence);
    mixed.messages.push_back(std::move(more.messages[0]));
  }
  MessageBatch beyond = batch(3), unknown = batch(3), no_edge = batch(3);
  beyond.messages[0].envelope.tenant = TenantSlot(1);  // one past the last
  unknown.messages[0].link = LinkId(1);
  no_edge.from = GroupId(7);
  const auto fault = [this](MessageBatch&& batch) {
    const Status status = group->accept(std::move(batch), Time());
    return status.ok() ? "ok" : status.error().message();
  };
  EXPECT_THAT(fault(std::move(mixed)), HasSubstr("message 9 of link 0 arrived after message 1"));
  EXPECT_THAT(fault(std::move(beyond)), HasSubstr("is for tenant slot 1, which does not exist"));
  EXPECT_THAT(fault(std::move(unknown)), HasSubstr("a message of link 1, which does not end here"));
  EXPECT_THAT(fault(std::move(no_edge)), HasSubstr("with which it shares no edge"));
  EXPECT_EQ(fault(batch(3)), "ok");
  while (group->ready()) group->step(Time());
  EXPECT_THAT(taken, ElementsAre(1, 2, 3));
  EXPECT_THAT(failures, ElementsAre());
}

TEST_F(Alone, AMessageOfAnotherTypeIsAnErrorThatTheActorNeverSees) {
  MessageBatch wrong = batch(1);
  wrong.messages[0].envelope.payload = Payload::of(Other{5});
  ASSERT_TRUE(group->accept(std::move(wrong), Time()).ok());
  ASSERT_TRUE(give(2).ok());
  EXPECT_THAT(taken, ElementsAre(2));
  EXPECT_THAT(process_services.lines,
              ::testing::Contains(HasSubstr("a 'Other' came to 'server.in', which takes a "
                                            "'Number'")));
}

/// A single sender; the test receives its batches.
TEST(Sender, TakesGrantsForWhatItHasSentAndNoMore) {
  SmallGraph graph;
  graph.node("driver", {.strings = {.on_work = counts_to(2, false)}, .contract = make_source})
      .node("server", {.process = 1})
      .edge("driver.out", "server.in", {.capacity = 4});
  struct Ignore final : GroupExecutor {
    void ship(MessageBatch&& batch) override { num_shipped += batch.messages.size(); }
    void tenant_finished(TenantSlot, uint32_t) override {}
    void tenant_failed(TenantSlot, uint32_t, std::string) override {}
    void group_failed(GroupId, Error) override {}
    size_t num_shipped = 0;
  } executor;
  MemoryHostServices process_services;
  GroupSetup setup;
  setup.plan = graph.plan();
  setup.wiring = make_wiring(*setup.plan);
  setup.group = GroupId(0);
  setup.process_services = &process_services;
  setup.executor = &executor;
  ActorGroup group(std::move(setup));
  ASSERT_TRUE(group.start(Time()).ok());
  while (group.ready()) group.step(Time());
  ASSERT_EQ(executor.num_shipped, 2u);
  const auto grant = [&group](uint64_t num_messages, uint64_t num_bytes, uint32_t link = 0) {
    MessageBatch batch;
    batch.from = GroupId(1);
    batch.to = GroupId(0);
    batch.incarnation = 1;
    batch.grants.push_back({LinkId(link), num_messages, num_bytes, 1});
    const Status status = group.accept(std::move(batch), Time());
    return status.ok() ? "ok" : status.error().message();
  };
  EXPECT_THAT(grant(3, 0), HasSubstr("a grant for 3 messages and 0 bytes of edge"));
  EXPECT_THAT(grant(UINT64_MAX, UINT64_MAX), HasSubstr("on which it has sent 2 and 0"));
  EXPECT_THAT(grant(2, 1), HasSubstr("a grant for 2 messages and 1 bytes"));
  EXPECT_THAT(grant(1, 0, 1), HasSubstr("a grant for link 1, which it does not send on"));
  EXPECT_EQ(grant(2, 0), "ok");
  EXPECT_EQ(grant(1, 0), "ok") << "a late one says nothing new";
}

TEST_F(Alone, GrantsRunningTotalsAtHalfAWindow) {
  EXPECT_TRUE(give(1).ok());
  EXPECT_TRUE(shipped.empty());
  EXPECT_TRUE(give(2).ok());
  ASSERT_EQ(shipped.size(), 1u);
  ASSERT_EQ(shipped[0].grants.size(), 1u);
  EXPECT_EQ(shipped[0].grants[0].num_messages, 2u);
  EXPECT_TRUE(give(3).ok());
  EXPECT_TRUE(give(4).ok());
  ASSERT_EQ(shipped.size(), 2u);
  EXPECT_EQ(shipped[1].grants[0].num_messages, 4u) << "totals, not increments";
}

TEST_F(Alone, MoreThanTheBoundInTheInboxFailsTheRun) {
  for (uint64_t i = 1; i <= 6; ++i) ASSERT_TRUE(group->accept(batch(i), Time()).ok());
  EXPECT_TRUE(failures.empty()) << "bound is 4 + 0 + two timers";
  ASSERT_TRUE(group->accept(batch(7), Time()).ok());
  ASSERT_TRUE(group->accept(batch(8), Time()).ok());
  ASSERT_EQ(failures.size(), 1u) << "said once";
  EXPECT_THAT(failures[0], ::testing::HasSubstr("messages waiting, its bound is"));
}

}  // namespace
}  // namespace primerl::testing
