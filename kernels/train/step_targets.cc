#include "kernels/train/step_targets.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

namespace primerl {
namespace {

std::vector<TrainTarget*> targets_of(std::span<MicroBatch> batches) {
  std::vector<TrainTarget*> all;
  for (MicroBatch& batch : batches)
    for (TrainTarget& target : batch.targets) all.push_back(&target);
  return all;
}

double log_ratio(const TrainTarget& target) {
  return static_cast<double>(target.measured) - static_cast<double>(target.logprob);
}

void add_sequence_ratios(std::span<TrainTarget* const> targets) {
  struct Sum {
    double log_ratio = 0;
    int64_t count = 0;
  };
  std::map<int32_t, Sum> sums;
  for (const TrainTarget* target : targets) {
    Sum& sum = sums[target->sample];
    sum.log_ratio += log_ratio(*target);
    ++sum.count;
  }
  for (TrainTarget* target : targets) {
    const Sum& sum = sums.at(target->sample);
    target->sequence_log_ratio = sum.log_ratio / static_cast<double>(sum.count);
  }
}

void drop_outliers(std::span<TrainTarget* const> targets, double moment_max) {
  std::vector<double> squares;
  for (const TrainTarget* target : targets) {
    const double square = log_ratio(*target) * log_ratio(*target);
    // NaN has no order; its loss makes the learner skip the step.
    squares.push_back(std::isnan(square) ? std::numeric_limits<double>::infinity() : square);
  }
  std::vector<size_t> order(targets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return squares[i]; });
  // The longest beginning whose mean is small enough. Means of a rising order rise.
  double sum = 0;
  size_t num_kept = 0;
  for (; num_kept < order.size(); ++num_kept) {
    sum += squares[order[num_kept]];
    if (!(sum <= moment_max * static_cast<double>(num_kept + 1))) break;
  }
  for (size_t i = num_kept; i < order.size(); ++i) targets[order[i]]->is_dropped = true;
}

}  // namespace

void weigh(std::span<MicroBatch> batches, const Objective& objective) {
  if (objective.mean == LossMean::kToken) return;
  const auto targets = targets_of(batches);
  std::map<int32_t, int64_t> lengths;  // loss tokens of each sequence
  for (const TrainTarget* target : targets) ++lengths[target->sample];
  const double tokens_each = static_cast<double>(targets.size()) /
                             static_cast<double>(std::max(lengths.size(), size_t{1}));
  for (TrainTarget* target : targets)
    target->weight *= tokens_each / static_cast<double>(objective.mean == LossMean::kSequence
                                                            ? lengths.at(target->sample)
                                                            : objective.mean_tokens);
}

void plan(std::span<MicroBatch> batches, const Objective& objective) {
  const auto targets = targets_of(batches);
  if (objective.measures || objective.rule == ObjectiveRule::kSequenceClip)
    add_sequence_ratios(targets);
  if (objective.rule == ObjectiveRule::kMoment) drop_outliers(targets, objective.moment_max);
}

}  // namespace primerl
