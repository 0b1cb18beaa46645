#include "runtime/control/run_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace primerl {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kTypes = 77;

/// A coordinator of a few processes; the test sends all messages. Any two processes share an edge,
/// except the first and the last of three.
class Stage {
 public:
  explicit Stage(uint32_t num_processes) {
    plan_.graph_hash = 0xabc;
    plan_.settings.stall_after = Duration::seconds(10);
    plan_.tenants.resize(2);
    for (uint32_t i = 0; i < num_processes; ++i) {
      PlanProcess process;
      process.name = fmt::format("p{}", i);
      process.groups = {GroupId(i)};
      process.place = static_cast<int32_t>(i);
      plan_.processes.push_back(process);
      plan_.groups.push_back({process.name, ProcessId(i), {InstanceId(i)}, {}, false});
      PlanInstance instance;
      instance.name = process.name;
      instance.node = NodeId(i);
      instance.group = GroupId(i);
      plan_.instances.push_back(instance);
      PlanNode node;
      node.instances = {InstanceId(i)};
      plan_.nodes.push_back(node);
      if (i == 0) continue;
      PlanEdge edge;
      edge.name = fmt::format("p{}.out -> p{}.in", i - 1, i);
      edge.from = NodeId(i - 1);
      edge.to = NodeId(i);
      plan_.edges.push_back(edge);
    }
    coordinator_.emplace(plan_, kTypes, 3, [this](ProcessId to, Payload message) {
      sent_.push_back(fmt::format("{} to {}", message.type->name, to.value));
      newest_ = std::move(message);
    });
  }

  WorkerHello hello(uint32_t process) const {
    WorkerHello hello;
    hello.graph_hash = plan_.graph_hash;
    hello.types_hash = kTypes;
    hello.process = plan_.processes[process].name;
    hello.incarnation = 3;
    hello.addresses = {{"here", "there"}};
    return hello;
  }
  template <Message T>
  Status say(uint32_t from, T message) {
    return coordinator_->handle(ProcessId(from), Payload::of(std::move(message)), now);
  }
  template <Message T>
  void all_say(const T& message) {
    for (uint32_t i = 0; i < plan_.processes.size(); ++i) ASSERT_TRUE(say(i, message).ok());
  }
  void bring_up() {
    for (uint32_t i = 0; i < plan_.processes.size(); ++i) ASSERT_TRUE(say(i, hello(i)).ok());
    all_say(PeersConnected{});
    all_say(GroupsReady{});
    sent_.clear();
  }
  /// Messages sent since the last call.
  std::vector<std::string> sent() { return std::exchange(sent_, {}); }
  GroupsCounted counted(uint64_t round, uint64_t steps, bool is_idle, int64_t in_flight) {
    return {round, steps, is_idle, static_cast<uint64_t>(in_flight)};
  }

  Plan plan_;
  std::vector<std::string> sent_;
  Payload newest_;
  Time now = Time::from_nanoseconds(1);
  std::optional<RunCoordinator> coordinator_;
};

TEST(RunCoordinator, StartsNoProcessBeforeAllAreConnected) {
  Stage stage(3);
  ASSERT_TRUE(stage.say(1, stage.hello(1)).ok());
  ASSERT_TRUE(stage.say(2, stage.hello(2)).ok());
  EXPECT_THAT(stage.sent(), IsEmpty());
  EXPECT_EQ(stage.coordinator_->waits_for(), "'p0'");
  ASSERT_TRUE(stage.say(0, stage.hello(0)).ok());
  EXPECT_THAT(stage.sent(),
              ElementsAre("ConnectPeers to 0", "ConnectPeers to 1", "ConnectPeers to 2"));
  // The last process shares no edge with the first.
  const auto& peers = stage.newest_.as<ConnectPeers>().peers;
  ASSERT_EQ(peers.size(), 1u);
  EXPECT_EQ(peers[0].name, "p1");
  EXPECT_EQ(peers[0].addresses.at(0).frames, "here");
  EXPECT_EQ(peers[0].addresses.at(0).bulk, "there");
  ASSERT_TRUE(stage.say(0, PeersConnected{}).ok());
  ASSERT_TRUE(stage.say(1, PeersConnected{}).ok());
  EXPECT_THAT(stage.sent(), IsEmpty());
  ASSERT_TRUE(stage.say(2, PeersConnected{}).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("StartRun to 0", "StartRun to 1", "StartRun to 2"));
  ASSERT_TRUE(stage.say(2, GroupsReady{}).ok());
  ASSERT_TRUE(stage.say(0, GroupsReady{}).ok());
  EXPECT_FALSE(stage.coordinator_->is_up());
  ASSERT_TRUE(stage.say(1, GroupsReady{}).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("GoRun to 0", "GoRun to 1", "GoRun to 2"));
  EXPECT_TRUE(stage.coordinator_->is_up());
}

