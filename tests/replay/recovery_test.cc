// A run that was killed is resumed from its record. It follows every recorded step, resumes, and
// ends like the uninterrupted run.
//
// PRIMERL_RECOVERY_SEEDS=2 runs fewer than the two hundred seeds; PRIMERL_SEED runs one.
#include "runtime/replay/recovery.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <gmock/gmock.h>

#include "graph/base/json.h"
#include "graph/base/random.h"
#include "kernels/scripted/scripted_learner.h"
#include "runtime/backends/backends.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/trace/read/trace_prefix.h"
#include "runtime/trace/record/recorder.h"
#include "runtime/wire/msgpack_codec.h"
#include "tests/replay/replay_run.h"

namespace primerl::sim {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

/// The results of a whole run, with the order of its steps over all groups.
class Uninterrupted {
 public:
  /// A cut that is complete after `complete` steps of all groups.
  struct Cut {
    ProcessCut cut;
    size_t complete = 0;
    size_t num_lines = 0;  // of rollouts.jsonl, when the rollout node was cut
  };

  /// `cuts_every`: events between the end of a cut and the next; 0 = no cuts.
  explicit Uninterrupted(DemoCase demo, uint64_t cuts_every = 0)
      : demo_(demo), plan_(demo_plan(demo)) {
    const fs::path folder = scratch_folder() / "uninterrupted";
    fs::remove_all(folder);
    checkpoints_ = folder / "checkpoints";
    VirtualRecord record(*plan_, folder / "trace");
    Recorder recorder(record.catalog(), record.writer());
    StepOrder order(recorder, steps_);
    DemoHooks hooks;
    hooks.observer = &order;
    hooks.factory = recording_factory(resource_factory(), recorder);
    hooks.checkpoint_folder = [this](int64_t step) {
      begun_[step] = steps_.size();
      return checkpoint(step);
    };
    // Committed within a step that is not recorded yet.
    hooks.on_checkpoint = [this](int64_t step) { committed_.push_back({step, steps_.size()}); };
    Cutter cutter(*this);
    uint64_t num_events = 0;
    if (cuts_every > 0) {
      hooks.cuts = &cutter;
      hooks.on_line = [&](std::string_view) { ++cutter.num_lines; };
      hooks.after_event = [&](VirtualExecutor& executor) -> Status {
        if (!cutter.is_open() && ++num_events % cuts_every == 0) executor.cut(cutter.begin());
        return ok();
      };
    }
    result_ = run_demo(demo_, hooks);
    record.close();
    trace_ = Trace::open(folder / "trace").value();
  }

  const DemoResult& result() const { return result_; }
  uint64_t num_in_transit() const { return num_in_transit_; }
  size_t num_cuts() const { return cuts_.size(); }
  /// Recorded steps of all groups between the begin of a checkpoint and its commit.
  size_t num_steps_while_saving() const {
    size_t sum = 0;
    for (const auto& [step, committed] : committed_) sum += committed - begun_.at(step);
    return sum;
  }
  uint64_t num_steps_after(size_t cut) const {
    uint64_t before = 0;
    for (const GroupState& state : cuts_[cut].cut.groups) before += state.num_steps;
    return trace_->num_steps() - before;
  }
  Result<ReplayReport> replay_from(size_t cut) const {
    const RunCuts cuts(*plan_, {std::make_shared<const ProcessCut>(cuts_[cut].cut)});
    return replay_from_cuts(plan_, trace_, cuts);
  }
  size_t num_steps() const { return steps_.size(); }
  fs::path checkpoint(int64_t step) const {
    const fs::path folder = checkpoints_ / fmt::format("step_{}", step);
    fs::create_directories(folder);
    return folder;
  }
  /// The final state of the learner.
  std::string learner() const { return state_in(checkpoint(kMaxSteps)); }
  static std::string state_in(const fs::path& checkpoint) {
    std::ifstream stream(checkpoint / "learner" / "state.json");
    std::stringstream text;
    text << stream.rdbuf();
    return text.str();
  }

