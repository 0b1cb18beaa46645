// Runs that end in a random way, by a disk without free space at every place that writes and by
// signals, are resumed and end as they should.
//
// PRIMERL_ENDS_SEEDS runs so many seeds from PRIMERL_ENDS_FIRST on: 300 in `make soak`.
// PRIMERL_SEED runs one.
#include <gmock/gmock.h>

#include <csignal>
#include <cstdlib>
#include <iostream>

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
    for (const char* option :
         {"tenant.main.group_size=128", "tenant.main.batch_size=128",
          "tenant.main.environment.length_min=100", "tenant.main.environment.length_max=100",
          "node.rollout.max_inflight=1024"}) {
      more.emplace_back("--set");
      more.emplace_back(option);
    }
    std::vector<std::string> all{"run", graph_with_blobs().string(), "--out", folder().string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// The record keeps groups whole, each larger than a frame.
  fs::path graph_with_blobs() const {
    std::string text = *read_text_file(source_path("tests/cli/graphs/scripted.toml"));
    const auto replace = [&text](const std::string& before, const std::string& now) {
      text.replace(text.find(before), before.size(), now);
    };
    replace("\"rollout.group       -> trainer.group\"",
            "{ path = \"rollout.group -> trainer.group\", record = \"payload\" }");
    replace("../../../examples", source_path("examples"));
    write_text(scratch_.path() / "graph.toml", text);
    return scratch_.path() / "graph.toml";
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
    ASSERT_TRUE(wait_until([&] {
      return is_over() || disk.num_refused() > 0 || num_steps() >= begun + 1 + end.num_lines;
    })) << story_
        << "\n  has no step: " << run.said();
    const size_t full = num_steps();
    ASSERT_TRUE(wait_until([&] { return is_over() || num_steps() >= full + end.lines_after; }))
        << story_ << "\n  neither ends nor has another step";
    end_it(run, end.ending, workers);
    const ProgramEnd ended = run.wait();
    ASSERT_TRUE(wait_until([&] { return std::ranges::all_of(workers, has_ended); }))
        << story_ << "\n  a worker lives on";
    story_ += fmt::format("\n    {} calls, {} refused; {} steps, code {}, signal {}: {}",
                          disk.num_calls(), disk.num_refused(), num_steps(), ended.code,
                          ended.signal, ended.err);
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
    // The record may have some steps more than metrics.jsonl.
    const std::string last = std::to_string(num_steps() + 30);
    const auto end = run_graph_program(words(last));
    story_ += "\n  the last start: " + end.err;
    ASSERT_EQ(end.code, 0) << story_;
    EXPECT_THAT(end.err, Not(HasSubstr("from the checkpoint only"))) << story_;
    EXPECT_EQ(std::to_string(expect_steps_and_rollouts_once(folder())), last) << story_;
    const auto verify = run_graph_program({"trace", "verify", folder().string()});
    EXPECT_EQ(verify.code, 0) << story_ << "\n  verify: " << verify.out << verify.err;
    EXPECT_THAT(verify.out, HasSubstr("sound"));
    const auto replay = run_graph_program({"replay", folder().string(), "--depth", "control"});
    EXPECT_EQ(replay.code, 0) << story_ << "\n  replay: " << replay.out << replay.err;
    EXPECT_THAT(replay.out, HasSubstr("identical"));
  }

  const uint64_t seed_;
  const bool has_blobs_;
  const bool is_split_;  // four processes; else one
  ScratchFolder scratch_;
  std::string story_;
};

bool has_cut(const fs::path& run) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run / "trace", ignored))
    if (entry.path().extension() == ".cut") return true;
  return false;
}

/// A full disk is no fault of the record: the next start follows it. The resumed start begins from
/// a cut, which it writes as number 0.
TEST(AFullDisk, ThatStopsAResumeLeavesItsRecordToTheNext) {
  ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  {
    auto words =
        scripted_run(folder, {"--max-steps", "1000000", "--set", "graph.restarts_max=0", "--set",
                              "tenant.main.checkpoint_every=5", "--set",
                              "trace.cut_every=\"100ms\"", "--set", "trace.cut_steps=1000"});
    words.insert(words.begin(), "primerl-graph");
    Program run(words);
    ASSERT_TRUE(wait_until([&] {
      return !run.is_running() || (num_lines(folder / "metrics.jsonl") >= 12 && has_cut(folder));
    }));
    ASSERT_TRUE(run.is_running());
    ::kill(worker_of(run), SIGKILL);
    ASSERT_EQ(run.wait().code, 1);
  }
  FaultyDisk disk(scratch.path() / "disk", folder, {.files = "trace/*.0.cut*"});
  const std::string last = std::to_string(num_lines(folder / "metrics.jsonl") + 40);
  const std::vector<std::string> words{"run", "--resume", folder.string(), "--max-steps", last};
  const auto full = run_graph_program(words, disk.variables());
  EXPECT_GT(disk.num_refused(), 0U);
  EXPECT_EQ(full.code, 1) << full.err;
  EXPECT_THAT(full.err, HasSubstr("No space left on device"));
  EXPECT_THAT(full.err, Not(HasSubstr("from the checkpoint only")));
  const auto end = run_graph_program(words);
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, HasSubstr("the run is live"));
  EXPECT_EQ(std::to_string(expect_steps_and_rollouts_once(folder)), last);
  expect_replays(folder);
}

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

TEST(RandomEnds, AreResumedWithNothingLostOrDoneTwice) {
  const uint64_t only = from_environment("PRIMERL_SEED", 0);
  const uint64_t first = only != 0 ? only : from_environment("PRIMERL_ENDS_FIRST", 1);
  const uint64_t last =
      only != 0 ? only : first - 1 + from_environment("PRIMERL_ENDS_SEEDS", std::size(kPlaces));
  for (uint64_t seed = first; seed <= last; ++seed) {
    EndedRun run(seed);
    run.end_and_resume();
    if (only != 0) std::cout << run.story() << "\n";
    ASSERT_FALSE(HasFailure()) << "repeat with PRIMERL_SEED=" << seed << run.story();
  }
}

}  // namespace
}  // namespace primerl
