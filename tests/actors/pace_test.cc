#include "actors/rollout/pace.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace primerl {
namespace {

constexpr GateLimits kLimits{8, 9, 4, 1024};

/// A pipeline whose trainer takes 10 ms per batch. `generation` is the time in milliseconds in
/// which the engines make a batch at a given depth. Only the pace keeps the gate closed.
struct Pipe {
  GateLimits limits = kLimits;
  Pace pace = {};
  int64_t version = 0;
  Time now = {};
  int64_t num_spare = 0;
  bool is_paced = true;

  /// One version: the trainer waits `wait_ms` for its batch.
  void make(double wait_ms, double train_ms = 10) {
    const auto at = [](double ms) { return Duration::nanoseconds(static_cast<int64_t>(ms * 1e6)); };
    GateCounts counts;
    counts.opened = std::max<int64_t>(version - 1, 0) * 8 + pace.depth(limits);
    if (!is_paced) --counts.opened;
    counts.delivered = version * 8 + (wait_ms > 0 ? 0 : 8 + num_spare);
    if (version > 0) pace.update_counts(limits, counts, PolicyVersion(version), now);
    now = now + at(wait_ms);
    counts.delivered = version * 8 + 8 + num_spare;
    pace.update_counts(limits, counts, PolicyVersion(version), now);
    now = now + at(train_ms);
    ++version;
    counts.opened = (version - 1) * 8 + pace.depth(limits) - (is_paced ? 0 : 1);
    counts.delivered = version * 8 + num_spare + (num_spare > 0 ? 8 : 0);
    pace.see_made(limits, counts, PolicyVersion(version - 1), PolicyVersion(version), now);
  }
  int64_t depth() const { return pace.depth(limits); }
};

TEST(Pace, BeginsWithABatchInTrainingAndOneInTheMaking) {
  for (int64_t max = 0; max <= 9; ++max)
    EXPECT_EQ(Pace().depth({8, max, 4, 64}), max == 0 ? 8 : 16);
}

TEST(Pace, StaysThereWhileTheTrainerDoesNotWait) {
  Pipe pipe;
  for (int i = 0; i < 500; ++i) {
    pipe.make(0);
    ASSERT_EQ(pipe.depth(), 16);
  }
}

TEST(Pace, ATooSmallDepthGrowsAsFarAsNeeded) {
  // A rollout takes 40 ms at any load: with four batches in flight the trainer stays busy.
  Pipe pipe;
  int64_t shallow = 0, most = 0;
  for (int i = 0; i < 600; ++i) {
    const double interval = 50.0 * 8 / static_cast<double>(pipe.depth());
    pipe.make(std::max(interval - 10, 0.0));
    if (i < 60) continue;
    shallow += pipe.depth() < 36;
    most = std::max(most, pipe.depth());
  }
  EXPECT_LE(shallow, 60) << "but for trials of less";
  EXPECT_LE(most, 44);
}

TEST(Pace, EnginesThatAreBusyKeepItShallow) {
  // The engines need 20 ms per batch at any depth: the trainer waits half of the time.
  Pipe pipe;
  int64_t deep = 0;
  for (int i = 0; i < 1000; ++i) {
    pipe.make(10);
    deep += pipe.depth() > 16;
  }
  EXPECT_LE(deep, 100) << "but for trials of more";
}

TEST(Pace, NeverLeavesItsLimits) {
  for (int64_t max = 0; max <= 9; ++max) {
    Pipe pipe;
    pipe.limits.max_off_policy_steps = max;
    for (int i = 0; i < 300; ++i) {
      pipe.make(1000.0 / static_cast<double>(pipe.depth() * pipe.depth()));
      ASSERT_GE(pipe.depth(), pipe.limits.depth_min());
      ASSERT_LE(pipe.depth(), pipe.limits.depth_max());
    }
  }
}

TEST(Pace, ShrinksByWhatIsSpareAllTheLap) {
  Pipe pipe;
  while (pipe.depth() < 72) pipe.make(100000.0 / static_cast<double>(pipe.depth()), 0.1);
  pipe.num_spare = 8;
  const int64_t from = pipe.version;
  while (pipe.depth() > 16 && pipe.version < from + 200) pipe.make(0);
  EXPECT_EQ(pipe.depth(), 16);
}

TEST(Pace, WaitingForAnythingElseDoesNotDeepenIt) {
  Pipe pipe;
  pipe.is_paced = false;  // in-flight slots or tasks are missing
  for (int i = 0; i < 200; ++i) {
    pipe.make(50);
    ASSERT_EQ(pipe.depth(), 16);
  }
}

TEST(Pace, EqualInputsGiveEqualDepths) {
  Pipe one, two;
  for (int i = 0; i < 300; ++i) {
    const double wait = static_cast<double>(i * 7919 % 40);
    one.make(wait);
    two.make(wait);
    ASSERT_EQ(one.depth(), two.depth());
  }
}

}  // namespace
}  // namespace primerl
