// A tenant in a slot that another one had before: the keys of its weights and requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/prefill/prefill.h"
#include "graph/tenancies.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::SizeIs;

constexpr uint32_t kUse = 3;
const WeightsKey kLaterKey{TenantSlot(0), AdapterId(kUse)};

Tenant a_later_tenant() {
  Tenant tenant = testing::a_tenant();
  tenant.tenancy = kUse;
  return tenant;
}

struct LaterTenant : ::testing::Test {
  LaterTenant() : weights(make_memory_channel()) {
    prefill.set_tenants({a_later_tenant()});
    prefill.use("engine", engine);
  }
  void publish(WeightsKey key, int64_t version) {
    auto snapshot = std::make_shared<WeightSnapshot>();
    snapshot->key = key;
    snapshot->version = PolicyVersion(version);
    ASSERT_TRUE(weights->publish(snapshot).ok());
  }
  void ask() {
    GenerateRequest request;
    request.request = first_request_of(kUse);
    request.prompt_tokens = {1, 2, 3};
    request.sampling.max_tokens = 4;
    ASSERT_TRUE(prefill.give("request", request).ok());
    ASSERT_THAT(engine.submitted, SizeIs(1));
  }
  testing::FakeEngine engine;
  std::shared_ptr<WeightChannel> weights;
  NodeRunner<Prefill> prefill;
};

TEST_F(LaterTenant, IsServedWithItsOwnWeights) {
  prefill.use("weights", *weights);
  publish({TenantSlot(0)}, 7);  // by the first tenant of the slot
  publish(kLaterKey, 0);
  ASSERT_TRUE(prefill.give("update", PolicyUpdate{PolicyVersion(0)}).ok());
  EXPECT_EQ(engine.versions.of(kLaterKey), PolicyVersion(0));
  EXPECT_TRUE(engine.versions.of({TenantSlot(0)}).is_none());
  ask();
  EXPECT_EQ(engine.submitted[0].key(), kLaterKey);
}

/// It has one set of whole weights, which no tenant changes.
TEST(LaterTenantOfAFrozenEngine, AsksForTheWholeWeights) {
  PrefillOptions options;
  options.weights = "none";
  NodeRunner<Prefill> prefill(options);
  testing::FakeEngine engine;
  prefill.set_tenants({a_later_tenant()});
  prefill.use("engine", engine);
  GenerateRequest request;
  request.request = first_request_of(kUse);
  request.prompt_tokens = {1, 2, 3};
  ASSERT_TRUE(prefill.give("request", request).ok());
  ASSERT_THAT(engine.submitted, SizeIs(1));
  EXPECT_TRUE(engine.submitted[0].key().is_whole());
}

}  // namespace
}  // namespace primerl
