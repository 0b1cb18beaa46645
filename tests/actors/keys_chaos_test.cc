// Keys of one tenant come, move on and go while messages are late and replace each other: in the
// end every engine has exactly the keys that are left, and their requests go there.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/broadcaster/broadcaster.h"
#include "actors/decode/decode.h"
#include "actors/prefill/prefill.h"
#include "actors/router/router.h"
#include "graph/base/random.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

constexpr uint64_t kSeeds = 100;
constexpr int kMoves = 120;
constexpr uint32_t kPairs = 2;

constexpr InstanceId prefill_id(uint32_t pair) { return InstanceId(10 + pair); }
constexpr InstanceId decode_id(uint32_t pair) { return InstanceId(20 + pair); }

/// An engine with the two actors that use it.
struct EnginePair {
  explicit EnginePair(WeightChannel& weights) {
    for (NodeRunnerCore* node : actors()) {
      node->use("engine", engine);
      node->use("weights", weights);
      node->set_targets("load", {InstanceId(7)});
      node->set_room("load", 1);  // a runner does not know when a load has arrived
    }
  }
  std::vector<NodeRunnerCore*> actors() { return {&prefill, &decode}; }
  testing::FakeEngine engine;
  NodeRunner<Prefill> prefill;
  NodeRunner<Decode> decode;
};

/// Every link keeps only its newest message, as for one tenant of an input with latest_wins().
class KeysWorld {
 public:
  explicit KeysWorld(uint64_t seed) : random_(seed), weights_(make_memory_channel()) {
    std::vector<InstanceId> engines, prefills;
    for (uint32_t i = 0; i < kPairs; ++i) {
      pairs.push_back(std::make_unique<EnginePair>(*weights_));
      prefills.push_back(prefill_id(i));
      engines.insert(engines.end(), {prefill_id(i), decode_id(i)});
    }
    broadcaster.set_targets("update", engines);
    router.set_targets("prefill", prefills);
  }

  void move() {
    const uint64_t draw = random_.below(10);
    if (draw == 0)
      publish({}, moving.is_none() ? PolicyVersion(0) : moving.next());
    else if (draw == 1)
      publish(snapshot_key({}, ++num_snapshots), PolicyVersion(0));
    else if (draw == 2 && !left.empty())
      drop(std::next(left.begin(), static_cast<int64_t>(random_.below(left.size())))->first);
    else if (draw < 8 && !waiting_.empty())
      deliver(
          std::next(waiting_.begin(), static_cast<int64_t>(random_.below(waiting_.size())))->first);
    else
      pass_time();
  }

  void settle() {
    for (int quiet = 0; quiet < 20; ++quiet) {
      while (!waiting_.empty()) {
        deliver(waiting_.begin()->first);
        quiet = 0;
      }
      pass_time();
    }
  }

  bool is_sent(WeightsKey key) {
    router.forget_sent();
    GenerateRequest request;
    request.request = request.session = ++num_requests_;
    request.adapter = key.is_snapshot() ? key.adapter : AdapterId();
    request.version = key.is_snapshot() ? PolicyVersion(0) : moving;
    request.prompt_tokens = {1, 2, 3};
    EXPECT_TRUE(router.give("generate", request).ok());
    return !router.emissions("prefill").empty();
  }

  std::vector<std::unique_ptr<EnginePair>> pairs;
  NodeRunner<Broadcaster> broadcaster;
  NodeRunner<Router> router;
  std::map<WeightsKey, PolicyVersion> left;  // snapshots that were not dropped
  PolicyVersion moving;
  uint32_t num_snapshots = 0;
  std::map<AdapterId, PolicyVersion> heard;  // by who gets PolicyLive

 private:
  using Link = std::pair<std::string, InstanceId>;