  struct Resumed {
    DemoResult result;
    std::string learner;
    bool went_live = false;
    uint64_t num_followed = 0;  // number of followed steps
    uint64_t num_dropped = 0;   // number of dropped steps
    std::string dropped;
  };
  /// Reduces the last recorded step of groups.
  using Tear = std::function<void(std::vector<uint64_t>& last)>;
  /// Resumes the run after a kill at `num_steps` steps. `between`: after the files of the next step
  /// were written but before it was recorded. `newest`: a checkpoint that exists although the
  /// record does not show it.
  Resumed resume(size_t num_steps, bool between, ResourceFactory make = resource_factory(),
                 int64_t newest = 0, const Tear& tear = {}) const {
    std::vector<uint64_t> last(plan_->groups.size(), 0);
    for (size_t i = 0; i < num_steps; ++i) last[steps_[i].index()] += 1;
    for (const auto& [step, before] : committed_)
      if (before < num_steps || (between && before == num_steps)) newest = step;
    if (tear) tear(last);
    const Cut* from = nullptr;
    RunCuts cuts;
    RecordPrefix prefix;
    // Skips cuts and checkpoints that are newer than the remaining record, as a run does.
    for (size_t num_complete = num_steps;;) {
      from = newest_cut(num_complete, newest);
      cuts = {};
      if (from != nullptr) cuts = RunCuts(*plan_, {std::make_shared<const ProcessCut>(from->cut)});
      prefix = longest_prefix(*plan_, trace_up_to(trace_, last), cuts);
      if (!prefix.newer_cuts.empty()) {
        num_complete = from->complete - 1;
        continue;
      }
      const int64_t taken = learner_steps_in(*plan_, *prefix.trace, cuts).value().front();
      if (!tear || taken >= newest) break;
      newest = 0;
      for (const auto& [step, before] : committed_)
        if (step <= taken) newest = step;
    }
    Resumed resumed;
    resumed.num_dropped = prefix.num_dropped;
    resumed.dropped = prefix.dropped;
    const auto recovery = std::make_unique<Recovery>(plan_, std::move(prefix), nullptr,
                                                     ProcessId::none(), std::move(cuts));
    const fs::path again = scratch_folder() / "resumed";
    fs::remove_all(again);
    DemoHooks hooks;
    hooks.observer = recovery.get();
    hooks.step_source = recovery.get();
    hooks.factory = recovery_factory(std::move(make), *recovery,
                                     {{newest == 0 ? fs::path() : checkpoint(newest), newest}});
    hooks.checkpoint_folder = [&](int64_t step) {
      if (step <= newest) return checkpoint(step);
      const fs::path folder = again / fmt::format("step_{}", step);
      fs::create_directories(folder);
      return folder;
    };
    hooks.is_judged = from == nullptr;
    resumed.result = run_demo(demo_, hooks);
    resumed.num_followed = recovery->num_steps();
    if (from != nullptr) {
      auto& lines = resumed.result.rollouts;
      const auto& before = result_.rollouts;
      lines.insert(lines.begin(), before.begin(),
                   before.begin() + static_cast<std::ptrdiff_t>(from->num_lines));
    }
    resumed.went_live = recovery->is_live();
    resumed.learner = state_in(hooks.checkpoint_folder(kMaxSteps));
    return resumed;
  }

