/// The protocol over the simulated network: partitions, and many seeds with all faults at once. A
/// failure prints its seed, which repeats it.
#include <algorithm>
#include <tuple>

#include "runtime/transport/simulated_transport.h"

#include <gmock/gmock.h>

#include "tests/conformance/transport_stage.h"

namespace primerl {
namespace {

/// A network with processes 0 .. n-1, all connected to each other.
class Mesh {
 public:
  Mesh(SimulatedOptions options, uint32_t num_processes, const ConnectionLimits& limits = {})
      : network(options), receivers(num_processes) {
    for (uint32_t i = 0; i < num_processes; ++i) {
      receivers[i].never_hold();
      transports.push_back(network.make_transport(identity_of(i, 1), limits, receivers[i]));
    }
    for (uint32_t i = 0; i < num_processes; ++i)
      for (uint32_t other = 0; other < num_processes; ++other)
        if (i != other) add(i, other);
  }
  void add(uint32_t i, uint32_t other) {
    PeerSpec peer;
    peer.process = ProcessId(other);
    peer.name = fmt::format("side{}", other);
    if (i > other) peer.address = simulated_address(ProcessId(other), 1);
    ASSERT_TRUE(transports[i]->add_peer(peer).ok());
  }
  void send(uint32_t from, uint32_t to, uint64_t number, size_t bytes = 0) {
    const auto sent = transports[from]->send(ProcessId(to), note_batch(from, to, number, bytes));
    ASSERT_TRUE(sent.ok()) << sent.error().text();
  }
  ConnectionStatus status(uint32_t from, uint32_t to) const {
    for (const ConnectionStatus& status : transports[from]->status())
      if (status.peer == ProcessId(to)) return status;
    return {};
  }