  void publish(WeightsKey key, PolicyVersion version) {
    auto made = std::make_shared<WeightSnapshot>();
    made->key = key;
    made->version = version;
    ASSERT_TRUE(weights_->publish(made).ok());
    (key.is_snapshot() ? left[key] : moving) = version;
    WeightsReady ready{.version = version};
    if (key.is_snapshot()) ready.adapter = key.adapter;
    ASSERT_TRUE(broadcaster.give("weights", ready).ok());
    collect();
  }
  void drop(WeightsKey key) {
    left.erase(key);
    ASSERT_TRUE(
        broadcaster.give("weights", WeightsReady{.adapter = key.adapter, .is_dropped = true}).ok());
    collect();
  }
  void pass_time() {
    for (const auto& pair : pairs)
      for (NodeRunnerCore* actor : pair->actors())
        ASSERT_TRUE(actor->advance(Duration::milliseconds(1)).ok() && actor->run_work().ok());
    collect();
  }
  NodeRunnerCore& actor_of(InstanceId engine) {
    return *pairs[engine.value % 10]->actors()[engine.value / 10 - 1];
  }

  void deliver(Link link) {  // a copy: the map loses the original
    const Payload payload = waiting_.extract(link).mapped();
    const auto& [what, engine] = link;
    if (what == "update") {
      ASSERT_TRUE(actor_of(engine).give("update", payload, {}).ok());
    } else if (what == "applied") {
      auto applied = payload.as<PolicyApplied>();
      applied.engine = engine;  // a runner's actor has the same name as any other
      ASSERT_TRUE(broadcaster.give("applied", applied).ok());
    } else if (what == "load") {
      auto load = payload.as<EngineLoad>();
      load.engine = engine;
      ASSERT_TRUE(router.give("load", load).ok());
    } else {
      const auto live = payload.as<PolicyLive>();
      heard = {{live.adapter, live.version}};
      for (const auto& [adapter, version] : live.others) heard[adapter] = version;
    }
    collect();
  }

  void collect() {
    for (const auto& update : broadcaster.emissions("update"))
      for (uint32_t i = 0; i < kPairs; ++i)
        for (const InstanceId engine : {prefill_id(i), decode_id(i)})
          waiting_[{"update", engine}] = update.payload;
    for (const auto& live : broadcaster.emissions("live")) waiting_[{"live", {}}] = live.payload;
    broadcaster.forget_sent();
    for (uint32_t i = 0; i < kPairs; ++i)
      for (const InstanceId engine : {prefill_id(i), decode_id(i)}) {
        NodeRunnerCore& actor = actor_of(engine);
        for (const char* what : {"applied", "load"})
          for (const auto& sent : actor.emissions(what)) waiting_[{what, engine}] = sent.payload;
        actor.forget_sent();
      }
  }

  RandomStream random_;
  std::shared_ptr<WeightChannel> weights_;
  std::map<Link, Payload> waiting_;
  uint64_t num_requests_ = 0;
};

TEST(KeysUnderChaos, EveryEngineEndsWithTheKeysThatAreLeft) {
  uint64_t num_dropped = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    KeysWorld world(seed);
    for (int i = 0; i < kMoves && !HasFatalFailure(); ++i) world.move();
    world.settle();
    auto wanted = world.left;
    if (!world.moving.is_none()) wanted[{}] = world.moving;
    for (const auto& pair : world.pairs) {
      std::map<WeightsKey, PolicyVersion> held;
      for (const auto& [key, version] : pair->engine.versions.list()) held[key] = version;
      ASSERT_EQ(held, wanted);
    }
    for (const auto& [key, version] : wanted) {
      const AdapterId adapter = key.is_snapshot() ? key.adapter : AdapterId();
      ASSERT_EQ(world.heard[adapter], version)
          << to_string(key) << " is live, and its users know it";
      ASSERT_TRUE(world.is_sent(key)) << to_string(key);
    }
    for (uint32_t n = 1; n <= world.num_snapshots; ++n) {
      const WeightsKey key = snapshot_key({}, n);
      if (world.left.contains(key)) continue;
      ++num_dropped;
      ASSERT_FALSE(world.is_sent(key)) << to_string(key) << " was dropped";
    }
  }
  EXPECT_GT(num_dropped, kSeeds) << "the worlds drop snapshots";
}

}  // namespace
}  // namespace primerl
