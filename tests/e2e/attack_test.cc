// A program attacks every port and socket of a running run; the run must end as without the attack.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <sstream>
#include <thread>

#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"
#include "tests/transport/hostile_frames.h"

namespace primerl {
namespace {

using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

/// Loopback ports that the process listens on.
std::set<uint16_t> listening_ports(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  std::set<std::string> sockets;
  std::error_code gone;
  for (const auto& each : fs::directory_iterator(folder + "/fd", gone)) {
    const std::string target = fs::read_symlink(each, gone).string();
    if (target.starts_with("socket:[")) sockets.insert(target.substr(8, target.size() - 9));
  }
  std::ifstream table(folder + "/net/tcp");
  std::set<uint16_t> ports;
  for (std::string line; std::getline(table, line);) {
    std::istringstream in(line);
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    const bool listens = words.size() > 9 && words[3] == "0A";
    if (listens && words[1].starts_with("0100007F:") && sockets.contains(words[9]))
      ports.insert(static_cast<uint16_t>(std::stoul(words[1].substr(9), nullptr, 16)));
  }
  return ports;
}

/// The facts that an attacker can find out about the connections of a run.
KnownLink known_of(const fs::path& folder) {
  KnownLink known;
  known.greeting.run = folder.filename().string();
  known.greeting.graph_hash =
      std::stoull(*json_file(folder / "run.json").get_string("graph_hash"), nullptr, 16);
  known.greeting.name = "training";
  known.process = ProcessId(3);
  return known;
}

TEST(AttackedRun, EndsAsWithoutTheAttack) {
  const ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  Program run({"primerl-graph", "run", source_path("tests/cli/graphs/split_tcp.toml"), "--out",
               folder.string(), "--max-steps", "60"},
              {"XDG_RUNTIME_DIR=" + scratch.path().string()});
  ASSERT_TRUE(run.wait_until_said("reward"));
  std::set<uint16_t> ports;
  std::vector<std::string> addresses;
  for (const pid_t worker : workers_of(run)) ports.merge(listening_ports(worker));
  for (const auto& each : fs::recursive_directory_iterator(scratch.path()))
    if (each.is_socket()) addresses.push_back("ipc://" + each.path().string());
  ASSERT_EQ(ports.size(), 2u);
  ASSERT_GE(addresses.size(), 4u);
  for (const uint16_t port : ports) addresses.push_back(fmt::format("tcp://127.0.0.1:{}", port));
  Attacker plain;
  uint32_t attempt = 0;
  for (const std::string& address : addresses)
    for (uint32_t process = 0; process < 4; ++process)
      plain.connect(address, hostile_route(ProcessId(process), 1, UINT32_MAX - ++attempt));
  RawConnections raw;
  const KnownLink known = known_of(folder);
  const auto frames = hostile_frames(known);
  size_t num_sent = 0, num_rounds = 0;
  // Until the run has ended; then there is no process to send to.
  while (run.is_running()) {
    num_sent += plain.send(frames);
    for (const uint16_t port : ports)
      if (num_rounds < 8) raw.attack(port);
    ++num_rounds;
    std::this_thread::yield();
  }
  EXPECT_GT(num_sent, frames.size()) << "nothing was attacked";
  const auto end = run.wait();
  ASSERT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, Not(HasSubstr("broke")));
  EXPECT_THAT(end.err, Not(HasSubstr("refused")));
  EXPECT_EQ(run_end(folder), "finished");
  EXPECT_EQ(expect_steps_and_rollouts_once(folder), 60);
  expect_replays(folder);
}

}  // namespace
}  // namespace primerl
