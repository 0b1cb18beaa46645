/// Helpers of the replay tests: the demo's graph, recorded on the virtual executor and replayed.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/replay/replay.h"
#include "runtime/replay/traced_resources.h"
#include "runtime/trace/catalog.h"
#include "runtime/trace/record/segment_writer.h"
#include "tests/sim/demo_run.h"

namespace primerl::sim {

/// The record of a virtual run, in a new folder.
class VirtualRecord {
 public:
  VirtualRecord(const Plan& plan, const std::filesystem::path& folder, uint64_t run_id = 0);
  const TraceCatalog& catalog() const { return catalog_; }
  SegmentWriter& writer() { return *writer_; }
  /// Call it when the run has ended.
  void close();

 private:
  TraceCatalog catalog_;
  std::unique_ptr<SegmentWriter> writer_;
};

/// Records the order of steps over all groups.
class StepOrder final : public DeliveryObserver {
 public:
  StepOrder(DeliveryObserver& next, std::vector<GroupId>& steps) : next_(next), steps_(steps) {}
  void on_start(GroupId group, Time now) override { next_.on_start(group, now); }
  void on_step(const StepRecord& record) override {
    next_.on_step(record);
    steps_.push_back(record.group);
  }
  bool wants_emissions(LinkId link) const override { return next_.wants_emissions(link); }

 private:
  DeliveryObserver& next_;
  std::vector<GroupId>& steps_;
};

/// Changes a frame on its way to the trace, or drops it (returns false). For negative tests.
using Tamper = std::function<bool(std::span<std::byte> head, std::vector<std::byte>& tail)>;

/// Runs the case and records it into a new folder; the next call removes the folder.
std::filesystem::path record_demo(const DemoCase& demo, DemoResult& result,
                                  const Tamper& tamper = nullptr);

struct ReplayChoice {
  uint32_t num_threads = 1;
  ReplayDepth depth = ReplayDepth::kFull;
  std::vector<std::string> real_nodes;  // empty = all
  std::shared_ptr<const Plan> plan;     // null: the plan of the case
};
Result<ReplayReport> replay_demo(const DemoCase& demo, const std::filesystem::path& folder,
                                 const ReplayChoice& choice = {});

/// Replays at control depth, from the groups' cuts.
Result<ReplayReport> replay_from_cuts(std::shared_ptr<const Plan> plan,
                                      std::shared_ptr<const Trace> trace, const RunCuts& cuts);

/// The actor group of a node.
GroupId host_of(const Plan& plan, std::string_view node);

}  // namespace primerl::sim
