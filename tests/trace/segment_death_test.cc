// The trace of a process that died, or that continues while the trace is read.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "graph/base/random.h"
#include "runtime/query/maintenance.h"
#include "tests/trace/segment_files.h"

namespace primerl {
namespace {

constexpr uint32_t kHosts = 2;

/// The newest step of each group, in memory that survives the child process.
struct Progress {
  std::atomic<uint64_t> step[kHosts];
};

// Appends until it is killed.
[[noreturn]] void append_for_ever(const SegmentWriterOptions& options, Progress& progress) {
  auto writer = SegmentWriter::open(options);
  if (!writer.ok()) ::_exit(1);
  const auto append_all = [&](uint32_t group) {
    for (uint64_t step = 1;; ++step) {
      // Odd sizes too, so that a frame's offset is not always a multiple of 32.
      if (step % 7 == 0 && !append_note(**writer, group, step, std::string(step % 100, 'x')))
        ::_exit(1);
      if (!append_delivery(**writer, group, step)) ::_exit(1);
      progress.step[group].store(step);
    }
  };
  std::thread other(append_all, 1);
  append_all(0);
  ::_exit(1);
}

TEST(SegmentWriter, KilledAtAnyMomentNothingIsLostThatWasAppended) {
  void* shared =
      ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& progress = *static_cast<Progress*>(shared);
  RandomStream random(2026);
  uint64_t num_checked = 0;
  int num_cut = 0;  // rounds with prepared but unused space: nearly all
  for (int round = 0; round < 100; ++round) {
    TestFolder folder;
    auto options = small_segments(folder.path());
    options.packs = round % 2 == 1;
    for (auto& step : progress.step) step.store(0);
    const uint64_t target = 1 + random.below(round % 10 == 0 ? 100'000 : 20'000);
    const pid_t child = ::fork();
    if (child == 0) append_for_ever(options, progress);
    ASSERT_GT(child, 0);
    int status = 0;
    while (progress.step[0].load() + progress.step[1].load() < target)
      ASSERT_EQ(::waitpid(child, &status, WNOHANG), 0) << "the child failed, round " << round;
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const auto contents = read_all(folder.path());
    for (uint32_t group = 0; group < kHosts; ++group) {
      const auto found = contents.steps.find(group);
      const uint64_t num_found = found == contents.steps.end() ? 0 : found->second.size();
      ASSERT_GE(num_found, progress.step[group].load()) << "round " << round;
      if (num_found > 0) {
        ASSERT_EQ(found->second, steps_to(num_found)) << "round " << round;
      }
      num_checked += num_found;
    }
    // A frame that was being written is a hole, never damage.
    for (const auto& damage : contents.damage) EXPECT_TRUE(damage.is_hole) << "round " << round;
    const auto recovered = recover_trace(folder.path());
    ASSERT_TRUE(recovered.ok()) << recovered.error().text() << ", round " << round;
    num_cut += recovered->empty() ? 0 : 1;
    const auto verified = verify_trace(folder.path());
    ASSERT_TRUE(verified.ok());
    EXPECT_EQ(verified->num_deliveries, contents.count.at(TraceFrameKind::kDelivery));
    for (const auto& fault : verified->faults)
      EXPECT_TRUE(fault.kind == TraceFault::Kind::kCutTail || !fault.is_fault()) << fault.text;
  }
  ::munmap(shared, sizeof(Progress));
  RecordProperty("deliveries", std::to_string(num_checked));
  EXPECT_GT(num_checked, 500'000U);
  EXPECT_GT(num_cut, 0);
}

SegmentWriter* ring_writer = nullptr;

// One thread must not fill the ring while the other one does not run.
constexpr uint64_t kStepsAheadMax = 10'000;

// Records into a ring on two threads; the signal arrives while both record.
[[noreturn]] void record_until_it_dies(const SegmentWriterOptions& options, Progress& progress,
                                       uint64_t target, int deadly) {
  auto writer = SegmentWriter::open(options);
  if (!writer.ok()) ::_exit(1);
  ring_writer = writer->get();
  ::signal(deadly, [](int signal) {
    ring_writer->dump_in_handler();
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  });
  const auto append_all = [&](uint32_t group) {
    for (uint64_t step = 1;; ++step) {
      while (group == 1 && step > progress.step[0].load() + kStepsAheadMax)
        std::this_thread::yield();
      if (!append_delivery(**writer, group, step)) ::_exit(1);
      progress.step[group].store(step);
      if (group == 0 && step == target) ::raise(deadly);
    }
  };
  std::thread other(append_all, 1);
  append_all(0);
  ::_exit(1);
}

TEST(SegmentWriter, TheFlightRecorderIsWrittenByTheHandlerOfADeadlySignal) {
  void* shared =
      ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& progress = *static_cast<Progress*>(shared);
  RandomStream random(2027);
  for (int round = 0; round < 40; ++round) {
    TestFolder folder;
    auto options = small_segments(folder.path() / "trace");
    options.level = TraceLevel::kRing;
    options.ring_bytes = 4 * options.segment_bytes;
    for (auto& step : progress.step) step.store(0);
    const uint64_t target = 1 + random.below(round % 4 == 0 ? 300 : 100'000);
    const int deadly = round % 2 == 0 ? SIGSEGV : SIGABRT;
    const pid_t child = ::fork();
    if (child == 0) record_until_it_dies(options, progress, target, deadly);
    ASSERT_GT(child, 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == deadly) << "round " << round;
    const auto contents = read_all(folder.path() / "trace");
    const auto& steps = contents.steps.at(0);
    ASSERT_EQ(steps.back(), target) << "round " << round << ": the last steps are what matters";
    ASSERT_EQ(steps.back() - steps.front() + 1, steps.size()) << "round " << round;
    EXPECT_EQ(retired_through(folder.path() / "trace", "main", 1), contents.numbers.front() - 1);
    for (const auto& damage : contents.damage) EXPECT_TRUE(damage.is_hole) << "round " << round;
    if (target <= 300) {
      EXPECT_EQ(steps, steps_to(target));
    }
  }
  ::munmap(shared, sizeof(Progress));
}

TEST(SegmentReader, ReadsATraceWhileItIsWritten) {
  TestFolder folder;
  auto writer = SegmentWriter::open(small_segments(folder.path()));
  ASSERT_TRUE(writer.ok());
  std::atomic<bool> stops = false;
  std::atomic<uint64_t> progress = 0;
  std::jthread appends([&] {
    for (uint64_t step = 1; step <= 400'000 && !stops.load(); ++step) {
      if (!append_delivery(**writer, 0, step)) return;
      progress.store(step);
    }
  });
  for (int round = 0; round < 20; ++round) {
    const uint64_t before = progress.load();
    const auto contents = read_all(folder.path());
    if (before == 0) continue;
    // Steps recorded before the read are found completely; of those recorded during the read, a
    // prefix in order.
    std::vector<uint64_t> found = contents.steps.at(0);
    EXPECT_TRUE(std::is_sorted(found.begin(), found.end()));
    ASSERT_GE(found.size(), before);
    found.resize(before);
    EXPECT_EQ(found, steps_to(before));
  }
  stops = true;
  appends.join();
  EXPECT_TRUE((*writer)->close().ok());
}

TEST(SegmentWriter, WithoutACloseThereIsNoEndFrameAndNothingElseIsMissing) {
  TestFolder folder;
  {
    auto writer = SegmentWriter::open(small_segments(folder.path()));
    ASSERT_TRUE(writer.ok());
    for (uint64_t step = 1; step <= 100; ++step) append_delivery(**writer, 0, step);
  }
  const auto contents = read_all(folder.path());
  EXPECT_EQ(contents.steps.at(0), steps_to(100));
  EXPECT_FALSE(contents.count.contains(TraceFrameKind::kEnd));
  EXPECT_TRUE(contents.damage.empty());
}

TEST(SegmentWriter, SyncsTheDiskAtTheLevelPower) {
  TestFolder folder;
  auto options = small_segments(folder.path());
  options.level = TraceLevel::kPower;
  options.sync_every = Duration::milliseconds(1);
  auto writer = SegmentWriter::open(options);
  ASSERT_TRUE(writer.ok());
  for (uint64_t step = 1; step <= 30'000; ++step) ASSERT_TRUE(append_delivery(**writer, 0, step));
  ASSERT_TRUE((*writer)->dump().ok());
  ASSERT_TRUE((*writer)->close().ok());
  EXPECT_EQ(read_all(folder.path()).steps.at(0), steps_to(30'000));
}

}  // namespace
}  // namespace primerl
