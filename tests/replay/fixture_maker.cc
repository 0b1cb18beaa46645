// fixture_maker DIR: records the demo on the virtual clock and writes three fixtures of it.
//   router    50 steps, whose requests were not stored: Rollout is replayed to get them
//   trainer   20 steps, with a scripted learner that trains
//   diverged  the first change that a smaller max_inflight causes, which is in Rollout
#include <filesystem>
#include <iostream>

#include "runtime/replay/replay_fixture.h"
#include "tests/replay/replay_run.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

/// Does the same as `primerl-graph replay RUN --fixture TO ...`.
Result<WrittenFixture> make(const fs::path& run, const fs::path& to, const std::string& node,
                            uint64_t last_step, const std::vector<std::string>& sets) {
  ASSIGN_OR_RETURN(const ReplaySession session,
                   open_replay({.run = run.string(), .node = node, .sets = sets}));
  ReplaySetup setup = session.setup(1);
  std::optional<GroupId> chosen;
  if (last_step > 0) {
    ASSIGN_OR_RETURN(chosen, find_group(*session.plan, node));
    setup.options.stop_group = chosen;
    setup.options.stop_step = last_step;
  }
  ASSIGN_OR_RETURN(const auto replay, Replay::make(setup));
  ASSIGN_OR_RETURN(const ReplayReport report, replay->run());
  fs::remove_all(to);
  return write_fixture(session, setup, report, chosen, to);
}

Status make_all(const fs::path& folder) {
  // The seed in the graph's file, because a fixture's graph is text.
  const sim::DemoCase demo{.seed = 17};
  sim::DemoResult run;
  const fs::path trace = sim::record_demo(demo, run);
  for (const auto& [node, last_step] : {std::pair("router", 50), std::pair("trainer", 20)}) {
    ASSIGN_OR_RETURN(const auto written,
                     make(trace, folder / node, node, static_cast<uint64_t>(last_step), {}));
    fmt::print("{}: {} bytes\n", written.test_file.string(), written.num_bytes);
  }
  ASSIGN_OR_RETURN(const auto written,
                   make(trace, folder / "diverged", "rollout", 0, {"node.rollout.max_inflight=8"}));
  // The step number is part of the file's name, but the build needs a fixed name.
  fs::rename(written.test_file, folder / "diverged" / "diverged_test.cc");
  fmt::print("{}: {} bytes\n", written.test_file.string(), written.num_bytes);
  return ok();
}

}  // namespace
}  // namespace primerl

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "fixture_maker DIR\n";
    return 3;
  }
  const primerl::Status made = primerl::make_all(argv[1]);
  if (made.ok()) return 0;
  std::cerr << made.error().text() << "\n";
  return 1;
}
