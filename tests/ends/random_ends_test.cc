// Runs that end in a random way, by a disk without free space at every place that writes and by
// signals, are resumed and end as they should.
//
// Each seed is a test. PRIMERL_ENDS_SEEDS makes so many from PRIMERL_ENDS_FIRST on: 300 in
// `make soak`. PRIMERL_SEED makes one and prints its story.
#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <numeric>

#include "graph/base/random.h"
#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"
#include "tests/ends/faulty_disk.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

/// Files that a run writes, and how many calls on them a short run makes about.
struct Place {
  const char* name;
  const char* files;
  uint64_t calls_max;
};
constexpr Place kPlaces[] = {
    {"trace", "trace/*.ptr*", 24},       {"cut", "trace/*.cut*", 60},
    {"checkpoint", "checkpoints*", 120}, {"metrics", "metrics.jsonl", 60},
    {"rollouts", "rollouts.jsonl", 600}, {"blobs", "trace/blobs*", 40},
    {"run.json", "run.json*", 30},       {"logs", "logs*", 60},
    {"tensorboard", "tb*", 60},          {"follow", "*follow*", 6},
    {"folders", "trace*", 60},           {"any", "*", 800},
};

// A run whose trace has no space waits 30 s for it, and so does its drain. These limits are
// shorter: a run without a further step is ended, and stopped if its drain takes long.
constexpr Duration kStepMax = Duration::seconds(3) * kSlowness;
constexpr Duration kEndMax = Duration::seconds(5) * kSlowness;
/// All waits of a seed, so that a hang is reported before the limit of the test program.
constexpr Duration kSeedMax = Duration::seconds(120) * kSlowness;
/// Time between two looks at a run that continues.
constexpr Duration kLookAgain = Duration::milliseconds(5);

enum class Ending { kItself, kWorker, kLauncher, kBoth, kTerminate, kTerminateThenKill };
constexpr const char* kEndings[] = {"SIGTERM after more steps",
                                    "kill -9 of the workers",
                                    "kill -9 of the launcher",
                                    "kill -9 of all",
                                    "SIGTERM",
                                    "SIGTERM, then kill -9 of all"};

struct End {
  bool has_full_disk = true;
  const char* place = "";
  DiskFault fault;
  Ending ending = Ending::kItself;
  size_t num_lines = 0;    // of metrics.jsonl more, then it is ended where the disk is not full
  size_t lines_after = 0;  // likewise, after the disk was full

  std::string text() const {
    std::string text;
    if (has_full_disk)
      text = fmt::format(
          "full disk at {} after {} calls ({} refusals, {} %{}), ", place, fault.calls_before,
          fault.refusals_max == UINT64_MAX ? "endless" : std::to_string(fault.refusals_max),
          fault.percent, fault.is_whole ? ", then everywhere" : "");
    return text + fmt::format("after {} lines, {} after: {}", num_lines, lines_after,
                              kEndings[static_cast<size_t>(ending)]);
  }
};

/// Every place in turn; all else by chance.
End drawn_end(uint64_t seed, uint64_t number, RandomStream& draw) {
  End end;
  const Place& place = kPlaces[(seed + number * 5) % std::size(kPlaces)];
  end.has_full_disk = draw.below(5) > 0;
  end.place = place.name;
  end.fault.files = place.files;
  end.fault.calls_before = draw.below(place.calls_max);
  if (draw.below(3) == 0) end.fault.refusals_max = 1 + draw.below(4);
  if (draw.below(3) == 0) end.fault.percent = 60;
  end.fault.is_whole = draw.below(2) == 0;
  end.fault.seed = mix(seed, number);
  end.ending = static_cast<Ending>(draw.below(std::size(kEndings)));
  end.num_lines = draw.below(30);
  end.lines_after = draw.below(3) == 0 ? draw.below(10) : 0;
  if (end.ending == Ending::kItself) end.lines_after = 10;
  return end;
}