 private:
  /// Remembers the order of steps. Collects cuts, each with the sizes of files at that time.
  class Cutter final : public CutSink {
   public:
    explicit Cutter(Uninterrupted& run)
        : run_(run),
          collector_(run.plan_, make_wiring(*run.plan_), ProcessId(0), [this](ProcessCut&& cut) {
            // While a run drains, no state is kept: its record is not followed.
            if (std::ranges::any_of(cut.groups, &GroupState::is_draining)) return;
            // Encoded and decoded, like a file.
            const auto bytes = written_state_of(cut);
            run_.cuts_.push_back({read_cut(bytes), run_.steps_.size(), lines_of_rollout_});
          }) {}
    uint64_t begin() { return collector_.begin(); }
    bool is_open() const { return collector_.is_open(); }
    void add_part(uint64_t number, GroupState&& state) override {
      if (state.group == host_of(*run_.plan_, "rollout")) lines_of_rollout_ = num_lines;
      collector_.add_part(number, std::move(state));
    }
    void add_in_transit(uint64_t number, SavedMessage&& message) override {
      ++run_.num_in_transit_;
      collector_.add_in_transit(number, std::move(message));
    }
    size_t num_lines = 0;

   private:
    static SavedFields written_state_of(const ProcessCut& cut) {
      MsgpackWriter writer;
      wire::write(writer, cut);
      return {Blob(writer.take_body()), writer.take_blobs()};
    }
    static ProcessCut read_cut(const SavedFields& bytes) {
      MsgpackReader reader(bytes.body.bytes(), bytes.blobs);
      ProcessCut cut;
      wire::read(reader, cut);
      CHECK(reader.finish().ok(), "a cut could not be read");
      return cut;
    }
    Uninterrupted& run_;
    size_t lines_of_rollout_ = 0;
    CutCollector collector_;
  };

  /// The cut from which a run resumes after a kill at `num_steps` steps: complete by then, and not
  /// newer than the learner's checkpoint.
  const Cut* newest_cut(size_t num_steps, int64_t newest_checkpoint) const {
    const Cut* found = nullptr;
    for (const Cut& each : cuts_) {
      if (each.complete > num_steps) break;
      int64_t taken = 0;
      for (const GroupState& state : each.cut.groups) {
        const auto steps_of = learner_steps_of(*plan_, state).value();
        for (const auto& [tenant, steps] : steps_of) taken += steps;
      }
      if (taken <= newest_checkpoint) found = &each;
    }
    return found;
  }

  const DemoCase demo_;
  const std::shared_ptr<const Plan> plan_;
  std::vector<Cut> cuts_;
  uint64_t num_in_transit_ = 0;
  fs::path checkpoints_;
  std::vector<GroupId> steps_;
  std::map<int64_t, size_t> begun_;  // by step of a checkpoint: number of steps of all groups
  // Step, and number of steps of all groups before it.
  std::vector<std::pair<int64_t, size_t>> committed_;
  std::shared_ptr<const Trace> trace_;
  DemoResult result_;
};

/// Lines that only one of two runs wrote, in any order. Rollouts that were begun for a version
/// after the last, and cancelled by the end of the run, are ignored, because they depend on timing.
std::string difference(std::vector<std::string> a, std::vector<std::string> b) {
  const auto is_cancelled = [](const std::string& line) {
    return line.find("\"end\":\"cancelled\"") != std::string::npos;
  };
  std::erase_if(a, is_cancelled);
  std::erase_if(b, is_cancelled);
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  std::vector<std::string> only;
  std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(only));
  std::string text;
  for (const auto& line : only) text += line + "\n";
  return text;
}

/// Seeds [first, last] of the two hundred: the share of one test program, so that several can run
/// in parallel.
class RecoverySeeds : public ::testing::TestWithParam<uint64_t> {
 protected:
  static constexpr uint64_t kSeeds = 40, kShares = 8;
  template <class Body>
  void for_each_seed(const Body& body) const {
    if (const uint64_t only = from_environment("PRIMERL_SEED", 0); only != 0) return body(only);
    const uint64_t most = from_environment("PRIMERL_RECOVERY_SEEDS", kSeeds);
    for (uint64_t seed = 1 + GetParam(); seed <= most && !HasFatalFailure(); seed += kShares)
      body(seed);
  }
};

/// In every second run a person pauses the engines now and then. That is followed too, and a pause
/// that is valid at the kill is valid after it.
uint64_t holds_of(uint64_t seed) { return seed % 2 == 1 ? 20 + seed % 50 : 0; }

