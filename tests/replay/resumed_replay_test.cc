// A run that was killed and resumed, several times, replayed at full depth: the engine of the
// replay computes what the engine of each start had computed, bit for bit.
//
// PRIMERL_REPLAY_SEEDS=1000 runs more seeds; PRIMERL_SEED runs one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "graph/base/random.h"
#include "runtime/backends/backends.h"
#include "runtime/replay/recovery.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/trace/read/trace_prefix.h"
#include "runtime/trace/record/recorder.h"
#include "tests/replay/replay_run.h"

namespace primerl::sim {
namespace {

namespace fs = std::filesystem;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

/// One start of a run, recorded from the first step of the run.
struct Start {
  fs::path folder;
  std::shared_ptr<const Trace> trace;
  std::vector<GroupId> steps;                           // of all groups, in order
  std::vector<std::pair<int64_t, size_t>> checkpoints;  // with the number of steps before it
  std::vector<std::string> violations;
  uint64_t num_followed = 0;
};

/// Leaves out the notes of engines that were made anew.
class WithoutNotes final : public DeliveryObserver {
 public:
  explicit WithoutNotes(DeliveryObserver& next) : next_(next) {}
  void on_start(GroupId group, Time now) override { next_.on_start(group, now); }
  void on_step(const StepRecord& record) override {
    StepRecord changed = record;
    changed.engine_resumes = {};
    next_.on_step(changed);
  }
  bool wants_emissions(LinkId link) const override { return next_.wants_emissions(link); }

 private:
  DeliveryObserver& next_;
};

/// Starts the run, or resumes it as if `before` had been killed after `num_steps` of its steps.
Start start_run(const DemoCase& demo, const fs::path& folder, const Start* before = nullptr,
                size_t num_steps = 0, bool has_notes = true) {
  const auto plan = demo_plan(demo);
  Start start;
  start.folder = folder;
  VirtualRecord record(*plan, folder, demo.seed);
  Recorder recorder(record.catalog(), record.writer());
  StepOrder order(recorder, start.steps);
  WithoutNotes without_notes(order);
  DemoHooks hooks;
  hooks.checkpoint_folder = [](int64_t step) {
    const fs::path made = scratch_folder() / "checkpoints" / fmt::format("step_{}", step);
    fs::create_directories(made);
    return made;
  };
  hooks.on_checkpoint = [&start](int64_t step) {
    start.checkpoints.push_back({step, start.steps.size()});
  };
  std::unique_ptr<Recovery> recovery;
  ResourceFactory factory = resource_factory();
  if (before == nullptr) {
    hooks.observer = &order;
  } else {
    std::vector<uint64_t> last(plan->groups.size(), 0);
    for (size_t i = 0; i < num_steps; ++i) last[before->steps[i].index()] += 1;
    RecoveryPoint point;
    for (const auto& [step, num_before] : before->checkpoints)
      if (num_before < num_steps) point = {hooks.checkpoint_folder(step), step};
    recovery = std::make_unique<Recovery>(
        plan, longest_prefix(*plan, trace_up_to(before->trace, last)),
        has_notes ? static_cast<DeliveryObserver*>(&order) : &without_notes);
    hooks.observer = recovery.get();
    hooks.step_source = recovery.get();
    factory = recovery_factory(std::move(factory), *recovery, {point});
    start.num_followed = recovery->num_steps();
  }
  hooks.factory = recording_factory(std::move(factory), recorder);
  start.violations = run_demo(demo, hooks).violations;
  record.close();
  start.trace = Trace::open(folder).value();
  return start;
}

uint64_t num_resumes_in(const Start& start) {
  uint64_t count = 0;
  for (uint32_t group = 0; group < start.trace->catalog().groups.size(); ++group)
    for (uint64_t step = 1; step <= start.trace->last_step(GroupId(group)); ++step)
      start.trace->visit_notes(GroupId(group), step,
                               [&](NoteKind kind, InstanceId, std::span<const std::byte>) {
                                 count += kind == NoteKind::kEngineResume ? 1 : 0;
                               });
  return count;
}

std::string difference_of(const Result<ReplayReport>& report) {
  if (!report.ok()) return report.error().text();
  if (report->is_identical()) return "";
  const Divergence& first = report->divergences.front();
  std::string text = fmt::format("step {} of group {}: {}", first.step, first.group, first.what);
  for (const std::string& detail : first.details) text += "\n  " + detail;
  return text;
}

DemoCase demo_of(uint64_t seed) {
  RandomStream draw(mix(seed, 11));
  DemoCase demo{.seed = seed};
  demo.max_off_policy_steps = draw.below(2) == 0 ? 0 : 4;
  demo.checkpoint_every = static_cast<int64_t>(draw.below(3));
  demo.fault = kFaults[draw.below(std::size(kFaults))];
  demo.holds_every = draw.below(3) == 0 ? 20 + draw.below(50) : 0;
  // In some runs not every unfinished sequence has a place in the queue of the new engine.
  if (draw.below(3) == 0)
    demo.sets = {"resource.engine.max_waiting=2", "resource.engine.max_running=2"};
  return demo;
}

fs::path start_folder(int number) { return scratch_folder() / fmt::format("start_{}", number); }

/// Otherwise the next test could not fail.
TEST(ResumedReplay, DiffersWithoutTheNotesOfItsEngines) {
  int num_different = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const DemoCase demo{.seed = seed};
    const Start first = start_run(demo, start_folder(0));
    const Start again =
        start_run(demo, start_folder(1), &first, first.steps.size() / 2, /*has_notes=*/false);
    num_different += difference_of(replay_demo(demo, again.folder)).empty() ? 0 : 1;
  }
  EXPECT_GT(num_different, 4);
}

TEST(ResumedReplay, RepeatsEveryStartOfAKilledRunAtFullDepth) {
  const uint64_t only = from_environment("PRIMERL_SEED", 0);
  const uint64_t most = only != 0 ? only : from_environment("PRIMERL_REPLAY_SEEDS", 40);
  uint64_t num_resumes = 0;
  for (uint64_t seed = only != 0 ? only : 1; seed <= most; ++seed) {
    SCOPED_TRACE(fmt::format("repeat with PRIMERL_SEED={}", seed));
    const DemoCase demo = demo_of(seed);
    RandomStream draw(mix(seed, 12));
    Start start = start_run(demo, start_folder(0));
    ASSERT_EQ(start.violations, std::vector<std::string>());
    for (int i = 1; i <= 3; ++i) {
      // Sometimes soon after it had been resumed, or before that place: then it is passed again.
      const size_t kill = draw.below(3) == 0 ? std::min<size_t>(start.steps.size(),
                                                                start.num_followed + draw.below(20))
                                             : draw.below(start.steps.size() + 1);
      SCOPED_TRACE(
          fmt::format("start {} killed after {} of {} steps", i, kill, start.steps.size()));
      start = start_run(demo, start_folder(i), &start, kill);
      ASSERT_EQ(start.violations, std::vector<std::string>());
      ReplayChoice choice;
      choice.num_threads = static_cast<uint32_t>(1 + draw.below(3));
      ASSERT_EQ(difference_of(replay_demo(demo, start.folder, choice)), "");
    }
    num_resumes += num_resumes_in(start);
  }
  EXPECT_GT(num_resumes, only == 0 ? most : 0) << "engines must have been made anew";
}

}  // namespace
}  // namespace primerl::sim
