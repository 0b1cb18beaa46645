// The memory that this process may use, tested with files in place of /proc and /sys.
#include "graph/base/machine_memory.h"

#include <gmock/gmock.h>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kGib = 1024.0 * 1024 * 1024;

/// A machine with 8 GiB.
class Machine {
 public:
  Machine() { write("proc/meminfo", "MemTotal:        8388608 kB\nMemFree:  1 kB\n"); }
  const fs::path& root() const { return folder_.path(); }
  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root() / file).parent_path());
    write_text(root() / file, text);
  }
  /// Puts the process into the group `path` of cgroup v2; the part below `top` is mounted.
  void join_v2(const std::string& path, const std::string& top = "/") {
    write("proc/self/cgroup", "0::" + path + "\n");
    write("proc/self/mountinfo", "22 1 0:20 / /proc rw - proc proc rw\n31 1 0:28 " + top +
                                     " /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n");
  }
  void join_v1(const std::string& path) {
    write("proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:" + path + "\n0::/\n");
    write("proc/self/mountinfo",
          "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
          "33 31 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  }

 private:
  const ScratchFolder folder_;
};

TEST(MemoryLimit, IsTheRamWhereNoControlGroupLimitsIt) {
  Machine machine;
  EXPECT_EQ(memory_limit(machine.root()).bytes, 8 * kGib);
  EXPECT_EQ(memory_limit(machine.root()).text(), "8 GiB (RAM of this machine)");
  machine.join_v2("/job");
  machine.write("sys/fs/cgroup/job/memory.max", "max\n");
  EXPECT_EQ(memory_limit(machine.root()).bytes, 8 * kGib);
}

TEST(MemoryLimit, IsTheSmallestOfAllAncestorsOfItsControlGroup) {
  Machine machine;
  machine.join_v2("/slice/job/step");
  machine.write("sys/fs/cgroup/slice/job/step/memory.max", "6442450944\n");
  machine.write("sys/fs/cgroup/slice/job/memory.max", "max\n");
  machine.write("sys/fs/cgroup/slice/memory.max", "4294967296\n");
  const MemoryLimit limit = memory_limit(machine.root());
  EXPECT_EQ(limit.bytes, 4 * kGib);
  EXPECT_EQ(limit.source, "/sys/fs/cgroup/slice/memory.max");
  machine.write("sys/fs/cgroup/slice/job/step/memory.max", "2147483648\n");
  EXPECT_EQ(memory_limit(machine.root()).bytes, 2 * kGib);
}

TEST(MemoryLimit, LargerThanTheRamIsTheRam) {
  Machine machine;
  machine.join_v2("/job");
  machine.write("sys/fs/cgroup/job/memory.max", "8589934593\n");  // one byte more
  EXPECT_EQ(memory_limit(machine.root()).source, "RAM of this machine");
  machine.write("sys/fs/cgroup/job/memory.max", "8589934591\n");
  EXPECT_EQ(memory_limit(machine.root()).source, "/sys/fs/cgroup/job/memory.max");
}

TEST(MemoryLimit, InAContainerIsThatOfTheMountedGroup) {
  Machine machine;
  machine.join_v2("/docker/abc/inner", "/docker/abc");
  machine.write("sys/fs/cgroup/memory.max", "4294967296\n");
  machine.write("sys/fs/cgroup/inner/memory.max", "max\n");
  EXPECT_EQ(memory_limit(machine.root()).bytes, 4 * kGib);
  machine.join_v2("/../../elsewhere");  // a name outside of the namespace
  EXPECT_EQ(memory_limit(machine.root()).bytes, 4 * kGib);
}

TEST(MemoryLimit, InVersionOneIncludesAncestorsThatAreNotMounted) {
  Machine machine;
  machine.join_v1("/job");
  machine.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory_limit(machine.root()).bytes, 8 * kGib);
  machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "5368709120\n");
  EXPECT_EQ(memory_limit(machine.root()).bytes, 5 * kGib);
  machine.write("sys/fs/cgroup/memory/job/memory.stat",
                "cache 1\nhierarchical_memory_limit 3221225472\n");
  EXPECT_EQ(memory_limit(machine.root()).bytes, 3 * kGib);
  machine.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(memory_limit(machine.root()).bytes, 1 * kGib);
}

TEST(KilledForMemory, IsCountedByTheControlGroupElseByTheMachine) {
  Machine machine;
  EXPECT_EQ(num_killed_for_memory(machine.root()), std::nullopt);
  machine.write("proc/vmstat", "nr_free_pages 7\noom_kill 5\n");
  EXPECT_EQ(num_killed_for_memory(machine.root()), 5U);
  machine.join_v1("/job");
  machine.write("sys/fs/cgroup/memory/job/memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  EXPECT_EQ(num_killed_for_memory(machine.root()), 3U);
  machine.join_v2("/job");
  machine.write("sys/fs/cgroup/job/memory.events", "low 0\nmax 9\noom 1\noom_kill 2\n");
  EXPECT_EQ(num_killed_for_memory(machine.root()), 2U);
}

TEST(KilledForMemory, IsReportedWithFiguresAndNotForOtherSigkills) {
  const MemoryLimit limit{4 * kGib, "/sys/fs/cgroup/job/memory.max"};
  EXPECT_EQ(why_killed_for_memory(2, 2, 3.9 * kGib, limit), "");
  EXPECT_EQ(why_killed_for_memory(2, 3, 3.9 * kGib, limit),
            "for lack of memory: its resident memory was 3.9 GiB at most, the limit is 4 GiB "
            "(/sys/fs/cgroup/job/memory.max)");
  EXPECT_THAT(why_killed_for_memory(std::nullopt, std::nullopt, 3.9 * kGib, limit),
              AllOf(HasSubstr("probably for lack of memory"), HasSubstr("3.9 GiB")))
      << "nothing is counted, but it was near the limit";
  EXPECT_EQ(why_killed_for_memory(std::nullopt, std::nullopt, 1 * kGib, limit), "");
}

}  // namespace
}  // namespace primerl
