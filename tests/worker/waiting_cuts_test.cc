// Which cuts of a process with several tenants wait for checkpoints, and who is asked for one.
#include "runtime/worker/waiting_cuts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/random.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Duration kCutEvery = Duration::seconds(60);

Time second(int64_t seconds) { return Time() + Duration::seconds(seconds); }
TenantSlot slot(size_t index) { return TenantSlot(static_cast<uint32_t>(index)); }

CutFile waiting_cut(int64_t made_at, const std::vector<int64_t>& steps) {
  CutFile file;
  file.head.at = second(made_at);
  for (size_t i = 0; i < steps.size(); ++i)
    file.head.learner_steps.emplace_back(static_cast<uint32_t>(i), steps[i]);
  return file;
}

/// The same with a state of so many bytes.
CutFile large_cut(int64_t made_at, const std::vector<int64_t>& steps, size_t bytes) {
  CutFile file = waiting_cut(made_at, steps);
  file.cut.groups.emplace_back().resources.push_back(Blob(std::vector<std::byte>(bytes)));
  return file;
}

TEST(WaitingCuts, AreWrittenWhenEveryTenantHasPassedThem) {
  WaitingCuts cuts(2, kCutEvery, {0, 0});
  EXPECT_FALSE(cuts.add(waiting_cut(1, {5, 7})));
  EXPECT_FALSE(cuts.checkpoint_committed(slot(0), 5));
  EXPECT_FALSE(cuts.checkpoint_committed(slot(1), 6));
  const auto written = cuts.checkpoint_committed(slot(1), 7);
  ASSERT_TRUE(written.has_value());
  EXPECT_EQ(written->head.at, second(1));
  EXPECT_EQ(cuts.size(), 0U);
}

TEST(WaitingCuts, TheNewestThatAllHavePassedIsWrittenAndOlderOnesAreDropped) {
  WaitingCuts cuts(2, kCutEvery, {0, 0});
  for (const int64_t at : {1, 2, 3}) EXPECT_FALSE(cuts.add(waiting_cut(at, {at, at})));
  EXPECT_FALSE(cuts.checkpoint_committed(slot(0), 2));
  EXPECT_EQ(cuts.checkpoint_committed(slot(1), 3)->head.at, second(2));
  EXPECT_EQ(cuts.size(), 1U);
}

TEST(WaitingCuts, AtMostFourWaitAndTheOldestStays) {
  WaitingCuts cuts(64, kCutEvery, {0});
  for (const int64_t at : {0, 10, 11, 30}) EXPECT_FALSE(cuts.add(waiting_cut(at, {1 + at})));
  EXPECT_EQ(cuts.size(), kWaitingCutsMax);
  EXPECT_FALSE(cuts.add(waiting_cut(40, {41})));
  EXPECT_EQ(cuts.size(), kWaitingCutsMax);
  // 10 was between the closest two: 0 and 11.
  EXPECT_EQ(cuts.checkpoint_committed(slot(0), 11)->head.at, second(0));
  EXPECT_EQ(cuts.checkpoint_committed(slot(0), 12)->head.at, second(11));
}

TEST(WaitingCuts, HaveAtMostTheirBytesAndOneIsAlwaysKept) {
  WaitingCuts cuts(64, kCutEvery, {0});
  EXPECT_FALSE(cuts.add(large_cut(0, {1}, kWaitingCutsBytesMax + 1)));
  EXPECT_EQ(cuts.size(), 1U);
  EXPECT_FALSE(cuts.add(large_cut(1, {2}, 8)));
  EXPECT_EQ(cuts.size(), 1U) << "the newer one is dropped";
  EXPECT_EQ(cuts.checkpoint_committed(slot(0), 1)->head.at, second(0));
  const uint64_t of_one = bytes_of(large_cut(0, {1}, 0).cut);
  EXPECT_FALSE(cuts.add(large_cut(2, {3}, kWaitingCutsBytesMax / 2 - of_one)));
  EXPECT_FALSE(cuts.add(large_cut(3, {4}, kWaitingCutsBytesMax / 2 - of_one)));
  EXPECT_EQ(cuts.size(), 2U);
  EXPECT_EQ(cuts.num_bytes(), kWaitingCutsBytesMax);
  EXPECT_FALSE(cuts.add(large_cut(4, {5}, 1)));
  EXPECT_EQ(cuts.size(), 2U) << "one byte too many";
  EXPECT_LE(cuts.num_bytes(), kWaitingCutsBytesMax);
}