TEST(RunCoordinator, ResumesNoProcessBeforeAllHaveFollowedTheirRecords) {
  Stage stage(3);
  EXPECT_FALSE(stage.say(0, GroupsCaughtUp{1}).ok());  // the run has not started
  stage.bring_up();
  ASSERT_TRUE(stage.say(2, GroupsCaughtUp{1}).ok());
  ASSERT_TRUE(stage.say(0, GroupsCaughtUp{1}).ok());
  EXPECT_THAT(stage.sent(), IsEmpty());
  EXPECT_FALSE(stage.say(0, GroupsCaughtUp{1}).ok());  // a second one is an error
  ASSERT_TRUE(stage.say(1, GroupsCaughtUp{1}).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("ResumeLive to 0", "ResumeLive to 1", "ResumeLive to 2"));
}

TEST(RunCoordinator, OneThatFollowsNothingGoesWhenTheOthersGoLive) {
  Stage stage(3);
  stage.coordinator_->set_absent(ProcessId(1), 5);
  auto later = stage.hello(1);
  later.incarnation = 5;
  ASSERT_TRUE(stage.say(0, stage.hello(0)).ok());
  // The process is not known as absent with that incarnation.
  EXPECT_FALSE(Stage(3).say(1, later).ok());
  ASSERT_TRUE(stage.say(1, later).ok());
  ASSERT_TRUE(stage.say(2, stage.hello(2)).ok());
  stage.all_say(PeersConnected{});
  stage.sent();
  stage.all_say(GroupsReady{});
  EXPECT_THAT(stage.sent(), ElementsAre("GoRun to 0", "GoRun to 2"));
  EXPECT_FALSE(stage.say(1, GroupsCaughtUp{1}).ok());
  ASSERT_TRUE(stage.say(0, GroupsCaughtUp{1}).ok());
  EXPECT_THAT(stage.sent(), IsEmpty());
  ASSERT_TRUE(stage.say(2, GroupsCaughtUp{1}).ok());
  EXPECT_THAT(stage.sent(),
              ElementsAre("GoRun to 1", "ResumeLive to 0", "ResumeLive to 1", "ResumeLive to 2"));
}

