// Processes that an environment starts end with the run, however it ends. They begin with default
// signal dispositions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "graph/base/real_clock.h"
#include "tests/base/patience.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

/// Starts five processes that would run longer than the script, and writes their process ids: a
/// child, one that ignores SIGTERM, one with a session of its own, one that ignores SIGTERM in a
/// session of its own, and one whose parent has ended.
constexpr const char* kScript = R"SH(
sleep 1000 & echo $! >> "$1.new"
sh -c 'trap "" TERM; exec sleep 1000' & echo $! >> "$1.new"
setsid sleep 1000 & echo $! >> "$1.new"
setsid sh -c 'trap "" TERM; echo $$ >> "$0"; exec sleep 1000' "$1.new" &
wait_for() { while [ "$(wc -l < "$1")" -lt "$2" ]; do sleep 0.01; done; }
wait_for "$1.new" 4
sh -c 'setsid sh -c "echo \$\$ >> \"$0\"; exec sleep 1000" &' "$1.new"
wait_for "$1.new" 5
mv "$1.new" "$1"
)SH";

class SpawningRun : public testing::Test {
 protected:
  SpawningRun() {
    fs::copy_file(PRIMERL_BINARY_DIR "/plugins/spawner.so", scratch_.path() / "spawner.so");
    std::ofstream(scratch_.path() / "spawn.sh") << kScript;
    std::ofstream(graph_) << fmt::format(R"(include = ["{}"]
[graph]
plugins = ["spawner.so"]
restarts_max = 0
[tenant.main]
environment = {{ name = "spawner", script = "spawn.sh", out = "{}" }}
)",
                                         source_path("tests/cli/graphs/scripted.toml"), out_);
  }
  ~SpawningRun() override {
    for (const pid_t pid : spawned_)
      if (!has_ended(pid)) ::kill(pid, SIGKILL);
  }

  std::vector<std::string> words(const std::string& max_steps) const {
    return {"primerl-graph", "run", graph_, "--out", folder_, "--max-steps", max_steps};
  }
  std::vector<std::string> variables() const {
    return {"XDG_RUNTIME_DIR=" + scratch_.path().string()};
  }
  /// Waits for the script's processes; false if they do not appear.
  bool wait_for_spawned() {
    const auto deadline = deadline_after(kPatience);
    while (!fs::exists(out_) && std::chrono::steady_clock::now() < deadline) ::usleep(5'000);
    read_spawned();
    return spawned_.size() == 5;
  }
  void read_spawned() {
    std::ifstream file(out_);
    for (pid_t pid = 0; file >> pid;) spawned_.push_back(pid);
  }
  /// The run has ended, and its guardian has waited for them.
  void expect_none_left() const {
    for (const pid_t pid : spawned_) EXPECT_TRUE(has_ended(pid)) << pid;
  }

  const ScratchFolder scratch_;
  const std::string graph_ = scratch_.path() / "graph.toml";
  const std::string folder_ = scratch_.path() / "run";
  const std::string out_ = scratch_.path() / "spawned";
  std::vector<pid_t> spawned_;
};

TEST_F(SpawningRun, LeavesNoneWhenItIsToldToEnd) {
  Program run(words("1000000000"), variables());
  ASSERT_TRUE(wait_for_spawned());
  for (const pid_t pid : spawned_) EXPECT_FALSE(has_ended(pid)) << "it lives while the run does";
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait().code, 130);
  expect_none_left();
}

TEST_F(SpawningRun, LeavesNoneWhenItsWorkerIsKilled) {
  Program run(words("1000000000"), variables());
  ASSERT_TRUE(wait_for_spawned());
  ::kill(workers_of(run).front(), SIGKILL);
  const auto end = run.wait();
  EXPECT_NE(end.code, 0);
  EXPECT_THAT(end.err, HasSubstr("was killed by signal 9"));
  expect_none_left();
}

TEST_F(SpawningRun, LeavesNoneWhenTheControlPlaneIsKilled) {
  Program run(words("1000000000"), variables());
  ASSERT_TRUE(wait_for_spawned());
  ::kill(run.pid(), SIGKILL);
  (void)run.wait();
  const auto deadline = deadline_after(kPatience);
  const auto all_ended = [this] {
    return std::all_of(spawned_.begin(), spawned_.end(), has_ended);
  };
  while (!all_ended() && std::chrono::steady_clock::now() < deadline) ::usleep(5'000);
  expect_none_left();
}

TEST_F(SpawningRun, StartsThemWithDefaultSignalsAndNoneBlocked) {
  Program run(words("1000000000"), variables());
  ASSERT_TRUE(wait_for_spawned());
  std::ifstream file(out_ + ".grep");
  std::string name;
  uint64_t set = 0;
  file >> name >> std::hex >> set;
  EXPECT_EQ(name, "SigBlk:");
  EXPECT_EQ(set, 0u);
  file >> name >> set;
  EXPECT_EQ(name, "SigIgn:");
  // posix_spawn() ignores the two signals that the C library reserves.
  EXPECT_EQ(set & ~(uint64_t{3} << 31), 0u);
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
}

}  // namespace
}  // namespace primerl
