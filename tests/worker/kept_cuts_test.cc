// The cuts of a process that are kept: the two newest, and few older ones that cover the whole
// record.
#include "runtime/worker/kept_cuts.h"

#include <gtest/gtest.h>

#include <vector>

#include "graph/base/random.h"

namespace primerl {
namespace {

Time after(double seconds) {
  return Time() + Duration::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

/// Adds a cut, and then removes superfluous cuts.
void add(std::vector<KeptCut>& kept, double seconds, uint64_t segment, uint64_t retired) {
  const uint64_t number = kept.empty() ? 1 : kept.back().number + 1;
  kept.push_back({number, segment, after(seconds)});
  while (const auto index = cut_to_remove(kept, retired))
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(*index));
}

TEST(KeptCuts, AllStayUpToTheLimitAndNotOneMore) {
  std::vector<KeptCut> kept;
  const size_t most = kNewestCuts + kOlderCutsMax;
  for (size_t i = 1; i <= most; ++i) add(kept, static_cast<double>(i), 1, 0);
  EXPECT_EQ(kept.size(), most);
  add(kept, 1000, 1, 0);
  EXPECT_EQ(kept.size(), most);
}

TEST(KeptCuts, GoWithTheirRecordButForTheNewestTwo) {
  std::vector<KeptCut> kept;
  for (uint64_t i = 1; i <= 10; ++i) add(kept, static_cast<double>(i), i, 0);
  add(kept, 11, 11, 5);
  ASSERT_EQ(kept.size(), 6U);
  EXPECT_EQ(kept.front().segment, 6U);
  add(kept, 12, 12, 100);
  ASSERT_EQ(kept.size(), kNewestCuts);
  EXPECT_EQ(kept.front().segment, 11U);
}

// Ten hours with a cut each minute, or at random times. For any moment, the distance to the last
// cut before it is at most a fixed share of the distance to the end.
TEST(KeptCuts, AreTheDenserTheNewer) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    RandomStream draw(seed);
    std::vector<KeptCut> kept;
    double now = 0;
    for (int i = 0; i < 600; ++i) {
      now += seed == 1 ? 60 : 1 + static_cast<double>(draw.below(120));
      add(kept, now, 1, 0);
      ASSERT_LE(kept.size(), kNewestCuts + kOlderCutsMax);
      ASSERT_EQ(kept.front().number, 1U) << "the oldest went, seed " << seed;
      ASSERT_EQ(kept.back().at, after(now));
    }
    for (size_t i = 0; i + 1 < kept.size(); ++i) {
      const double gap = (kept[i + 1].at - kept[i].at).to_seconds();
      const double age = (kept.back().at - kept[i].at).to_seconds();
      EXPECT_LE(gap, 240 + age / 2) << "seed " << seed << ", cut " << kept[i].number;
    }
  }
}

}  // namespace
}  // namespace primerl
