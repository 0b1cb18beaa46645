#include "kernels/train/step_targets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/train/loss.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;

Objective objective_named(std::string_view kind, int64_t mean_tokens = 0) {
  LossOptions options;
  options.kind = kind;
  options.mean_tokens = mean_tokens;
  return objective_of(options);
}

/// Sequences of 1, 2 and 5 tokens in two micro-batches, with every log pi - log mu small enough
/// that a clip of whole sequences keeps them.
std::vector<MicroBatch> step_batches() {
  std::vector<MicroBatch> made(2);
  int32_t number = 0;
  for (const auto& [sample, length, where] : {std::tuple{0, 1, 0}, {1, 2, 1}, {2, 5, 1}})
    for (int32_t i = 0; i < length; ++i, ++number) {
      TrainTarget target;
      target.sample = sample;
      target.logprob = -1.0F - 0.125F * static_cast<float>(number % 3);
      target.measured = target.logprob + 0.0001F * static_cast<float>(number % 4 - 1);
      target.advantage = sample == 1 ? -0.5F : 0.75F;
      made[static_cast<size_t>(where)].targets.push_back(target);
    }
  return made;
}

/// The loss of the step, as learners add it.
double step_loss(const std::vector<MicroBatch>& parts, const Objective& objective) {
  double sum = 0, count = 0;
  for (const auto& part : parts)
    for (const auto& target : part.targets) {
      sum += target.weight * token_loss(objective, {.log_pi = target.measured,
                                                    .log_mu = target.logprob,
                                                    .advantage = target.advantage,
                                                    .sequence_log_ratio = target.sequence_log_ratio,
                                                    .is_dropped = target.is_dropped})
                                 .loss;
      ++count;
    }
  return sum / count;
}

TEST(StepTargets, CountTokensAlikeUnlessTheObjectiveSaysOtherwise) {
  auto parts = step_batches();
  weigh(parts, objective_named("dppo"));
  for (const auto& part : parts)
    for (const auto& target : part.targets) EXPECT_EQ(target.weight, 1);
}

TEST(StepTargets, CountSequencesAlikeWhateverTheirLength) {
  auto parts = step_batches();
  weigh(parts, objective_named("grpo"));
  double by_sample[3] = {};
  for (const auto& part : parts)
    for (const auto& target : part.targets) by_sample[target.sample] += target.weight / 8;
  for (const double weight : by_sample) EXPECT_DOUBLE_EQ(weight, 1.0 / 3);
}

TEST(StepTargets, DivideSequencesByTheConstant) {
  auto parts = step_batches();
  weigh(parts, objective_named("dr_grpo", 10));
  double by_sample[3] = {};
  for (const auto& part : parts)
    for (const auto& target : part.targets) by_sample[target.sample] += target.weight / 8;
  EXPECT_DOUBLE_EQ(by_sample[0], 1.0 / 30);
  EXPECT_DOUBLE_EQ(by_sample[1], 2.0 / 30);
  EXPECT_DOUBLE_EQ(by_sample[2], 5.0 / 30);
}

TEST(StepTargets, ARatioOfASequenceIsTheMeanOfItsTokensAcrossMicroBatches) {
  auto parts = step_batches();
  parts[0].targets.front().sample = 2;  // part of a sequence in the other micro-batch
  plan(parts, objective_named("gspo"));
  double sum = 0;
  for (const auto& part : parts)
    for (const auto& target : part.targets)
      if (target.sample == 2)
        sum += static_cast<double>(target.measured) - static_cast<double>(target.logprob);
  EXPECT_DOUBLE_EQ(parts[0].targets.front().sequence_log_ratio, sum / 6);
  EXPECT_DOUBLE_EQ(parts[1].targets.back().sequence_log_ratio, sum / 6);
}

/// Each token's gradient, with its weight, is the derivative of the loss of the whole step.
TEST(StepTargets, TheGradientsOfAStepAreItsDerivatives) {
  for (const char* name : {"grpo", "dr_grpo", "gspo", "m2po", "dapo"}) {
    const Objective objective = objective_named(name, name == std::string_view("dr_grpo") ? 7 : 0);
    for (size_t part = 0; part < 2; ++part)
      for (size_t i = 0; i < step_batches()[part].targets.size(); ++i) {
        const auto moved = [&](double by) {
          auto parts = step_batches();
          weigh(parts, objective);
          float& measured = parts[part].targets[i].measured;
          measured += static_cast<float>(by);
          plan(parts, objective);
          return std::pair{step_loss(parts, objective), static_cast<double>(measured)};
        };
        auto parts = step_batches();
        weigh(parts, objective);
        plan(parts, objective);
        const TrainTarget& target = parts[part].targets[i];
        const double gradient =
            target.weight *
            token_loss(objective, {.log_pi = target.measured,
                                   .log_mu = target.logprob,
                                   .advantage = target.advantage,
                                   .sequence_log_ratio = target.sequence_log_ratio,
                                   .is_dropped = target.is_dropped})
                .gradient /
            8;
        const auto above = moved(1e-4), below = moved(-1e-4);
        EXPECT_NEAR(gradient, (above.first - below.first) / (above.second - below.second), 1e-5)
            << name;
        EXPECT_NE(gradient, 0) << name;
      }
  }
}

std::vector<bool> dropped_tokens(const std::vector<float>& log_ratios, double moment_max) {
  std::vector<MicroBatch> parts(1);
  for (const float log_ratio : log_ratios) {
    TrainTarget target;
    target.logprob = 0;
    target.measured = log_ratio;
    parts[0].targets.push_back(target);
  }
  Objective objective = objective_named("m2po");
  objective.moment_max = moment_max;
  plan(parts, objective);
  std::vector<bool> all;
  for (const auto& target : parts[0].targets) all.push_back(target.is_dropped);
  return all;
}

TEST(StepTargets, DropTheTokensThatMovedMostUntilTheMeanIsSmallEnough) {
  // Squares 1, 4, 0, 9: means of the smallest are 0, 0.5, 1.667, 3.5.
  EXPECT_THAT(dropped_tokens({1, -2, 0, 3}, 3.5), ElementsAre(false, false, false, false));
  EXPECT_THAT(dropped_tokens({1, -2, 0, 3}, 3.4), ElementsAre(false, false, false, true));
  EXPECT_THAT(dropped_tokens({1, -2, 0, 3}, 0.5), ElementsAre(false, true, false, true));
  EXPECT_THAT(dropped_tokens({1, 1}, 0.5), ElementsAre(true, true));
}

TEST(StepTargets, DropATokenThatIsNotANumberBeforeAnyOther) {
  EXPECT_THAT(dropped_tokens({0.1F, std::nanf(""), 3}, 0.5), ElementsAre(false, true, true));
}

TEST(StepTargets, OfEqualTokensTheLaterGoesFirst) {
  EXPECT_THAT(dropped_tokens({0, 1, 1}, 0.5), ElementsAre(false, false, true));
}

}  // namespace
}  // namespace primerl
