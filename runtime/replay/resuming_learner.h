/// A Learner that answers from the record up to the newest checkpoint of each tenant, loads it, and
/// computes every later step of that tenant: recorded ones again, which must have the same result,
/// or within a tolerance nearly the same; then the recorded one is what it answers.
///
/// So the weights of every version after the checkpoint are made again, bit for bit where the
/// backend is deterministic (CPU, equal `threads`), and nothing before it is computed twice.
/// Snapshots of versions before the checkpoint have no tensors.
///
/// Threads: those of the learner that it replaces.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/train/learner.h"
#include "runtime/replay/tolerance.h"
#include "runtime/replay/traced_calls.h"

namespace primerl {

/// Where a tenant of a run that was cut off goes on.
struct RecoveryPoint {
  std::filesystem::path checkpoint;  // to load; empty: none, all steps are computed again
  int64_t num_steps = 0;             // recorded steps before it
};

struct ResumingLearnerSetup {
  std::unique_ptr<Learner> learner;  // the real one, as made
  NextAnswer next;
  std::function<bool()> is_live;
  std::vector<RecoveryPoint> points;  // by tenant slot
  /// Gives engines the weights of a tenant that were published last before a cut.
  std::function<Status(TenantSlot tenant, const WeightSnapshot& weights)> publish;
  /// The result of a step differs from the record.
  std::function<void(std::string what)> on_divergence;
  ReplayTolerance tolerance{};             // of recorded steps that are computed again
  std::shared_ptr<NearNumbers> near = {};  // hears of those; may be null
  bool writes_files = true;                // false: recorded checkpoints are not written again
};
std::unique_ptr<Learner> make_resuming_learner(ResumingLearnerSetup setup);

}  // namespace primerl
