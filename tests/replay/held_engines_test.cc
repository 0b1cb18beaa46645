// A person pauses the engines of a run now and then. The requests are part of the record. A replay
// repeats them, and a run that was killed resumes as it would have continued.
#include <gmock/gmock.h>

#include <set>

#include "actors/messages/load.h"
#include "runtime/trace/frames.h"
#include "tests/replay/replay_run.h"

namespace primerl::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string said_of(const Result<ReplayReport>& report) {
  if (!report.ok()) return report.error().text();
  std::string text;
  for (const auto& divergence : report->divergences) text += divergence.what + "\n";
  return text;
}

/// Every rollout with its end and its tokens, without values that depend on when it was made.
std::multiset<std::string> trained(const DemoResult& result) {
  std::multiset<std::string> lines;
  for (const auto& line : result.rollouts)
    if (line.find("\"end\":\"cancelled\"") == std::string::npos) lines.insert(line);
  return lines;
}

/// In strictly on-policy training, the trained data does not depend on when it was made.
TEST(HeldEngines, LoseNoRolloutAndChangeNoToken) {
  int64_t num_pauses = 0, num_leases_ended = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    DemoCase demo{.seed = seed, .max_off_policy_steps = 0};
    const DemoResult without = run_demo(demo);
    demo.holds_every = 20 + seed;
    const DemoResult with = run_demo(demo);
    ASSERT_THAT(with.violations, IsEmpty()) << "seed " << seed;
    EXPECT_EQ(trained(with), trained(without)) << "seed " << seed;
    EXPECT_EQ(with.num_of("failed"), without.num_of("failed")) << "seed " << seed;
    num_pauses += with.num_pauses;
    num_leases_ended += with.num_leases_ended;
  }
  EXPECT_GT(num_pauses, 20);
  EXPECT_GT(num_leases_ended, 0);
}

TEST(HeldEngines, AreHeldAtTheSameStepsByAReplay) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const DemoCase demo{.seed = seed, .holds_every = 15 + seed};
    DemoResult run;
    const auto folder = record_demo(demo, run);
    ASSERT_GT(run.num_pauses, 0) << "seed " << seed;
    for (const ReplayDepth depth : {ReplayDepth::kFull, ReplayDepth::kControl}) {
      ReplayChoice choice;
      choice.num_threads = seed % 3 == 0 ? 4 : 1;
      choice.depth = depth;
      const auto report = replay_demo(demo, folder, choice);
      ASSERT_TRUE(report.ok() && report->is_identical()) << said_of(report) << " seed " << seed;
      ASSERT_EQ(report->total_steps(), run.num_steps) << "seed " << seed;
    }
  }
}

TEST(HeldEngines, ACommandWhoseContentIsGoneFromTheRecordIsNamed) {
  const DemoCase demo{.seed = 3, .holds_every = 20};
  DemoResult run;
  const auto folder = record_demo(demo, run, [](std::span<std::byte> head, auto&) {
    const auto& frame = *reinterpret_cast<const NoteFrame*>(head.data());
    return frame.header.kind != static_cast<uint8_t>(TraceFrameKind::kNote) ||
           frame.header.count != static_cast<uint16_t>(NoteKind::kCommand);
  });
  const auto report = replay_demo(demo, folder);
  ASSERT_TRUE(report.ok()) << said_of(report);
  EXPECT_FALSE(report->is_identical());
  EXPECT_THAT(said_of(report), HasSubstr("the command that it was given cannot be read"));
}

/// No unpause arrives: after an hour the run continues by itself, and ends.
TEST(HeldEngines, ResumeWhenTheLeaseOfALostOwnerEnds) {
  DemoHooks hooks;
  uint64_t num_events = 0;
  hooks.after_event = [&](VirtualExecutor& executor) -> Status {
    if (++num_events == 60)
      executor.command({1, {}, Payload::of(EngineHold{"gone", Duration::seconds(3600)})});
    return ok();
  };
  const DemoResult run = run_demo({.seed = 5}, hooks);
  EXPECT_THAT(run.violations, IsEmpty());
  EXPECT_TRUE(run.outcome.status.ok());
  EXPECT_EQ(run.num_leases_ended, 1);
  EXPECT_GT(run.took, Duration::seconds(3600));
}

}  // namespace
}  // namespace primerl::sim
