/// The demo's graph recorded on the virtual executor and replayed: what the replay tests share.
#pragma once

#include <filesystem>
#include <functional>

#include "runtime/replay/replay.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/trace/record/segment_writer.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {

/// Changes a frame on its way to the trace, or leaves it out (returns false). For negative
/// controls.
using Tamper = std::function<bool(std::span<std::byte> head, std::vector<std::byte>& tail)>;

/// Runs the case and records it into a fresh folder; the folder is removed by the next call.
std::filesystem::path record_demo(const DemoCase& demo, DemoResult& result,
                                  const Tamper& tamper = nullptr);

struct ReplayChoice {
  uint32_t num_threads = 1;
  ReplayDepth depth = ReplayDepth::kFull;
  std::vector<std::string> real_nodes;  // empty = all
  std::shared_ptr<const Plan> plan;     // null = the case's
};
Result<ReplayReport> replay_demo(const DemoCase& demo, const std::filesystem::path& folder,
                                 const ReplayChoice& choice = {});

/// At control depth, from where the groups were cut.
Result<ReplayReport> replay_from_cuts(std::shared_ptr<const Plan> plan,
                                      std::shared_ptr<const Trace> trace, const RunCuts& cuts);

/// The actor group of a node.
GroupId host_of(const Plan& plan, std::string_view node);

}  // namespace primerl::sim
