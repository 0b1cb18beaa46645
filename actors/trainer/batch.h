/// What the trainer does with groups before the learner sees them: the filters, the batch, and the
/// numbers it tells about both. Pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/trainer/group_pool.h"
#include "graph/base/services.h"
#include "graph/tenant.h"
#include "kernels/train/learner.h"

namespace primerl {

/// Why a group cannot train.
struct Verdict {
  RolloutEnd end = RolloutEnd::kFailed;
  std::string reason;
};

/// Rewards are in [-kRewardMax, kRewardMax]: a larger one would make no finite gradient.
inline constexpr double kRewardMax = 1e6;

/// Marks every member that the learner could not take (too long, arrays that are not parallel,
/// numbers out of range, nothing sampled, kept sets that are missing or not of its tokens) as
/// failed, and says which those were. One by one, before a batch is formed: the learner refuses a
/// batch as a whole.
std::vector<RefusedMember> refuse_members(TrajectoryGroup& group, const Tenant& tenant,
                                          LossKind loss, const SampleLimits& limits);

/// Empty when the group may train. Supervised groups need one survivor and no spread of rewards.
std::optional<Verdict> judge(const TrajectoryGroup& group, const Tenant& tenant, LossKind loss);

Result<TrainBatch> make_batch(const std::vector<PooledGroup>& groups, const Tenant& tenant,
                              LossKind loss);

/// Rewards of rollouts, added up.
struct RewardTotals {
  double sum = 0;
  double min = 0;
  double max = 0;
  int64_t count = 0;
  int64_t num_groups = 0;

  void add(double reward);
  /// All members of `group` that did not fail.
  void add(const TrajectoryGroup& group);
  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }

  template <class F>
  static void fields(F& f) {
    using R = RewardTotals;
    f("sum", &R::sum)("min", &R::min)("max", &R::max)("count", &R::count)("num_groups",
                                                                          &R::num_groups);
  }
};

/// reward/*, off_policy/*, seq_len/*, of the batch that makes `version`. `filtered` are the groups
/// that the filters took out since the last step: reward/all/* has them too, or a policy that gets
/// good would look worse than it is, because its perfect groups do not train.
MetricValues batch_metrics(const std::vector<PooledGroup>& groups, const RewardTotals& filtered,
                           PolicyVersion version);

/// Why groups in a row did not train: how often each reason was given, whatever its numbers.
class LossReasons {
 public:
  static constexpr size_t kReasonsMax = 64;  // later ones that are new are not told apart
  void add(RolloutEnd end, const std::string& reason);
  void clear() { told_.clear(); }
  /// "700 of them as filtered: all rewards are equal", in the words of the first such group.
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
  std::map<std::string, Told> told_;  // by the reason without digits
};

int64_t num_sampled_tokens(const TrajectoryGroup& group);

}  // namespace primerl
