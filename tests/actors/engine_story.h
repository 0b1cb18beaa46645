/// A story of prefill and decode: both actors of one actor group, with an engine and a weight
/// channel that a test controls.
#pragma once

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "actors/decode/decode.h"
#include "actors/prefill/prefill.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl::testing {

inline GenerateRequest engine_request(uint64_t request) {
  GenerateRequest made;
  made.request = request;
  made.session = 70 + request;
  made.attempt = 2;
  made.prompt_tokens = {1, 2, 3};
  made.sampling.max_tokens = 4;
  made.seed = 11;
  made.salt = "main:0";
  return made;
}

/// Prefill and Decode of one actor group: they share an engine and a weight channel.
struct EngineStory : ::testing::Test {
  EngineStory() : weights(make_memory_channel()) {
    for (NodeRunnerCore* node :
         {static_cast<NodeRunnerCore*>(&prefill), static_cast<NodeRunnerCore*>(&decode)}) {
      node->set_tenants({a_tenant(), a_tenant()});
      node->use("engine", engine);
      node->use("weights", *weights);
    }
  }
  void publish(int64_t version, TenantSlot tenant = TenantSlot(0)) {
    auto snapshot = std::make_shared<WeightSnapshot>();
    snapshot->key.tenant = tenant;
    snapshot->version = PolicyVersion(version);
    ASSERT_TRUE(weights->publish(snapshot).ok());
  }
  void ask(uint64_t request) {
    ASSERT_TRUE(prefill.give("request", engine_request(request), rollout).ok());
  }
  /// Makes both work calls and delivers PrefillDone, as the actor group does.
  void turn() {
    ASSERT_TRUE(prefill.run_work().ok());
    for (const auto& emission : prefill.emissions("done"))
      ASSERT_TRUE(decode
                      .NodeRunnerCore::give(
                          "request", emission.payload,
                          {emission.options.tenant, NodeRunnerCore::kSelf, emission.options.origin})
                      .ok());
    prefill.forget_sent("done");
    ASSERT_TRUE(decode.run_work().ok());
  }
  void abort(uint64_t request) {
    ASSERT_TRUE(prefill.give("abort", Abort{request, 2}, rollout).ok());
    ASSERT_TRUE(decode.give("abort", Abort{request, 2}, rollout).ok());
  }
  SequenceId id(uint64_t request) { return sequence_of({rollout.tenant, request}); }
  std::vector<Completion> answers() { return decode.sent<Completion>("completion"); }

  Given rollout{.tenant = TenantSlot(1), .sender = InstanceId(5), .origin = InstanceId(3)};
  FakeEngine engine;
  std::shared_ptr<WeightChannel> weights;
  NodeRunner<Prefill> prefill;
  NodeRunner<Decode> decode;
};

}  // namespace primerl::testing