/// One run: ended so often, then resumed without a fault.
class EndedRun {
 public:
  explicit EndedRun(uint64_t seed)
      : seed_(seed), has_blobs_(seed % std::size(kPlaces) == 5), is_split_(seed % 4 == 3) {}

  void end_and_resume() {
    std::cout << "seed " << seed_ << std::endl;
    RandomStream draw(mix(seed_, 21));
    const uint64_t num_ends = 1 + draw.below(2);
    for (uint64_t number = 0; number < num_ends; ++number) {
      const End end = drawn_end(seed_, number, draw);
      story_ += fmt::format("\n  end {}: {}", number, end.text());
      start(end);
      if (::testing::Test::HasFailure()) return;
    }
    resume_to_the_end();
  }
  const std::string& story() const { return story_; }

 private:
  fs::path folder() const { return scratch_.path() / "run"; }
  size_t num_steps() const { return num_lines(folder() / "metrics.jsonl"); }
  /// A start that fails before the first step may leave no run.
  bool is_run() const { return fs::exists(folder() / "run.json"); }

  std::vector<std::string> words(const std::string& max_steps) const {
    if (is_run()) return {"run", "--resume", folder().string(), "--max-steps", max_steps};
    std::vector<std::string> more{"--max-steps", max_steps};
    for (const char* option :
         {"graph.restarts_max=0", "tenant.main.checkpoint_every=5", "trace.cut_every=\"100ms\"",
          "trace.cut_steps=1000", "trace.segment_bytes=2097152"}) {
      more.emplace_back("--set");
      more.emplace_back(option);
    }
    if (is_split_ || !has_blobs_) {
      auto all = scripted_run(folder(), more);
      if (is_split_) all[1] = source_path("tests/cli/graphs/split.toml");
      return all;
    }
    return run_with_blobs(scratch_.path() / "graph.toml", folder(), more);
  }

  void start(const End& end) {
    FaultyDisk disk(scratch_.path() / "disk", folder(), end.fault);
    auto words_of_it = words("1000000");
    words_of_it.insert(words_of_it.begin(), "primerl-graph");
    Program run(words_of_it, end.has_full_disk ? disk.variables() : std::vector<std::string>());
    std::vector<pid_t> workers;
    const auto is_over = [&] {
      for (const pid_t worker : workers_of(run))
        if (std::ranges::find(workers, worker) == workers.end()) workers.push_back(worker);
      return !run.is_running();
    };
    const size_t begun = num_steps();
    ASSERT_TRUE(wait_for(run, give_up_,
                         [&] {
                           return is_over() || disk.num_refused() > 0 ||
                                  num_steps() >= begun + 1 + end.num_lines;
                         }))
        << story_ << "\n  has no step: " << run.said();
    size_t seen = num_steps();
    for (const size_t last = seen + end.lines_after; !is_over() && seen < last;) {
      const Time still = std::min(give_up_, steady_now() + kStepMax);
      if (!wait_for(run, still, [&] { return is_over() || num_steps() > seen; })) break;
      seen = num_steps();
    }
    // The disk may be full before a worker is started. Without one nothing would be killed.
    ASSERT_TRUE(wait_for(run, give_up_, [&] { return is_over() || !workers.empty(); }))
        << story_ << "\n  has no worker: " << run.said();
    end_it(run, end.ending, workers);
    auto ended = run.wait(std::min(give_up_, steady_now() + kEndMax));
    if (!ended) {  // its drain waits for space: Ctrl-C again stops it now
      story_ += "\n    is stopped by SIGINT";
      ::kill(run.pid(), SIGINT);
      ended = run.wait(give_up_);
    }
    ASSERT_TRUE(ended) << story_ << "\n  does not end: " << run.said();
    story_ += fmt::format("\n    {} calls, {} refused; {} steps, code {}, signal {}: {}",
                          disk.num_calls(), disk.num_refused(), num_steps(), ended->code,
                          ended->signal, ended->err);
    ASSERT_TRUE(wait_until([&] { return std::ranges::all_of(workers, has_ended); }))
        << story_ << "\n  a worker lives on";
  }

