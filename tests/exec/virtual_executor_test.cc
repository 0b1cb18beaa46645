// Equal seeds give equal runs; random graphs under random schedules keep every invariant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

const TenantSlot kTenant(0);

/// Relays on all its outputs, sometimes answers, sometimes fails; takes random virtual time.
class RandomGraph final : public StepHooks {
 public:
  explicit RandomGraph(uint64_t seed) : seed_(seed), random_(mix(seed, 99)) { build(); }

  RunOutcome run(uint64_t* trace_hash, uint64_t schedule) {
    SmallRun run(graph_, schedule, this);
    const auto outcome = run->wait();
    *trace_hash = run->trace_hash();
    return outcome;
  }

  Injection before(const StepAbout& about) override {
    const uint64_t draw = mix(mix(seed_, about.instance.value), about.delivery);
    Injection injection;
    if (about.kind == StepKind::kMessage && draw % 17 == 0)
      injection.failure = error(Code::kUnavailable, "injected");
    if (draw % 5 == 0) injection.takes = Duration::microseconds(static_cast<int64_t>(draw % 1000));
    return injection;
  }

 private:
  static Strings relaying() {
    Strings strings;
    strings.on_in = [](Puppet& puppet, const Number& number) {
      if (!puppet.out.targets().empty()) puppet.out.send({.value = number.value, .bulk = {}});
      if (!puppet.many.targets().empty()) puppet.many.send({.value = number.value, .bulk = {}});
      if (!puppet.keyed.targets().empty()) puppet.keyed.send({.value = number.value, .bulk = {}});
      if (!puppet.reply.targets().empty() && puppet.count % 3 == 0)
        puppet.reply.send({.value = number.value, .bulk = blob_of(16)});
      return ok();
    };
    return strings;
  }

  void build() {
    const int layers = 2 + static_cast<int>(random_.below(3));
    std::vector<std::vector<std::string>> names(static_cast<size_t>(layers));
    const int64_t count = 20 + static_cast<int64_t>(random_.below(30));
    graph_.node("source", {.strings = {.on_work = counts_to(count)}, .contract = make_source});
    names[0] = {"source"};
    for (int layer = 1; layer < layers; ++layer) {
      const int width = 1 + static_cast<int>(random_.below(2));
      for (int i = 0; i < width; ++i) {
        NodeSetup setup{.strings = relaying()};
        setup.replicas = 1 + static_cast<int32_t>(random_.below(3));
        if (random_.below(3) == 0) setup.group = fmt::format("group{}", random_.below(2));
        names[static_cast<size_t>(layer)].push_back(fmt::format("n{}_{}", layer, i));
        graph_.node(names[static_cast<size_t>(layer)].back(), setup);
      }
    }
    for (size_t layer = 1; layer < names.size(); ++layer)
      for (const auto& to : names[layer]) connect(names[layer - 1], to, layer == 1);
    for (const auto& last : names.back())
      graph_.edge(last + ".reply", "source.back", {.at_most = 100'000});
  }

  void connect(const std::vector<std::string>& from_layer, const std::string& to, bool is_first) {
    const EdgeSetup setup{.capacity = 1 + static_cast<int64_t>(random_.below(6))};
    // The source sends only on `out`, which has one target. So it may feed the first node only when
    // that node has one instance.
    const auto& from = from_layer[random_.below(from_layer.size())];
    const char* kinds[] = {".many", ".keyed"};
    const std::string port = is_first ? ".out" : kinds[random_.below(2)];
    graph_.edge(from + port, to + ".in", setup);
  }

  const uint64_t seed_;
  RandomStream random_;
  SmallGraph graph_;
};

uint64_t first_seed(uint64_t otherwise) {
  const char* given = std::getenv("PRIMERL_SEED");
  return given == nullptr ? otherwise : std::strtoull(given, nullptr, 10);
}

TEST(VirtualExecutor, KeepsEveryInvariantAtEverySeedOfRandomGraphs) {
  const bool one = std::getenv("PRIMERL_SEED") != nullptr;
  const uint64_t first = first_seed(1);
  for (uint64_t seed = first; seed < (one ? first + 1 : 201); ++seed) {
    RandomGraph graph(seed);
    uint64_t hash = 0;
    const auto outcome = graph.run(&hash, seed);
    ASSERT_EQ(outcome.end, RunEnd::kFinished)
        << "seed " << seed << ": " << (outcome.status.ok() ? "" : outcome.status.error().text())
        << outcome.stall.text();
    for (const EdgeLedger& edge : outcome.ledger) {
      ASSERT_TRUE(edge.balances()) << "seed " << seed;
      ASSERT_EQ(edge.in_flight, 0u) << "seed " << seed;
    }
  }
}

TEST(VirtualExecutor, EqualSeedsGiveEqualTracesAndOthersDoNot) {
  std::set<uint64_t> hashes;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    uint64_t once = 0, again = 0, other = 0;
    RandomGraph(7).run(&once, seed);
    RandomGraph(7).run(&again, seed);
    RandomGraph(7).run(&other, seed + 1000);
    ASSERT_EQ(once, again) << "seed " << seed;
    EXPECT_NE(once, other) << "seed " << seed;
    hashes.insert(once);
  }
  EXPECT_EQ(hashes.size(), 50u) << "every seed explores another schedule";
}

TEST(VirtualExecutor, ARunThatDoesNotEndIsABrokenInvariant) {
  SmallGraph graph;
  Strings spinning;
  spinning.on_work = [](Puppet&) -> Result<bool> { return true; };
  graph.node("spinner", {.strings = spinning, .contract = [](Contract& c) { c.works = true; }});
  EXPECT_DEATH(
      {
        SmallRun run(graph, 42);
        run->wait();
      },
      "has not ended after 1000000 events(.|\n)*PRIMERL_SEED=42");
}

TEST(VirtualExecutor, AFailedStartIsReturnedAndNamesTheInstance) {
  SmallGraph graph;
  Strings failing;
  failing.on_start = [](Puppet&) -> Status { return error(Code::kInvalid, "no model"); };
  graph.node("engine", {.strings = failing});
  MemoryHostServices process_services;
  VirtualExecutor executor(graph.plan(), {}, process_services, {});
  const Status status = executor.start();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message(), "starting 'engine': no model");
}

}  // namespace
}  // namespace primerl::testing