/// In two of three runs checkpoints are being written for some time, so that kills meet them.
std::vector<std::string> saves_of(uint64_t seed) {
  if (seed % 3 == 0) return {};
  return {fmt::format("resource.learner.save_time=\"{}ms\"", seed % 3 == 1 ? 20 : 300)};
}

/// In strictly on-policy training, the trained data does not depend on timing. So after a kill at
/// any step, the rest of a resumed run must give the same result as the uninterrupted run, although
/// its steps have another order.
TEST_P(RecoverySeeds, AResumedRunEndsLikeTheUninterruptedOne) {
  for_each_seed([](uint64_t seed) {
    const Uninterrupted run({.seed = seed,
                             .max_off_policy_steps = 0,
                             .checkpoint_every = 2,
                             .holds_every = holds_of(seed),
                             .sets = saves_of(seed)});
    ASSERT_THAT(run.result().violations, IsEmpty()) << "seed " << seed;
    ASSERT_EQ(run.num_steps_while_saving() > 0, seed % 3 != 0) << "seed " << seed;
    for (size_t kill = 0; kill <= run.num_steps(); ++kill) {
      const auto resumed = run.resume(kill, mix(seed, kill) % 2 == 0);
      const std::string where = fmt::format(
          "killed after {} of {} steps, repeat with PRIMERL_SEED={}", kill, run.num_steps(), seed);
      ASSERT_TRUE(resumed.result.outcome.status.ok())
          << where << ": " << resumed.result.outcome.status.error().text();
      ASSERT_TRUE(resumed.went_live) << where;
      ASSERT_THAT(resumed.result.violations, IsEmpty()) << where;
      ASSERT_EQ(difference(resumed.result.rollouts, run.result().rollouts), "") << where;
      ASSERT_EQ(resumed.learner, run.learner()) << where;
    }
  });
}

/// The run resumes from a cut: it follows only the record after the cut.
TEST_P(RecoverySeeds, ARunResumedFromACutEndsLikeTheUninterruptedOne) {
  uint64_t num_cuts = 0, num_in_transit = 0, num_steps = 0, num_followed = 0;
  for_each_seed([&](uint64_t seed) {
    const DemoCase demo{.seed = seed,
                        .max_off_policy_steps = 0,
                        .checkpoint_every = 1,
                        .holds_every = holds_of(seed),
                        .sets = saves_of(seed)};
    const Uninterrupted run(demo, 10 + seed % 90);
    ASSERT_THAT(run.result().violations, IsEmpty()) << "seed " << seed;
    num_cuts += run.num_cuts();
    num_in_transit += run.num_in_transit();
    RandomStream draw(mix(seed, 7));
    for (int i = 0; i < 25; ++i) {
      const size_t kill = draw.below(run.num_steps() + 1);
      const auto resumed = run.resume(kill, draw.below(2) == 0);
      const std::string where = fmt::format(
          "killed after {} of {} steps, repeat with PRIMERL_SEED={}", kill, run.num_steps(), seed);
      ASSERT_TRUE(resumed.result.outcome.status.ok())
          << where << ": " << resumed.result.outcome.status.error().text();
      ASSERT_TRUE(resumed.went_live) << where;
      ASSERT_THAT(resumed.result.violations, IsEmpty()) << where;
      ASSERT_EQ(difference(resumed.result.rollouts, run.result().rollouts), "") << where;
      ASSERT_EQ(resumed.learner, run.learner()) << where;
      num_steps += kill;
      num_followed += resumed.num_followed;
    }
  });
  EXPECT_GT(num_cuts, 0U);
  EXPECT_GT(num_in_transit, 0U);
  EXPECT_LT(num_followed, num_steps);
}