  /// False: `until` has passed.
  template <class Condition>
  static bool wait_for(Program& run, Time until, const Condition& is_met) {
    while (!is_met()) {
      if (steady_now() >= until) return false;
      (void)run.listen(steady_now() + kLookAgain);
    }
    return true;
  }

  /// The end of a program that must end by itself.
  ProgramEnd end_of(std::vector<std::string> words) {
    words.insert(words.begin(), "primerl-graph");
    Program program(std::move(words));
    auto end = program.wait(give_up_);
    if (end) return *std::move(end);
    ADD_FAILURE() << story_ << "\n  does not end: " << program.said();
    return {};
  }

  static void end_it(const Program& run, Ending ending, const std::vector<pid_t>& workers) {
    const bool kills_worker = ending == Ending::kWorker || ending == Ending::kBoth;
    const bool kills_launcher = ending == Ending::kLauncher || ending == Ending::kBoth;
    if (ending == Ending::kTerminate || ending == Ending::kTerminateThenKill ||
        ending == Ending::kItself)
      ::kill(run.pid(), SIGTERM);
    if (ending == Ending::kTerminateThenKill || kills_worker)
      for (const pid_t worker : workers)
        if (!has_ended(worker)) ::kill(worker, SIGKILL);
    if (ending == Ending::kTerminateThenKill || kills_launcher) ::kill(run.pid(), SIGKILL);
  }

  void resume_to_the_end() {
    // The record may have some steps more than metrics.jsonl; many if the launcher was killed
    // first.
    std::string last = std::to_string(num_steps() + 30);
    auto end = end_of(words(last));
    const std::string asks = "continue with --max-steps ";
    if (const size_t at = end.err.find(asks); end.code == 2 && at != std::string::npos) {
      last = std::to_string(std::stoll(end.err.substr(at + asks.size())) + 30);
      end = end_of(words(last));
    }
    story_ += "\n  the last start: " + end.err;
    ASSERT_EQ(end.code, 0) << story_;
    EXPECT_THAT(end.err, Not(HasSubstr("from the checkpoint only"))) << story_;
    EXPECT_EQ(std::to_string(expect_steps_and_rollouts_once(folder())), last) << story_;
    expect_rollouts_of_every_step(folder());
    const auto verify = end_of({"trace", "verify", folder().string()});
    EXPECT_EQ(verify.code, 0) << story_ << "\n  verify: " << verify.out << verify.err;
    EXPECT_THAT(verify.out, HasSubstr("sound"));
    const auto replay = end_of({"replay", folder().string(), "--depth", "control"});
    EXPECT_EQ(replay.code, 0) << story_ << "\n  replay: " << replay.out << replay.err;
    EXPECT_THAT(replay.out, HasSubstr("identical"));
  }

  const uint64_t seed_;
  const Time give_up_ = steady_now() + kSeedMax;
  const bool has_blobs_;
  const bool is_split_;  // four processes; else one
  ScratchFolder scratch_;
  std::string story_;
};

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

std::vector<uint64_t> seeds() {
  const uint64_t only = from_environment("PRIMERL_SEED", 0);
  if (only != 0) return {only};
  std::vector<uint64_t> seeds(from_environment("PRIMERL_ENDS_SEEDS", std::size(kPlaces)));
  std::iota(seeds.begin(), seeds.end(), from_environment("PRIMERL_ENDS_FIRST", 1));
  return seeds;
}

class RandomEnds : public ::testing::TestWithParam<uint64_t> {};

TEST_P(RandomEnds, AreResumedWithNothingLostOrDoneTwice) {
  EndedRun run(GetParam());
  run.end_and_resume();
  if (std::getenv("PRIMERL_SEED") != nullptr) std::cout << run.story() << "\n";
  ASSERT_FALSE(HasFailure()) << "repeat with PRIMERL_SEED=" << GetParam() << run.story();
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomEnds, ::testing::ValuesIn(seeds()),
                         [](const auto& seed) { return std::to_string(seed.param); });

}  // namespace
}  // namespace primerl