TEST(WaitingCuts, TenantsAreAskedAfterCutEveryAndAgainIfTheyDoNotBegin) {
  WaitingCuts cuts(3, kCutEvery, {0, 0, 0});
  EXPECT_FALSE(cuts.add(waiting_cut(0, {1, 2, 3})));
  EXPECT_FALSE(cuts.checkpoint_committed(slot(0), 1));
  cuts.checkpoint_begun(slot(1), 2);
  EXPECT_THAT(cuts.requests(second(0)), IsEmpty());
  EXPECT_THAT(cuts.requests(second(59)), IsEmpty());
  const WaitingCuts::Request third{slot(2), 3};
  EXPECT_THAT(cuts.requests(second(60)), ElementsAre(third)) << "the second writes one already";
  EXPECT_THAT(cuts.requests(second(119)), IsEmpty());
  EXPECT_THAT(cuts.requests(second(120)), ElementsAre(third));
}

TEST(WaitingCuts, AnOpenCheckpointThatIsOlderThanTheCutIsFollowedByARequest) {
  WaitingCuts cuts(1, kCutEvery, {0});
  cuts.checkpoint_begun(slot(0), 4);
  EXPECT_FALSE(cuts.add(waiting_cut(0, {5})));
  EXPECT_THAT(cuts.requests(second(0)), IsEmpty());
  EXPECT_THAT(cuts.requests(second(60)), IsEmpty()) << "the trainer has one open";
  EXPECT_FALSE(cuts.checkpoint_committed(slot(0), 4));
  EXPECT_THAT(cuts.requests(second(61)), SizeIs(1));
}

TEST(WaitingCuts, AtMostSixteenTenantsAreAskedAtOnce) {
  const std::vector<int64_t> steps(kAskedMax + 1, 1);
  WaitingCuts cuts(steps.size(), kCutEvery, std::vector<int64_t>(steps.size(), 0));
  EXPECT_FALSE(cuts.add(waiting_cut(0, steps)));
  EXPECT_THAT(cuts.requests(second(0)), IsEmpty());
  EXPECT_THAT(cuts.requests(second(60)), SizeIs(kAskedMax));
  EXPECT_THAT(cuts.requests(second(61)), IsEmpty());
  cuts.checkpoint_begun(slot(0), 1);
  EXPECT_THAT(cuts.requests(second(62)), IsEmpty()) << "its copy is still in memory";
  EXPECT_FALSE(cuts.checkpoint_committed(slot(0), 1));
  EXPECT_THAT(cuts.requests(second(63)), SizeIs(1));
}

TEST(WaitingCuts, ThatATenantWhichWasSetAsideHasNotPassedAreDropped) {
  WaitingCuts cuts(2, kCutEvery, {0, 0});
  EXPECT_FALSE(cuts.add(waiting_cut(0, {1, 2})));
  EXPECT_TRUE(cuts.add(waiting_cut(1, {}), {slot(1)}).has_value());
  EXPECT_FALSE(cuts.add(waiting_cut(2, {3})));
  EXPECT_EQ(cuts.size(), 1U);
}

CutFile open_cut(int64_t made_at, const std::vector<int64_t>& steps, uint32_t open) {
  CutFile file = waiting_cut(made_at, steps);
  file.head.open_tenants = {open};
  return file;
}

TEST(WaitingCuts, WithOpenGradientsNeedTheStepThatUsesThem) {
  WaitingCuts cuts(2, kCutEvery, {5, 7});
  EXPECT_FALSE(cuts.add(open_cut(1, {5, 7}, 1)));
  EXPECT_FALSE(cuts.checkpoint_committed(slot(1), 7));
  EXPECT_THAT(cuts.requests(second(1)), IsEmpty());
  EXPECT_THAT(cuts.requests(second(61)), ElementsAre(WaitingCuts::Request{slot(1), 8}));
  EXPECT_TRUE(cuts.checkpoint_committed(slot(1), 8).has_value());
}