/// Parts at the end of some groups' records are missing, as after a power failure. The consistent
/// part is followed, and the run ends like the uninterrupted one.
TEST_P(RecoverySeeds, ATornRecordIsFollowedAsFarAsItFitsTogether) {
  uint64_t num_dropped = 0, num_torn = 0;
  for_each_seed([&](uint64_t seed) {
    const DemoCase demo{
        .seed = seed, .max_off_policy_steps = 0, .checkpoint_every = 1, .sets = saves_of(seed)};
    const Uninterrupted run(demo, seed % 3 == 0 ? 0 : 10 + seed % 90);
    RandomStream draw(mix(seed, 9));
    for (int i = 0; i < 25; ++i) {
      const size_t kill = draw.below(run.num_steps() + 1);
      const uint64_t most = 1 + draw.below(40);
      const auto tear = [&](std::vector<uint64_t>& last) {
        for (uint64_t& step : last) {
          const uint64_t torn = draw.below(2) == 0 ? 0 : draw.below(most);
          num_torn += std::min(step, torn);
          step -= std::min(step, torn);
        }
      };
      const auto resumed = run.resume(kill, false, resource_factory(), 0, tear);
      num_dropped += resumed.num_dropped;
      const std::string where =
          fmt::format("killed after {} of {} steps, {}, repeat with PRIMERL_SEED={}", kill,
                      run.num_steps(), resumed.dropped, seed);
      ASSERT_TRUE(resumed.result.outcome.status.ok())
          << where << ": " << resumed.result.outcome.status.error().text();
      ASSERT_TRUE(resumed.went_live) << where;
      ASSERT_THAT(resumed.result.violations, IsEmpty()) << where;
      ASSERT_EQ(difference(resumed.result.rollouts, run.result().rollouts), "") << where;
      ASSERT_EQ(resumed.learner, run.learner()) << where;
    }
  });
  EXPECT_GT(num_torn, 0U);
  EXPECT_GT(num_dropped, 0U);
}

/// `replay --from`: the rest of a run, replayed from any of its cuts at control depth.
TEST_P(RecoverySeeds, EveryCutIsAPlaceToReplayFrom) {
  for_each_seed([](uint64_t seed) {
    DemoCase demo{.seed = seed, .checkpoint_every = 1, .sets = saves_of(seed)};
    demo.fault = kFaults[seed % std::size(kFaults)];
    const Uninterrupted run(demo, 10 + seed % 90);
    for (size_t i = 0; i < run.num_cuts(); ++i) {
      const auto report = run.replay_from(i);
      const std::string where = fmt::format("cut {} of {}, fault {}, repeat with PRIMERL_SEED={}",
                                            i, run.num_cuts(), to_string(demo.fault), seed);
      ASSERT_TRUE(report.ok()) << where << ": " << report.error().text();
      ASSERT_TRUE(report->is_identical()) << where << ": " << report->divergences.front().what;
      ASSERT_EQ(report->total_steps(), run.num_steps_after(i)) << where;
    }
  });
}

/// Off policy and under every fault: no rollout ends twice, none is lost, and the run ends like the
/// uninterrupted one.
TEST_P(RecoverySeeds, ARunResumedFromACutLosesNothingUnderEveryFault) {
  for_each_seed([](uint64_t seed) {
    RandomStream draw(mix(seed, 8));
    DemoCase demo{.seed = seed, .checkpoint_every = 1, .sets = saves_of(seed)};
    demo.max_off_policy_steps = static_cast<int64_t>(draw.below(3));
    demo.fault = kFaults[draw.below(std::size(kFaults))];
    const Uninterrupted run(demo, 10 + seed % 90);
    for (int i = 0; i < 20; ++i) {
      const size_t kill = draw.below(run.num_steps() + 1);
      const bool is_torn = draw.below(2) == 0;
      const auto tear = [&](std::vector<uint64_t>& last) {
        for (uint64_t& step : last) step -= std::min(step, is_torn ? draw.below(30) : 0);
      };
      const auto resumed = run.resume(kill, draw.below(2) == 0, resource_factory(), 0, tear);
      const std::string where = fmt::format(
          "killed after {} of {} steps, limit {}, fault {}, {}, repeat with PRIMERL_SEED={}", kill,
          run.num_steps(), demo.max_off_policy_steps, to_string(demo.fault), resumed.dropped, seed);
      ASSERT_TRUE(resumed.result.outcome.status.ok())
          << where << ": " << resumed.result.outcome.status.error().text();
      ASSERT_EQ(resumed.result.outcome.end, run.result().outcome.end) << where;
      std::set<std::string> ended;
      for (const std::string& line : resumed.result.rollouts)
        ASSERT_TRUE(ended.insert(parse_json(line, "a line")->find("rollout")->as_string()).second)
            << where << ": " << line;
    }
  });
}

