// Later turns in the router: they send only the tokens that their session's engine does not have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "actors/router/router.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::SizeIs;

constexpr InstanceId kA(10), kB(11);

struct RouterSessions : ::testing::Test {
  RouterSessions() : router({.policy = "cache_aware"}) {
    router.set_targets("prefill", {kA, kB});
    for (const InstanceId engine : {kA, kB}) {
      EngineLoad load;
      load.engine = engine;
      load.num_room = 1000;
      CHECK(load.applied.set({TenantSlot(0)}, PolicyVersion(0)), "too many keys");
      CHECK(router.give("load", load).ok(), "refused");
    }
  }
  /// A prompt of two blocks and a few more tokens.
  static GenerateRequest of_prompt(uint64_t request, uint64_t session, int32_t first_token) {
    GenerateRequest made;
    made.request = request;
    made.session = session;
    made.version = PolicyVersion(0);
    made.salt = "main:0";
    made.prompt_tokens.resize(70);
    std::iota(made.prompt_tokens.begin(), made.prompt_tokens.end(), first_token);
    return made;
  }
  InstanceId engine_of(const GenerateRequest& request) {
    router.forget_sent();
    EXPECT_TRUE(router.give("generate", request).ok());
    const auto targets = router.targets_of("prefill");
    EXPECT_THAT(targets, SizeIs(1));
    return targets.empty() ? InstanceId() : targets[0];
  }

  NodeRunner<Router> router;
};

TEST_F(RouterSessions, ATurnWithoutItsPrefixGoesToTheEngineOfItsSession) {
  const auto opening = of_prompt(1, 1, 100);
  const InstanceId first = engine_of(opening);
  const InstanceId other = engine_of(of_prompt(2, 2, 5000));
  ASSERT_NE(first, other);
  auto later = of_prompt(3, 1, 5000);  // by these tokens alone, the other engine would be chosen
  later.known = TokenPrefix().extended(opening.prompt_tokens);
  EXPECT_EQ(engine_of(later), first);
}

}  // namespace
}  // namespace primerl
