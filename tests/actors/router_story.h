/// A Router with two engines, each with a prefill and a decode instance; their requests and loads.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "actors/router/router.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl::testing {

inline constexpr InstanceId kPrefillA(10), kPrefillB(11), kDecodeA(20), kDecodeB(21);

inline GenerateRequest a_request(uint64_t request, uint64_t session = 1, int64_t version = 0) {
  GenerateRequest made;
  made.request = request;
  made.session = session;
  made.version = PolicyVersion(version);
  made.prompt_tokens = {1, 2, 3};
  return made;
}

/// The load of an engine that has applied this version of both tenants.
inline EngineLoad a_load(InstanceId engine, int64_t applied, uint64_t num_finished = 0) {
  EngineLoad load;
  load.engine = engine;
  for (const uint32_t tenant : {0U, 1U})
    CHECK(load.applied.set({TenantSlot(tenant)}, PolicyVersion(applied)), "too many keys");
  load.num_finished = num_finished;
  load.num_received = num_finished;
  load.num_room = 1000;
  return load;
}

/// The load of an engine that has received `received` requests and can queue `room` more.
inline EngineLoad a_full_load(InstanceId engine, uint64_t received, int32_t room) {
  EngineLoad load = a_load(engine, 0);
  load.num_received = received;
  load.num_room = room;
  return load;
}

struct RouterStory : ::testing::Test {
  explicit RouterStory(RouterOptions options = {}) : router(std::move(options)) {
    router.set_targets("prefill", {kPrefillA, kPrefillB});
    router.set_targets("abort", {kPrefillA, kPrefillB, kDecodeA, kDecodeB});
    router.set_sharing({kPrefillA, kDecodeA});
    router.set_sharing({kPrefillB, kDecodeB});
  }
  void ready(int64_t version = 0) {
    ASSERT_TRUE(router.give("load", a_load(kPrefillA, version)).ok());
    ASSERT_TRUE(router.give("load", a_load(kPrefillB, version)).ok());
  }
  void ask(GenerateRequest request) {
    EXPECT_TRUE(router.give("generate", std::move(request), rollout).ok());
  }
  Given rollout{.tenant = TenantSlot(0), .sender = InstanceId(3), .origin = InstanceId(3)};
  NodeRunner<Router> router;
};

struct SmallRouterStory : RouterStory {
  SmallRouterStory() : RouterStory({.policy = "round_robin", .sessions_max = 2}) {}
};

}  // namespace primerl::testing
