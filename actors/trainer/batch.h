/// Functions that the trainer applies to groups before the learner gets them: filters, batches and
/// their metrics. Pure functions.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/trainer/filters.h"
#include "actors/trainer/group_pool.h"
#include "graph/base/services.h"
#include "graph/tenant.h"
#include "kernels/train/learner.h"

namespace primerl {

/// Why a group does not train.
struct Verdict {
  RolloutEnd end = RolloutEnd::kFailed;
  std::string reason;
};

/// Rewards must be in [-kRewardMax, kRewardMax]; with a larger one the gradient would not be
/// finite.
inline constexpr double kRewardMax = 1e6;

/// Marks every member that the learner would refuse as failed, and returns these members. Reasons:
/// too long, arrays of different lengths, values out of range, no sampled token, kept sets missing
/// or without its tokens. Members are checked one by one before a batch is made, because the
/// learner refuses a batch as a whole.
std::vector<RefusedMember> refuse_members(TrajectoryGroup& group, const Tenant& tenant,
                                          const RolloutUse& use, const SampleLimits& limits);

/// Empty if the group may train. A group whose rewards are not compared needs one member that did
/// not fail; equal rewards do not matter there.
std::optional<Verdict> judge(const TrajectoryGroup& group, const Tenant& tenant,
                             const RolloutUse& use);

/// `uses` are parallel to the tenant's environments. Advantages of the kind `batch` compare the
/// rollouts of one environment in the batch. `version` is the learner's: tokens get their distance
/// from it; none: they get no distance.
Result<TrainBatch> make_batch(const std::vector<PooledGroup>& groups, const Tenant& tenant,
                              std::span<const RolloutUse> uses, PolicyVersion version);

/// Sums of rollout rewards.
struct RewardTotals {
  double sum = 0;
  double min = 0;
  double max = 0;
  int64_t count = 0;
  int64_t num_groups = 0;
  std::vector<int64_t> counts;  // by kRewardBounds; empty: none
  int64_t num_complete = 0;     // groups of rollouts of which none failed
  std::vector<double> passes;   // sums of pass_at_k() over these, parallel to pass_counts()

  void add(double reward);
  /// All members of `group` that did not fail. A rollout passes from `pass_reward` on.
  void add(const TrajectoryGroup& group, double pass_reward);
  /// The rewards of other groups.
  void add(const RewardTotals& other);
  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }

  template <class F>
  static void fields(F& f) {
    using R = RewardTotals;
    f("sum", &R::sum)("min", &R::min)("max", &R::max)("count", &R::count)(
        "num_groups", &R::num_groups)("counts", &R::counts)("num_complete", &R::num_complete)(
        "passes", &R::passes);
  }
};

/// reward/*, off_policy/* and seq_len/* of the batch that makes `version`. `filtered` are the
/// groups that were filtered out since the last step. reward/all/* includes them: without its
/// perfect groups, which do not train, a good policy would look worse than it is.
MetricValues batch_metrics(const std::vector<PooledGroup>& groups, const RewardTotals& filtered,
                           PolicyVersion version, const Tenant& tenant);

/// Counts why groups in a row did not train. Reasons that differ only in numbers count as one.
class LossReasons {
 public:
  static constexpr size_t kReasonsMax = 64;  // further reasons are not counted
  void add(RolloutEnd end, const std::string& reason);
  void clear() { told_.clear(); }
  /// For example "700 of them as filtered: all rewards are equal", with the reason of the first
  /// such group.
  std::string most_frequent() const;

  template <class F>
  static void fields(F& f) {
    f("told", &LossReasons::told_);
  }

 private:
  struct Told {
    int64_t count = 0;
    std::string first;

    template <class F>
    static void fields(F& f) {
      f("count", &Told::count)("first", &Told::first);
    }
  };
  std::map<std::string, Told> told_;  // by reason without its digits
};

int64_t num_sampled_tokens(const TrajectoryGroup& group);

/// Sampled tokens that never train, by what became of their group. Those of a failed member of a
/// group that trains are failed.
struct WastedTokens {
  int64_t stale = 0, filtered = 0, failed = 0;

  void add(const TrajectoryGroup& group, RolloutEnd end);
  template <class F>
  static void fields(F& f) {
    using W = WastedTokens;
    f("stale", &W::stale)("filtered", &W::filtered)("failed", &W::failed);
  }
};

}  // namespace primerl