  SimulatedNetwork network;
  std::vector<CollectingReceiver> receivers;
  std::vector<std::unique_ptr<Transport>> transports;
};

bool is_in_order(const std::vector<uint64_t>& numbers, uint64_t count) {
  if (numbers.size() != count) return false;
  for (uint64_t i = 0; i < count; ++i)
    if (numbers[i] != i + 1) return false;
  return true;
}

TEST(SimulatedTransport, HealsAPartitionOfFiveSecondsWithoutLoss) {
  Mesh run({.seed = 1, .faults = {}}, 2);
  ASSERT_TRUE(run.network.run_until(
      [&] { return run.receivers[0].num_ups() == 1 && run.receivers[1].num_ups() == 1; }));
  EXPECT_EQ(run.status(1, 0).round_trip, Duration::microseconds(100));
  EXPECT_EQ(run.status(1, 0).clock_offset, Duration());
  run.network.cut(ProcessId(0), ProcessId(1));
  for (uint64_t number = 1; number <= 500; ++number) run.send(1, 0, number, number % 7 * 20'000);
  run.network.run_for(Duration::seconds(5));
  EXPECT_EQ(run.receivers[0].num_messages(), 0u);
  EXPECT_EQ(run.receivers[0].num_downs(), 1u);
  EXPECT_EQ(run.receivers[1].num_downs(), 1u);
  EXPECT_EQ(run.status(1, 0).state, ConnectionState::kBroken);
  run.network.reconnect(ProcessId(0), ProcessId(1));
  ASSERT_TRUE(run.network.run_until([&] { return run.receivers[0].num_messages() == 500; }));
  EXPECT_TRUE(is_in_order(run.receivers[0].numbers_from(GroupId(1)), 500));
  EXPECT_TRUE(run.receivers[0].is_whole());
  EXPECT_EQ(run.receivers[0].num_ups(), 2u);
  EXPECT_EQ(run.status(1, 0).num_breaks, 1u);
}

TEST(SimulatedTransport, KeepsOtherLinksGoingWhileOneIsCut) {
  Mesh run({.seed = 2, .faults = {}}, 3);
  run.network.cut(ProcessId(0), ProcessId(2));
  for (uint64_t number = 1; number <= 100; ++number) {
    run.send(2, 0, number);
    run.send(2, 1, number);
  }
  ASSERT_TRUE(run.network.run_until([&] { return run.receivers[1].num_messages() == 100; }));
  EXPECT_EQ(run.receivers[0].num_messages(), 0u);
  EXPECT_LT(run.network.now().to_nanoseconds(), Duration::seconds(1).to_nanoseconds());
}

/// Kinds and rates of faults, chosen by the seed.
SimulatedOptions drawn(uint64_t seed) {
  RandomStream random(seed);
  const auto chance = [&] { return random.below(3) == 0 ? 0 : random.uniform() * 0.25; };
  SimulatedOptions options;
  options.seed = seed;
  options.faults.loss = chance();
  options.faults.duplication = chance();
  options.faults.reordering = chance();
  options.faults.damage = chance() / 2;
  options.faults.jitter = Duration::microseconds(static_cast<int64_t>(random.below(3000)));
  options.faults.delay = Duration::microseconds(static_cast<int64_t>(random.below(20'000)));
  return options;
}

TEST(SimulatedTransport, DeliversOnceAndInOrderUnderEveryFault) {
  constexpr uint64_t kCount = 60;
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    ConnectionLimits limits;
    limits.bulk_bytes_min = 500;
    limits.chunk_bytes = 300;
    limits.window_frames = 8;
    limits.window_chunks = 4;
    limits.frame_bytes = 600;
    limits.greet_timeout = Duration::seconds(3600);
    const SimulatedOptions options = drawn(seed);
    Mesh run(options, 3, limits);
    RandomStream random(mix(seed, 1));
    for (uint64_t number = 1; number <= kCount; ++number) {
      for (uint32_t from = 0; from < 3; ++from)
        for (uint32_t to = 0; to < 3; ++to)
          if (from != to) run.send(from, to, number, random.below(1000));
      if (number == kCount / 2) run.network.cut(ProcessId(0), ProcessId(1));
      if (random.below(4) == 0) run.network.run_for(Duration::milliseconds(5));
    }
    run.network.reconnect(ProcessId(0), ProcessId(1));
    ASSERT_TRUE(run.network.run_until(
        [&] {
          return std::all_of(run.receivers.begin(), run.receivers.end(),
                             [](const auto& each) { return each.num_messages() >= 2 * kCount; });
        },
        3'000'000));
    for (uint32_t to = 0; to < 3; ++to) {
      ASSERT_TRUE(run.receivers[to].is_whole());
      for (uint32_t from = 0; from < 3; ++from)
        ASSERT_TRUE(from == to ||
                    is_in_order(run.receivers[to].numbers_from(GroupId(from)), kCount));
    }
    // Without faults, the ledger must balance.
    run.network.set_faults({});
    const auto is_settled = [&](uint32_t from, uint32_t to) {
      const ConnectionStatus status = run.status(from, to);
      return status.acknowledged == status.sent && status.unacknowledged == TransferCounts();
    };
    ASSERT_TRUE(run.network.run_until([&] {
      return is_settled(0, 1) && is_settled(0, 2) && is_settled(1, 0) && is_settled(1, 2) &&
             is_settled(2, 0) && is_settled(2, 1);
    }));
    for (auto& transport : run.transports) {
      const auto closed = transport->close(Duration::seconds(100));
      ASSERT_TRUE(closed.ok()) << closed.error().text();
    }
  }
}

TEST(SimulatedTransport, RepeatsARunByItsSeed) {
  const auto trace_of = [](uint64_t seed) {
    Mesh run(drawn(seed), 2);
    for (uint64_t number = 1; number <= 50; ++number) run.send(1, 0, number);
    run.network.run_until([&] { return run.receivers[0].num_messages() == 50; });
    return std::tuple(run.network.now().to_nanoseconds(), run.network.num_lost(),
                      run.status(1, 0).num_frames_sent);
  };
  for (uint64_t seed = 1; seed <= 10; ++seed) EXPECT_EQ(trace_of(seed), trace_of(seed)) << seed;
  EXPECT_NE(trace_of(1), trace_of(2));
}

}  // namespace
}  // namespace primerl