TEST(WaitingCuts, AreDroppedWhenANewerOneLacksTheirGradients) {
  WaitingCuts cuts(2, kCutEvery, {5, 6});
  EXPECT_FALSE(cuts.add(open_cut(1, {5, 7}, 0)));
  EXPECT_FALSE(cuts.takes_new_cut(slot(1))) << "it has no open gradients";
  EXPECT_TRUE(cuts.takes_new_cut(slot(0)));
  EXPECT_FALSE(cuts.takes_new_cut(slot(0))) << "the new cut was asked for";
  EXPECT_FALSE(cuts.add(waiting_cut(2, {5, 7})));
  EXPECT_EQ(cuts.size(), 1U);
  EXPECT_EQ(cuts.checkpoint_committed(slot(1), 7)->head.at, second(2));
}

TEST(WaitingCuts, StayWhenANewerOneHasUsedTheirGradients) {
  WaitingCuts cuts(2, kCutEvery, {5, 0});
  EXPECT_FALSE(cuts.add(open_cut(1, {5}, 0)));
  EXPECT_FALSE(cuts.add(waiting_cut(2, {6})));
  EXPECT_FALSE(cuts.add(open_cut(3, {6}, 0)));
  EXPECT_EQ(cuts.checkpoint_committed(slot(0), 6)->head.at, second(2));
  EXPECT_EQ(cuts.size(), 1U);
}

/// Steps of the tenants of a slot are counted from the beginning each.
TEST(WaitingCuts, OfATenantThatJoinedNeedItsOwnCheckpoints) {
  WaitingCuts cuts(2, kCutEvery, {50, 0});
  EXPECT_FALSE(cuts.add(waiting_cut(1, {51, 3}))) << "of the earlier tenant";
  EXPECT_FALSE(cuts.add(waiting_cut(2, {50, 3}))) << "which has passed this one";
  cuts.tenant_joined(slot(0), 1);
  EXPECT_EQ(cuts.size(), 1U);
  CutFile joined = waiting_cut(3, {2, 3});
  joined.head.slots = {{slot(0), 1, "bob"}};
  EXPECT_FALSE(cuts.add(joined));
  EXPECT_EQ(cuts.checkpoint_committed(slot(1), 3)->head.at, second(2));
  EXPECT_EQ(cuts.checkpoint_committed(slot(0), 2)->head.at, second(3));
  // A cut may tell it first.
  joined = waiting_cut(4, {1});
  joined.head.slots = {{slot(0), 2, "carl"}};
  EXPECT_FALSE(cuts.add(joined)) << "the checkpoint of step 2 is bob's";
  EXPECT_TRUE(cuts.checkpoint_committed(slot(0), 1).has_value());
}

/// Without a last checkpoint, as after a failure: no other tenant may ever join its slot.
TEST(WaitingCuts, DoNotWaitForATenantThatHasLeft) {
  WaitingCuts cuts(2, kCutEvery, {0, 0});
  cuts.tenant_joined(slot(0), 1);
  EXPECT_FALSE(cuts.checkpoint_committed(slot(0), 4));
  EXPECT_FALSE(cuts.add(waiting_cut(1, {4, 3}))) << "which it has passed";
  EXPECT_FALSE(cuts.add(waiting_cut(2, {9, 3})));
  EXPECT_FALSE(cuts.add(waiting_cut(3, {10, 4})));
  EXPECT_THAT(cuts.requests(second(3)), IsEmpty());
  EXPECT_THAT(cuts.requests(second(70)), SizeIs(1));
  cuts.tenant_left(slot(0), 1);
  EXPECT_EQ(cuts.size(), 1U);
  EXPECT_EQ(cuts.checkpoint_committed(slot(1), 3)->head.at, second(1));
  EXPECT_FALSE(cuts.add(waiting_cut(71, {0, 5})));
  EXPECT_THAT(cuts.requests(second(200)), IsEmpty());
  EXPECT_THAT(cuts.requests(second(300)), ElementsAre(WaitingCuts::Request{slot(1), 5}));
  EXPECT_TRUE(cuts.checkpoint_committed(slot(1), 5).has_value());
}

