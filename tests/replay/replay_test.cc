// A recorded run replays: the same steps and messages, on any number of threads and at every depth.
// If something was changed, the first difference is found and named.
//
// PRIMERL_REPLAY_SEEDS=20 runs fewer than the thousand seeds; PRIMERL_SEED runs one.
#include "tests/replay/replay_run.h"

#include <cstdlib>

#include <gmock/gmock.h>

#include "graph/base/random.h"

namespace primerl::sim {
namespace {

using ::testing::HasSubstr;

std::string told(const Result<ReplayReport>& report) {
  if (!report.ok()) return report.error().text();
  std::string text;
  for (const auto& divergence : report->divergences) {
    text += fmt::format("{} at step {} of group {}: {}\n", to_string(divergence.kind),
                        divergence.step, divergence.group.value, divergence.what);
    for (const auto& detail : divergence.details) text += "  " + detail + "\n";
  }
  for (const auto& note : report->notes) text += "note: " + note + "\n";
  return text;
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

/// One case per seed, chosen so that a thousand seeds cover every fault, limit and thread count.
DemoCase case_of(uint64_t seed) {
  RandomStream draw(mix(seed, 4));
  DemoCase demo;
  demo.seed = seed;
  demo.max_off_policy_steps = static_cast<int64_t>(draw.below(3));
  demo.fault = kFaults[draw.below(std::size(kFaults))];
  return demo;
}

constexpr ReplayDepth kDepths[] = {ReplayDepth::kFull, ReplayDepth::kLearner,
                                   ReplayDepth::kControl};

TEST(Replay, RepeatsEveryRunOnAnyNumberOfThreads) {
  const uint64_t only = from_environment("PRIMERL_SEED", 0);
  const uint64_t last = only != 0 ? only : from_environment("PRIMERL_REPLAY_SEEDS", 200);
  uint64_t num_compared = 0;
  for (uint64_t seed = only != 0 ? only : 1; seed <= last; ++seed) {
    const DemoCase demo = case_of(seed);
    DemoResult run;
    const auto folder = record_demo(demo, run);
    RandomStream draw(mix(seed, 5));
    ReplayChoice choice;
    choice.num_threads = 1 + static_cast<uint32_t>(draw.below(8));
    choice.depth = kDepths[draw.below(3)];
    const auto report = replay_demo(demo, folder, choice);
    ASSERT_TRUE(report.ok() && report->is_identical())
        << told(report) << choice.num_threads << " threads, depth "
        << static_cast<int>(choice.depth) << ", fault " << to_string(demo.fault)
        << ", repeat with PRIMERL_SEED=" << seed;
    ASSERT_EQ(report->total_steps(), run.num_steps) << "seed " << seed;
    num_compared += report->num_messages_compared;
  }
  EXPECT_GT(num_compared, last - (only != 0 ? only - 1 : 0));
}

TEST(Replay, PlaysOneNodeAloneFromTheRecord) {
  const DemoCase demo = case_of(3);
  DemoResult run;
  const auto folder = record_demo(demo, run);
  const auto plan = demo_plan(demo);
  for (const auto& instance : plan->instances) {
    const std::string& node = plan->node(instance.node).name;
    for (ReplayDepth depth : kDepths) {
      ReplayChoice choice;
      choice.real_nodes = {node};
      choice.depth = depth;
      const auto report = replay_demo(demo, folder, choice);
      ASSERT_TRUE(report.ok() && report->is_identical()) << node << ": " << told(report);
      EXPECT_GT(report->num_steps[host_of(*plan, node).index()], 0U) << node;
    }
  }
}

TEST(Replay, TakesTheTrainerAloneWithoutTheOthers) {
  const DemoCase demo{.seed = 5};
  DemoResult run;
  const auto folder = record_demo(demo, run);
  ReplayChoice choice;
  choice.real_nodes = {"trainer"};
  const auto report = replay_demo(demo, folder, choice);
  ASSERT_TRUE(report.ok() && report->is_identical()) << told(report);
  const auto plan = demo_plan(demo);
  for (uint32_t i = 0; i < plan->groups.size(); ++i)
    EXPECT_EQ(report->num_steps[i] > 0, GroupId(i) == host_of(*plan, "trainer"));
}

// Negative tests
// -----------------------------------------------------------------------------------

/// The demo of seed 11 with one delivery of `node` changed on its way to the trace.
struct Changed {
  DemoCase demo{.seed = 11};
  std::filesystem::path folder;
  std::shared_ptr<const Plan> plan = demo_plan(demo);

  bool is_delivery_of(std::span<std::byte> head, std::string_view node, uint64_t step) const {
    const auto& frame = *reinterpret_cast<const DeliveryFrame*>(head.data());
    return frame.header.kind == static_cast<uint8_t>(TraceFrameKind::kDelivery) &&
           frame.header.group == host_of(*plan, node).value && frame.step == step;
  }
  void record(const Tamper& tamper) {
    DemoResult run;
    folder = record_demo(demo, run, tamper);
  }
};

void expect_first(const Result<ReplayReport>& report, const Plan& plan, std::string_view node,
                  uint64_t step, DivergenceKind kind, std::string_view words) {
  ASSERT_TRUE(report.ok()) << told(report);
  ASSERT_FALSE(report->is_identical());
  const Divergence& first = report->divergences.front();
  EXPECT_EQ(first.group, host_of(plan, node)) << told(report);
  EXPECT_EQ(first.step, step) << told(report);
  EXPECT_EQ(to_string(first.kind), to_string(kind)) << told(report);
  EXPECT_THAT(first.what, HasSubstr(words)) << told(report);
}

TEST(Replay, FindsAFlippedByteOfAPayloadWhereItIsRead) {
  Changed changed;
  int num_groups = 0;
  MessageKey flipped;
  changed.record([&](std::span<std::byte> head, std::vector<std::byte>& tail) {
    auto& frame = *reinterpret_cast<PayloadFrame*>(head.data());
    if (frame.header.kind != static_cast<uint8_t>(TraceFrameKind::kPayload)) return true;
    if (frame.header.group != host_of(*changed.plan, "rollout").value || ++num_groups != 3)
      return true;
    tail[frame.body_bytes / 2] ^= std::byte{1};
    flipped = {LinkId(frame.link), frame.incarnation, frame.sequence};
    return true;
  });
  ASSERT_EQ(flipped.sequence, 3U);
  ReplayChoice choice;
  choice.real_nodes = {"trainer"};
  const auto report = replay_demo(changed.demo, changed.folder, choice);
  const auto trace = Trace::open(changed.folder);
  ASSERT_TRUE(trace.ok());
  const auto delivered = (*trace)->delivery(flipped);
  ASSERT_TRUE(delivered.has_value());
  expect_first(report, *changed.plan, "trainer", delivered->step, DivergenceKind::kUnreadable,
               "message 3 of 'rollout.group -> trainer.group'");
}

TEST(Replay, NamesTheStepThatIsMissingFromTheRecord) {
  Changed changed;
  changed.record([&](std::span<std::byte> head, std::vector<std::byte>&) {
    return !changed.is_delivery_of(head, "router", 17);
  });
  const auto report = replay_demo(changed.demo, changed.folder);
  expect_first(report, *changed.plan, "router", 17, DivergenceKind::kUnreadable,
               "step 17 of 'router' is not in the record");
}

TEST(Replay, FindsTwoDeliveriesThatWereSwapped) {
  Changed changed;
  // Steps whose input comes over one link, so that the swap is visible directly.
  DeliveryFrame held = {};
  bool is_held = false;
  uint64_t swapped_at = 0;
  changed.record([&](std::span<std::byte> head, std::vector<std::byte>&) {
    auto& frame = *reinterpret_cast<DeliveryFrame*>(head.data());
    if (frame.header.kind != static_cast<uint8_t>(TraceFrameKind::kDelivery) ||
        frame.header.group != host_of(*changed.plan, "router").value || swapped_at != 0)
      return true;
    if (is_held && frame.subject == held.subject && frame.step_kind == held.step_kind &&
        frame.step > 10) {
      // The step before has been written. This step gets the same input, which is then requested
      // twice.
      frame.sequence = held.sequence;
      frame.payload_check = held.payload_check;
      swapped_at = frame.step;
      return true;
    }
    held = frame;
    is_held = frame.step_kind == static_cast<uint8_t>(StepKind::kMessage);
    return true;
  });
  ASSERT_NE(swapped_at, 0U);
  const auto report = replay_demo(changed.demo, changed.folder);
  expect_first(report, *changed.plan, "router", swapped_at, DivergenceKind::kCourse, "deliver");
}

TEST(Replay, FindsTheFirstMessageThatAChangedActorSendsOtherwise) {
  const DemoCase demo{.seed = 11};
  DemoResult run;
  const auto folder = record_demo(demo, run);
  // The environment of this case gives every third task the reward 0.5, like a changed program.
  ReplayChoice choice;
  choice.plan = demo_plan({.seed = 11, .fault = Fault::kFilteredGroups});
  const auto report = replay_demo(demo, folder, choice);
  ASSERT_TRUE(report.ok()) << told(report);
  ASSERT_EQ(report->divergences.size(), 1U) << told(report);
  const Divergence& first = report->divergences.front();
  EXPECT_EQ(first.group, host_of(*choice.plan, "env"));
  EXPECT_EQ(to_string(first.kind), to_string(DivergenceKind::kEmission));
  EXPECT_THAT(first.what, HasSubstr("env.observation -> rollout.observation"));
  EXPECT_THAT(first.details, ::testing::Contains(HasSubstr("reward: recorded")));
}

TEST(Replay, FindsAHandlerThatFailsNowAndDidNotThen) {
  const DemoCase demo{.seed = 11};
  DemoResult run;
  const auto folder = record_demo(demo, run);
  ReplayChoice choice;
  choice.plan = demo_plan({.seed = 11, .fault = Fault::kNanReward});
  const auto report = replay_demo(demo, folder, choice);
  ASSERT_TRUE(report.ok()) << told(report);
  ASSERT_EQ(report->divergences.size(), 1U) << told(report);
  EXPECT_EQ(to_string(report->divergences.front().kind), to_string(DivergenceKind::kOutcome));
  EXPECT_THAT(report->divergences.front().what, HasSubstr("the reward nan"));
}

TEST(Replay, ShowsWhatAnotherOptionWouldHaveChanged) {
  const DemoCase demo{.seed = 11, .max_off_policy_steps = 2};
  DemoResult run;
  const auto folder = record_demo(demo, run);
  ReplayChoice choice;
  choice.plan = demo_plan({.seed = 11, .max_off_policy_steps = 0});
  const auto report = replay_demo(demo, folder, choice);
  ASSERT_TRUE(report.ok()) << told(report);
  ASSERT_FALSE(report->is_identical());
  EXPECT_EQ(report->divergences.front().group, host_of(*choice.plan, "rollout")) << told(report);
}

TEST(Replay, RefusesATraceOfAnotherGraph) {
  const DemoCase demo{.seed = 11};
  DemoResult run;
  const auto folder = record_demo(demo, run);
  ReplayChoice choice;
  choice.plan = demo_plan({.seed = 11, .without_edge = "trainer.ended -> rollout.ended"});
  const auto report = replay_demo(demo, folder, choice);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().text(), HasSubstr("another graph"));
}

}  // namespace
}  // namespace primerl::sim
