/// Metrics by environment: how the groups of each environment of a tenant did in one step, and the
/// pools of its curriculum. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "actors/common/curriculum.h"
#include "actors/trainer/batch.h"

namespace primerl {

/// The trainer's copy of a curriculum, for its metrics and for checkpoints.
struct TrainedRows {
  RowPools pools;
  uint64_t next = 0;   // position of the walk after the last group that came
  uint32_t stage = 0;  // of that group

  /// A group came.
  void add(const TenantCurriculum& options, const TrajectoryGroup& group);

  template <class F>
  static void fields(F& f) {
    using T = TrainedRows;
    f("pools", &T::pools)("next", &T::next)("stage", &T::stage);
  }
};

/// reward/<environment>/*, seq_len/<environment>/*, is_truncated, solved, batch of a tenant with
/// several environments; empty for one. `filtered` are the groups that were filtered out since the
/// last step, by environment: rewards include them, as reward/all/* does.
MetricValues environment_metrics(const std::vector<PooledGroup>& groups,
                                 const std::map<uint32_t, RewardTotals>& filtered,
                                 const Tenant& tenant);

/// curriculum/<environment>/<pool>, and its stage.
MetricValues curriculum_metrics(const std::map<uint32_t, TrainedRows>& rows, const Tenant& tenant);

/// Metrics that a step lacks if no group of an environment, no reward, no whole group or no
/// log-probability of a teacher is in it.
std::vector<std::string> metrics_of_some_steps(const Tenant& tenant);

/// "curricula" of a manifest, by label.
Json curricula_json(const std::map<uint32_t, TrainedRows>& rows, const Tenant& tenant);
/// The same read for a run that starts from a checkpoint; `num_resumes` as in that manifest.
Result<std::map<uint32_t, TrainedRows>> read_curricula(const Json& manifest, const Tenant& tenant,
                                                       int64_t num_resumes);

}  // namespace primerl
