/// A Learner that answers from the record up to the newest checkpoint of each tenant, loads that
/// checkpoint, and computes every later step of the tenant. Recorded steps after the checkpoint are
/// computed again and must have the recorded result, exactly or within a tolerance. The recorded
/// result is what it returns.
///
/// So the weights of every version after the checkpoint are computed again. They are equal bit for
/// bit if the backend is deterministic (CPU, equal `threads`). No step before the checkpoint is
/// computed again. Snapshots of versions before the checkpoint have no tensors.
///
/// Threads: the same as those of the learner that it replaces.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/train/learner.h"
#include "runtime/replay/tolerance.h"
#include "runtime/replay/traced_calls.h"

namespace primerl {

/// The point where a tenant of an interrupted run continues.
struct RecoveryPoint {
  std::filesystem::path checkpoint;  // to load; empty: all steps are computed again
  int64_t num_steps = 0;             // recorded steps before the checkpoint
  /// Tenants that began in the slot in the record before the one that continues; the steps of those
  /// before are not computed.
  int32_t num_begins = 0;
};

struct ResumingLearnerSetup {
  std::shared_ptr<Learner> learner;  // the real learner, as made
  NextAnswer next;
  std::function<bool()> is_live;
  std::function<bool()> is_restoring = {};  // TracedLearner::set_is_restoring()
  std::vector<RecoveryPoint> points;        // by tenant slot
  /// Publishes to engines the weights of a tenant that were the last published ones before a cut,
  /// and those of a client's checkpoint when it is loaded.
  std::function<Status(TenantSlot tenant, const WeightSnapshot& weights)> publish;
  /// The result of a step differs from the record.
  std::function<void(std::string what)> on_divergence;
  ReplayTolerance tolerance{};                 // of recorded steps that are computed again
  std::shared_ptr<ToleranceCounts> near = {};  // hears of those; may be null
  bool writes_files = true;                    // false: recorded checkpoints are not written again
};
std::shared_ptr<Learner> make_resuming_learner(ResumingLearnerSetup setup);

}  // namespace primerl