/// Off policy and under every fault the rest of the run differs, but is valid. Every bound, balance
/// and guarantee of the simulation holds over the recorded and the new steps together.
TEST_P(RecoverySeeds, AResumedRunKeepsItsPromisesUnderEveryFault) {
  for_each_seed([](uint64_t seed) {
    RandomStream draw(mix(seed, 6));
    DemoCase demo{.seed = seed, .checkpoint_every = 1, .sets = saves_of(seed)};
    demo.max_off_policy_steps = static_cast<int64_t>(draw.below(3));
    demo.fault = kFaults[draw.below(std::size(kFaults))];
    const Uninterrupted run(demo);
    ASSERT_THAT(run.result().violations, IsEmpty()) << "seed " << seed;
    for (int i = 0; i < 20; ++i) {
      const size_t kill = draw.below(run.num_steps() + 1);
      const auto resumed = run.resume(kill, draw.below(2) == 0);
      const std::string where = fmt::format(
          "killed after {} of {} steps, limit {}, fault {}, repeat with PRIMERL_SEED={}", kill,
          run.num_steps(), demo.max_off_policy_steps, to_string(demo.fault), seed);
      ASSERT_TRUE(resumed.result.outcome.status.ok())
          << where << ": " << resumed.result.outcome.status.error().text();
      ASSERT_THAT(resumed.result.violations, IsEmpty()) << where;
      ASSERT_EQ(resumed.result.outcome.end, run.result().outcome.end) << where;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Recovery, RecoverySeeds, ::testing::Range(uint64_t{0}, uint64_t{8}));

/// Another program or machine, whose learner computes a different result.
TEST(Recovery, ATrainingStepThatComesOutOtherwiseStopsItAndIsNamed) {
  const Uninterrupted run({.seed = 3, .max_off_policy_steps = 0});
  const ResourceFactory otherwise = [](const Plan& plan,
                                       int32_t index) -> Result<std::shared_ptr<Resource>> {
    if (plan.resources[static_cast<size_t>(index)].kind != "learner")
      return resource_factory()(plan, index);
    ScriptedLearnerOptions options;
    options.seed = 99;
    ASSIGN_OR_RETURN(auto made, make_scripted_learner(options));
    return std::shared_ptr<Resource>(std::move(made));
  };
  const auto resumed = run.resume(run.num_steps() / 2, false, otherwise);
  EXPECT_FALSE(resumed.went_live);
  ASSERT_FALSE(resumed.result.outcome.status.ok());
  const std::string why = resumed.result.outcome.status.error().text();
  EXPECT_THAT(why, HasSubstr("'trainer'"));
  EXPECT_THAT(why, HasSubstr("training step 1 of this start came out otherwise than recorded"));
}

/// After a crash of the machine, a checkpoint may be newer than the end of the record.
TEST(Recovery, ARecordThatEndsBeforeItsCheckpointIsRefused) {
  const Uninterrupted run({.seed = 3, .max_off_policy_steps = 0, .checkpoint_every = 2});
  const auto resumed = run.resume(run.num_steps() / 4, false, resource_factory(), 2);
  ASSERT_FALSE(resumed.result.violations.empty());
  EXPECT_THAT(resumed.result.violations.front(),
              HasSubstr("its record ends after 0 training steps"));
}

}  // namespace
}  // namespace primerl::sim
