// Rollouts of a tenant with a limit of tokens a second.
#include "tests/actors/rollout_story.h"

namespace primerl {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

struct LimitedRollout : testing::RolloutStory {
  LimitedRollout() {
    Tenant tenant = testing::a_tenant();
    tenant.tokens_per_second = 1;
    rollout.set_tenants({tenant});
  }
  void advance(Duration duration) { ASSERT_TRUE(rollout.advance(duration).ok()); }
};

TEST_F(LimitedRollout, OpensTheNextGroupWhenItsTokensArePaid) {
  live(0);
  task(0);
  play(requests());  // twice two tokens of a prompt and three sampled ones
  task(1);
  EXPECT_THAT(requests(), IsEmpty());
  EXPECT_TRUE(rollout.is_paused("task"));
  const Duration paid = Duration::seconds(10) - TokenBudget::kBurst;
  advance(paid - Duration::milliseconds(1));
  EXPECT_THAT(requests(), IsEmpty());
  advance(Duration::milliseconds(1));
  EXPECT_THAT(requests(), SizeIs(2));
  EXPECT_FALSE(rollout.is_paused("task"));
}

TEST_F(LimitedRollout, KeepsNoMoreThanABurstOfWhatItDidNotUse) {
  live(0);
  advance(Duration::seconds(1000));
  task(0);
  play(requests());
  task(1);
  advance(Duration::seconds(8));
  EXPECT_THAT(requests(), IsEmpty());
  advance(Duration::seconds(1));
  EXPECT_THAT(requests(), SizeIs(2));
}

TEST_F(LimitedRollout, TurnsOfOpenRolloutsDoNotWait) {
  live(0);
  task(0);
  task(1);
  const auto made = requests();
  ASSERT_THAT(made, SizeIs(4)) << "nothing was charged yet";
  complete(made[0]);
  observe(actions().front(), 0, false, "go");
  EXPECT_THAT(requests(), SizeIs(1));
}

}  // namespace
}  // namespace primerl