// Otherwise its part of the record would have other times than the rest.
TEST(RunCoordinator, TellsOneThatBeginsAnewTheTimeOfTheRun) {
  Stage stage(3);
  stage.coordinator_->set_absent(ProcessId(2), 3);
  stage.coordinator_->continue_from(Time::from_nanoseconds(700));
  for (const uint32_t i : {0, 1, 2}) ASSERT_TRUE(stage.say(i, stage.hello(i)).ok());
  stage.all_say(PeersConnected{});
  EXPECT_EQ(stage.newest_.as<StartRun>().at_ns, 700);
  stage.all_say(GroupsReady{});
  stage.now = Time::from_nanoseconds(50'000);
  for (const uint32_t i : {0, 1}) ASSERT_TRUE(stage.say(i, GroupsCaughtUp{1}).ok());
  stage.now = Time::from_nanoseconds(50'020);
  EXPECT_EQ(stage.coordinator_->process_died(ProcessId(2)), 4U);
  auto again = stage.hello(2);
  again.incarnation = 4;
  ASSERT_TRUE(stage.say(2, again).ok());
  ASSERT_TRUE(stage.say(2, PeersConnected{}).ok());
  EXPECT_EQ(stage.newest_.as<StartRun>().at_ns, 720);
}

TEST(RunCoordinator, OneAloneIsStartedAtOnce) {
  Stage stage(1);
  ASSERT_TRUE(stage.say(0, stage.hello(0)).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("StartRun to 0"));
  EXPECT_TRUE(stage.coordinator_->drain("asked", 1));
  EXPECT_THAT(stage.sent(), ElementsAre("DrainRun to 0"));
}

TEST(RunCoordinator, RefusesAWorkerThatDisagreesWithBothValues) {
  const auto refusal = [](auto change) {
    Stage stage(2);
    auto hello = stage.hello(1);
    change(hello);
    const Status refused = stage.say(1, hello);
    EXPECT_THAT(stage.sent(), IsEmpty());
    return refused.ok() ? "" : refused.error().text();
  };
  const std::string hash = refusal([](WorkerHello& hello) { hello.graph_hash = 0xdef; });
  EXPECT_THAT(hash, HasSubstr("process 'p1'"));
  EXPECT_THAT(hash, HasSubstr("graph hash is '0000000000000def', expected '0000000000000abc'"));
  EXPECT_THAT(refusal([](WorkerHello& hello) { hello.types_hash = 1; }),
              HasSubstr("message table"));
  EXPECT_THAT(refusal([](WorkerHello& hello) { hello.wire_version = 99; }),
              HasSubstr("wire version is '99'"));
  EXPECT_THAT(refusal([](WorkerHello& hello) { hello.control_version = 3; }),
              HasSubstr("control version is '3'"));
  EXPECT_THAT(refusal([](WorkerHello& hello) { hello.incarnation = 2; }),
              HasSubstr("incarnation is '2'"));
}

TEST(RunCoordinator, RefusesWhatComesOutOfTurn) {
  Stage stage(2);
  EXPECT_FALSE(stage.say(0, PeersConnected{}).ok());
  EXPECT_FALSE(stage.say(0, GroupsReady{}).ok());
  ASSERT_TRUE(stage.say(0, stage.hello(0)).ok());
  EXPECT_FALSE(stage.say(0, stage.hello(0)).ok());
  EXPECT_FALSE(stage.coordinator_->drain("asked", 1));
}

TEST(RunCoordinator, DrainsWhenEveryTenantHasFinished) {
  Stage stage(2);
  stage.bring_up();
  ASSERT_TRUE(stage.say(0, TenantFinished{TenantSlot(1), ""}).ok());
  ASSERT_TRUE(stage.say(1, TenantFinished{TenantSlot(1), ""}).ok());
  EXPECT_THAT(stage.sent(), IsEmpty());
  ASSERT_TRUE(stage.say(1, TenantFinished{TenantSlot(0), ""}).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("DrainRun to 0", "DrainRun to 1", "CountGroups to 0",
                                        "CountGroups to 1"));
}

/// All processes are told once, a restarted one too; the run continues until the other tenants
/// finish.
TEST(RunCoordinator, SetsATenantThatFailsAside) {
  Stage stage(2);
  stage.bring_up();
  ASSERT_TRUE(stage.say(1, TenantFinished{TenantSlot(1), "no group trains"}).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("SetTenantAside to 0", "SetTenantAside to 1"));
  ASSERT_TRUE(stage.say(0, TenantFinished{TenantSlot(1), "its files are gone"}).ok());
  ASSERT_TRUE(stage.say(0, TenantFinished{TenantSlot(1), ""}).ok());
  EXPECT_THAT(stage.sent(), IsEmpty());
  EXPECT_EQ(stage.coordinator_->set_aside().at(TenantSlot(1)), "no group trains");
  ASSERT_TRUE(stage.say(1, TenantFinished{TenantSlot(0), ""}).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("DrainRun to 0", "DrainRun to 1", "CountGroups to 0",
                                        "CountGroups to 1"));
  EXPECT_FALSE(stage.say(0, TenantFinished{TenantSlot(9), "unknown tenant"}).ok());
}

TEST(RunCoordinator, EndsWhenTwoLooksFindNothingUnderWay) {
  Stage stage(2);
  stage.bring_up();
  ASSERT_TRUE(stage.coordinator_->drain("asked", 1));
  stage.sent();
  // One process sent messages that the other has not received: it counts again, a little later.
  ASSERT_TRUE(stage.say(0, stage.counted(1, 5, true, 3)).ok());
  ASSERT_TRUE(stage.say(1, stage.counted(1, 5, true, -2)).ok());
  EXPECT_THAT(stage.sent(), IsEmpty());
  ASSERT_TRUE(stage.coordinator_->tick(stage.now).ok());
  EXPECT_THAT(stage.sent(), IsEmpty());
  stage.now = stage.now + Duration::seconds(1);
  ASSERT_TRUE(stage.coordinator_->tick(stage.now).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("CountGroups to 0", "CountGroups to 1"));
  // All idle, but a step was made before the second count.
  ASSERT_TRUE(stage.say(0, stage.counted(2, 6, true, 3)).ok());
  ASSERT_TRUE(stage.say(1, stage.counted(2, 6, true, -3)).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("CountGroups to 0", "CountGroups to 1"));
  ASSERT_TRUE(stage.say(0, stage.counted(3, 7, true, 4)).ok());
  ASSERT_TRUE(stage.say(1, stage.counted(3, 7, true, -4)).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("CountGroups to 0", "CountGroups to 1"));
  ASSERT_TRUE(stage.say(0, stage.counted(4, 7, true, 4)).ok());
  ASSERT_TRUE(stage.say(0, stage.counted(3, 9, false, 9)).ok());  // of an older count
  ASSERT_TRUE(stage.say(1, stage.counted(4, 7, true, -4)).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("EndRun to 0", "EndRun to 1"));
  EXPECT_EQ(stage.newest_.as<EndRun>().end, 1);
}

TEST(RunCoordinator, DoesNotEndWhileAProcessIsBusy) {
  Stage stage(2);
  stage.bring_up();
  ASSERT_TRUE(stage.coordinator_->drain("asked", 1));
  stage.sent();
  for (uint64_t round = 1; round < 4; ++round) {
    ASSERT_TRUE(stage.say(0, stage.counted(round, 5, false, 0)).ok());
    ASSERT_TRUE(stage.say(1, stage.counted(round, 5, true, 0)).ok());
    stage.now = stage.now + Duration::seconds(1);
    ASSERT_TRUE(stage.coordinator_->tick(stage.now).ok());
    EXPECT_THAT(stage.sent(), ElementsAre("CountGroups to 0", "CountGroups to 1"));
  }
}

TEST(RunCoordinator, ReportsAStallOnlyWhenNoProcessMakesProgress) {
  Stage stage(2);
  stage.bring_up();
  const auto beat = [&stage](uint32_t process, int64_t still_ms, bool waits, bool alarm) {
    Heartbeat said;
    said.still_ms = still_ms;
    said.is_waiting = waits;
    said.has_alarm = alarm;
    said.stall = fmt::format("words of {}", process);
    EXPECT_TRUE(stage.say(process, said).ok());
    return stage.coordinator_->tick(stage.now);
  };
  stage.coordinator_->tell_stalls_by([] { return "the table of all"; });
  EXPECT_TRUE(beat(0, 60'000, true, false).ok());  // the other process has reported nothing yet
  EXPECT_TRUE(beat(1, 9'999, false, false).ok());
  EXPECT_TRUE(beat(0, 60'000, false, false).ok());
  EXPECT_TRUE(beat(1, 60'000, false, true).ok());  // all wait for a timer: no stall
  const Status stalled = beat(0, 10'000, true, false);
  ASSERT_FALSE(stalled.ok());
  EXPECT_THAT(stalled.error().text(), HasSubstr("no step and no sign of life for 10s"));
  EXPECT_THAT(stalled.error().text(), HasSubstr("process 'p0':\nwords of 0"));
  EXPECT_THAT(stalled.error().text(), HasSubstr("words of 1"));
  EXPECT_THAT(stalled.error().text(), HasSubstr("the table of all"));
}

TEST(RunCoordinator, NamesTheEdgesOfADrainThatStandsStill) {
  Stage stage(2);
  stage.bring_up();
  ASSERT_TRUE(stage.coordinator_->drain("enough", 0));
  Heartbeat said;
  said.still_ms = 10'000;
  said.is_waiting = true;
  said.edges.resize(stage.plan_.edges.size());
  ASSERT_FALSE(said.edges.empty());
  said.edges.front().in_flight = 3;
  ASSERT_TRUE(stage.say(0, said).ok());
  // The other process has received one of them.
  said.edges.front().in_flight = static_cast<uint64_t>(-1);
  ASSERT_TRUE(stage.say(1, said).ok());
  const Status stalled = stage.coordinator_->tick(stage.now);
  ASSERT_FALSE(stalled.ok());
  EXPECT_THAT(stalled.error().text(), HasSubstr(fmt::format("edge '{}': 2 messages in flight",
                                                            stage.plan_.edges.front().name)));
}

TEST(RunCoordinator, ADrainFailsWhenMessagesInFlightDoNotArrive) {
  Stage stage(2);
  stage.plan_.settings.drain_max = Duration::seconds(20);
  stage.bring_up();
  ASSERT_TRUE(stage.coordinator_->drain("enough", 0));
  uint64_t round = 0, steps = 5;
  const auto look = [&](Duration later, bool is_idle) {
    stage.now = stage.now + later;
    ++round;
    EXPECT_TRUE(stage.say(0, stage.counted(round, steps, true, 1)).ok());
    EXPECT_TRUE(stage.say(1, stage.counted(round, 3, is_idle, 0)).ok());
    stage.now = stage.now + Duration::seconds(1);
    return stage.coordinator_->tick(stage.now);  // it counts again
  };
  // One process writes a checkpoint that lasts longer than drain_max.
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(look(Duration::seconds(15), false).ok());
  EXPECT_TRUE(look(Duration::seconds(15), true).ok());
  ++steps;  // a message has arrived
  EXPECT_TRUE(look(Duration::seconds(15), true).ok());
  EXPECT_TRUE(look(Duration::seconds(15), true).ok());
  const Status late = look(Duration::seconds(15), true);
  ASSERT_FALSE(late.ok());
  EXPECT_THAT(late.error().text(), HasSubstr("the run has not drained within 20s"));
}

TEST(RunCoordinator, BringsAProcessBackAsANewIncarnation) {
  Stage stage(3);
  stage.bring_up();
  EXPECT_EQ(stage.coordinator_->process_died(ProcessId(2)), 4u);
  EXPECT_THAT(stage.sent(), ElementsAre("PeerDown to 1"));
  EXPECT_EQ(stage.newest_.as<PeerDown>().incarnation, 3u);
  EXPECT_FALSE(stage.say(2, stage.hello(2)).ok());  // the dead process's incarnation
  auto hello = stage.hello(2);
  hello.incarnation = 4;
  ASSERT_TRUE(stage.say(2, hello).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("PeerUp to 1", "ConnectPeers to 2"));
  EXPECT_EQ(stage.newest_.as<ConnectPeers>().peers[0].incarnation, 3u);
  EXPECT_FALSE(stage.say(2, GroupsReady{}).ok());
  ASSERT_TRUE(stage.say(2, PeersConnected{}).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("StartRun to 2"));
  // A drain that begins meanwhile waits for it.
  ASSERT_TRUE(stage.coordinator_->drain("asked", 1));
  EXPECT_THAT(stage.sent(), Contains("DrainRun to 2"));
  ASSERT_TRUE(stage.say(2, GroupsReady{}).ok());
  EXPECT_THAT(stage.sent(), ElementsAre("GoRun to 2", "CountGroups to 0", "CountGroups to 1",
                                        "CountGroups to 2"));
  EXPECT_FALSE(stage.say(2, GroupsReady{}).ok());
}

TEST(RunCoordinator, DoesNotEndADrainWhileAProcessIsBeingBroughtBack) {
  Stage stage(2);
  stage.bring_up();
  const uint32_t incarnation = stage.coordinator_->process_died(ProcessId(1));
  ASSERT_TRUE(stage.coordinator_->drain("asked", 1));
  WorkerHello hello = stage.hello(1);
  hello.incarnation = incarnation;
  ASSERT_TRUE(stage.say(1, hello).ok());
  stage.sent();
  ASSERT_TRUE(stage.say(1, PeersConnected{}).ok());
  // It is told at once, because loading that never ends must not block the drain.
  EXPECT_THAT(stage.sent(), ElementsAre("StartRun to 1", "DrainRun to 1"));
  // Its groups are being made, so its idle counts must not end the drain.
  for (uint64_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(stage.say(0, stage.counted(round, 5, true, 0)).ok());
    ASSERT_TRUE(stage.say(1, stage.counted(round, 0, true, 0)).ok());
  }
  EXPECT_EQ(stage.coordinator_->phase(), RunCoordinator::Phase::kDraining);
  ASSERT_TRUE(stage.say(1, GroupsReady{}).ok());
  const auto round = stage.newest_.as<CountGroups>().round;
  for (uint64_t look = round; look <= round + 1; ++look) {
    ASSERT_TRUE(stage.say(0, stage.counted(look, 5, true, 0)).ok());
    ASSERT_TRUE(stage.say(1, stage.counted(look, 0, true, 0)).ok());
  }
  EXPECT_EQ(stage.coordinator_->phase(), RunCoordinator::Phase::kEnding);
}

TEST(RunCoordinator, ADrainBeginsToCountAnewWhenAProcessDies) {
  Stage stage(2);
  stage.bring_up();
  ASSERT_TRUE(stage.coordinator_->drain("asked", 1));
  const auto all_quiet = [&](uint64_t round) {
    ASSERT_TRUE(stage.say(0, stage.counted(round, 5, true, 0)).ok());
    ASSERT_TRUE(stage.say(1, stage.counted(round, 0, true, 0)).ok());
  };
  all_quiet(1);  // one more count would end the run
  const uint32_t incarnation = stage.coordinator_->process_died(ProcessId(1));
  EXPECT_EQ(stage.coordinator_->phase(), RunCoordinator::Phase::kDraining);
  WorkerHello hello = stage.hello(1);
  hello.incarnation = incarnation;
  ASSERT_TRUE(stage.say(1, hello).ok());
  ASSERT_TRUE(stage.say(1, PeersConnected{}).ok());
  ASSERT_TRUE(stage.say(1, GroupsReady{}).ok());
  const auto round = stage.newest_.as<CountGroups>().round;
  all_quiet(round);  // the same numbers as before the death
  EXPECT_EQ(stage.coordinator_->phase(), RunCoordinator::Phase::kDraining);
  all_quiet(round + 1);
  EXPECT_EQ(stage.coordinator_->phase(), RunCoordinator::Phase::kEnding);
}

TEST(RunCoordinator, AddsTheLedgersOfAllProcessesUp) {
  Stage stage(2);
  stage.bring_up();
  RunEnded sender, receiver;
  sender.edges = {{7, 0, 7, 0, 0, 0, 4}};
  receiver.edges = {{0, 6, static_cast<uint64_t>(-6), 0, 0, 1, 0}};
  ASSERT_TRUE(stage.say(0, sender).ok());
  ASSERT_TRUE(stage.say(1, receiver).ok());
  const auto total = stage.coordinator_->total_edges();
  ASSERT_EQ(total.size(), 1u);
  EXPECT_EQ(total[0].in_flight, 1u);
  EXPECT_EQ(total[0].waiting_max, 4u);
  const Status lost = check_ledger(stage.plan_, total);
  ASSERT_FALSE(lost.ok());
  EXPECT_THAT(lost.error().text(), HasSubstr("'p0.out -> p1.in' does not balance: 7 sent, 6"));
  auto all_there = total;
  all_there[0].handled = 7;
  all_there[0].in_flight = 0;
  EXPECT_TRUE(check_ledger(stage.plan_, all_there).ok());
}

TEST(Heartbeat, LeavesOutWhatOnlyWatchersReadRatherThanGrowTooLong) {
  Heartbeat beat;
  beat.num_steps = 7;
  beat.edges.resize(3);
  beat.loads.resize(3);
  beat.groups.resize(2);
  beat.instances.resize(2);
  beat.connections.resize(1);
  const size_t size = body_bytes_max(beat);
  fit(beat, size);
  EXPECT_EQ(beat.groups.size(), 2u);
  fit(beat, size - 1);
  EXPECT_TRUE(beat.loads.empty() && beat.groups.empty() && beat.instances.empty() &&
              beat.connections.empty());
  EXPECT_EQ(beat.num_steps, 7u);
  EXPECT_EQ(beat.edges.size(), 3u);
}

}  // namespace
}  // namespace primerl