TEST(WaitingCuts, ThatAnEarlierTenantLeftIsHeardTooLate) {
  WaitingCuts cuts(1, kCutEvery, {0});
  cuts.tenant_joined(slot(0), 2);
  EXPECT_FALSE(cuts.add(waiting_cut(1, {5})));
  cuts.tenant_left(slot(0), 1);
  EXPECT_EQ(cuts.size(), 1U);
  cuts.tenant_left(slot(0), 2);
  EXPECT_EQ(cuts.size(), 0U);
}

/// 4 to 256 tenants with steps and checkpoints of their own, some of which save only at their end.
/// However they are staggered, a cut is written at least every two and a half intervals.
struct Hosted {
  explicit Hosted(uint64_t seed) : random(seed) {
    tenants.resize(size_t{4} << random.below(7));
    for (auto& tenant : tenants) {
      tenant.step_seconds = 1 + static_cast<int64_t>(random.below(5));
      tenant.every = random.below(4) == 0 ? 0 : 1 + static_cast<int64_t>(random.below(200));
    }
  }
  struct Training {
    int64_t step_seconds = 1;
    int64_t every = 0;  // checkpoint_every
    int64_t step = 0, saved = 0;
    std::optional<int64_t> open;  // step of the checkpoint that is being written
    int64_t ends = 0;             // when it will be committed
    bool is_asked = false;
  };
  std::vector<int64_t> steps() const {
    std::vector<int64_t> steps;
    for (const auto& tenant : tenants) steps.push_back(tenant.step);
    return steps;
  }

  RandomStream random;
  std::vector<Training> tenants;
};

TEST(WaitingCuts, OfAnyNumberOfStaggeredTenantsOneIsWrittenInEveryInterval) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Hosted hosted(seed);
    WaitingCuts cuts(hosted.tenants.size(), kCutEvery,
                     std::vector<int64_t>(hosted.tenants.size(), 0));
    std::optional<int64_t> first_save;
    int64_t last_written = 0, longest = 0;
    const auto wrote = [&](int64_t now, const std::optional<CutFile>& cut) {
      if (!cut) return;
      longest = std::max(longest, now - last_written);
      last_written = now;
    };
    for (int64_t now = 1; now <= 3600; ++now) {
      for (const auto& each : cuts.requests(second(now)))
        hosted.tenants[each.tenant.index()].is_asked = true;
      for (size_t i = 0; i < hosted.tenants.size(); ++i) {
        auto& tenant = hosted.tenants[i];
        if (tenant.open && now >= tenant.ends) {
          tenant.saved = *std::exchange(tenant.open, std::nullopt);
          wrote(now, cuts.checkpoint_committed(slot(i), tenant.saved));
        }
        const bool steps = now % tenant.step_seconds == 0;
        tenant.step += steps ? 1 : 0;
        const bool is_due = steps && tenant.every > 0 && tenant.step % tenant.every == 0;
        if ((!is_due && !tenant.is_asked) || tenant.open || tenant.step == tenant.saved) continue;
        tenant.is_asked = false;
        tenant.open = tenant.step;
        tenant.ends = now + 1 + static_cast<int64_t>(hosted.random.below(3));
        cuts.checkpoint_begun(slot(i), tenant.step);
        if (!first_save) first_save = last_written = now;
        wrote(now, cuts.add(waiting_cut(now, hosted.steps())));
        ASSERT_LE(cuts.size(), kWaitingCutsMax);
      }
    }
    ASSERT_TRUE(first_save.has_value()) << "seed " << seed;
    longest = std::max(longest, 3600 - last_written);
    // An interval until they are asked, and 16 of them every 3 seconds.
    const int64_t rounds = 3 * (1 + std::ssize(hosted.tenants) / int64_t{kAskedMax});
    EXPECT_LE(longest, 2 * 60 + 30 + rounds)
        << "seed " << seed << ", " << hosted.tenants.size() << " tenants";
  }
}

}  // namespace
}  // namespace primerl
