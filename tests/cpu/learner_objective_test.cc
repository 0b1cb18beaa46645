// Every objective in a whole training step: its loss is the specification's, its gradient the
// derivative of the loss, and neither depends on micro-batches or on other tenants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/train/loss.h"
#include "kernels/train/objective.h"
#include "tests/cpu/derivatives.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using testing::adapter_bytes;
using ::testing::HasSubstr;
using testing::make_adapter_learner;
using testing::make_folder;
using testing::two_groups;

constexpr TenantSlot kFirst(0), kSecond(1);

LossOptions loss_named(std::string_view kind) {
  LossOptions options;
  options.kind = kind;
  if (kind == "dr_grpo") options.mean_tokens = 8;
  if (kind == "gspo") options.clip_low = options.clip_high = 0.5;  // so that sequences train
  if (kind == "m2po") options.moment_max = 0.01;
  return options;
}

AdapterTraining adapter_with(TenantSlot tenant, std::string_view objective, double lr = 0) {
  AdapterTraining training{tenant, {.rank = 4}, {}};
  training.rules.loss = loss_named(objective);
  training.rules.optimizer.lr = lr;
  return training;
}

/// Two groups whose log-probabilities at sampling are near those of the learner.
TrainBatch near_batch(CpuLearner& learner, TenantSlot tenant) {
  TrainBatch made = two_groups(tenant);
  int32_t number = 0;
  for (auto& sample : made.samples) {
    const auto log_pi = learner.score(tenant, sample.tokens).value();
    for (size_t i = 4; i < sample.tokens.size(); ++i, ++number)
      sample.logprobs[i] =
          std::min(log_pi[i - 1] + 0.06F * static_cast<float>(number % 5 - 2), 0.0F);
  }
  return made;
}

std::vector<std::vector<float>> scores_of(Learner& learner, TenantSlot tenant,
                                          const TrainBatch& batch) {
  std::vector<std::vector<float>> all;
  for (const auto& sample : batch.samples)
    all.push_back(learner.score(tenant, sample.tokens).value());
  return all;
}

std::vector<bool> dropped_of(const TrainBatch& batch, const std::vector<std::vector<float>>& log_pi,
                             double moment_max) {
  std::vector<double> squares;
  for (size_t s = 0; s < batch.samples.size(); ++s)
    for (size_t i = 4; i < batch.samples[s].tokens.size(); ++i)
      squares.push_back(std::pow(
          static_cast<double>(log_pi[s][i - 1]) - static_cast<double>(batch.samples[s].logprobs[i]),
          2));
  std::vector<bool> is_dropped(squares.size(), false);
  for (;;) {
    double sum = 0, count = 0, largest = -1;
    size_t at = 0;
    for (size_t i = 0; i < squares.size(); ++i) {
      if (is_dropped[i]) continue;
      sum += squares[i];
      ++count;
      if (squares[i] >= largest) largest = squares[at = i];
    }
    if (count == 0 || sum / count <= moment_max) return is_dropped;
    is_dropped[at] = true;
  }
}

struct Expected {
  double loss = 0, masked = 0;
};

/// The mean that the objective wants, of token_loss() over the samples one by one.
Expected specified(const TrainBatch& batch, const LossOptions& options,
                   const std::vector<std::vector<float>>& log_pi,
                   const std::vector<std::vector<float>>& log_ref) {
  const Objective objective = objective_of(options);
  const auto is_dropped = dropped_of(batch, log_pi, objective.moment_max);
  Expected all;
  double num_tokens = 0;
  for (size_t s = 0; s < batch.samples.size(); ++s) {
    const TrainSample& sample = batch.samples[s];
    const auto length = static_cast<double>(sample.tokens.size() - 4);
    double ratio = 0, sum = 0;
    for (size_t i = 4; i < sample.tokens.size(); ++i)
      ratio += (static_cast<double>(log_pi[s][i - 1]) - static_cast<double>(sample.logprobs[i])) /
               length;
    for (size_t i = 4; i < sample.tokens.size(); ++i) {
      const TokenLoss token =
          token_loss(objective, {.log_pi = log_pi[s][i - 1],
                                 .log_mu = sample.logprobs[i],
                                 .advantage = sample.advantages[i],
                                 .log_reference = log_ref[s][i - 1],
                                 .sequence_log_ratio = ratio,
                                 .is_dropped = is_dropped[static_cast<size_t>(num_tokens)]});
      sum += token.loss;
      all.masked += token.masked ? 1 : 0;
      ++num_tokens;
    }
    if (objective.mean == LossMean::kSequence) sum /= length;
    if (objective.mean == LossMean::kConstant) sum /= static_cast<double>(objective.mean_tokens);
    all.loss += sum;
  }
  all.loss /=
      objective.mean == LossMean::kToken ? num_tokens : static_cast<double>(batch.samples.size());
  all.masked /= num_tokens;
  return all;
}

std::vector<std::string> policy_objectives() {
  std::vector<std::string> names;
  for (const auto& spec : objectives())
    if (spec.uses_logprobs()) names.emplace_back(spec.name);
  return names;
}

class LearnerObjective : public ::testing::TestWithParam<std::string> {
 protected:
  const std::filesystem::path folder_ = make_folder({});
};

TEST_P(LearnerObjective, HasTheLossOfItsSpecification) {
  const auto training = adapter_with(kFirst, GetParam());
  auto learner = make_adapter_learner(folder_, {training});
  const TrainBatch batch = near_batch(*learner, kFirst);
  auto base = make_torch_learner({}, folder_).value();
  const auto log_ref = scores_of(*base, kFirst, batch);
  const auto report = learner->step(batch, testing::never);
  ASSERT_TRUE(report.ok()) << report.error().text();
  const Expected all =
      specified(batch, training.rules.loss, scores_of(*learner, kFirst, batch), log_ref);
  EXPECT_NEAR(report->loss, all.loss, 1e-6);
  EXPECT_NEAR(report->masked_fraction, all.masked, 1e-9);
  EXPECT_NEAR(report->masked_low + report->masked_high + report->masked_dual +
                  report->masked_weight + report->masked_moment,
              report->masked_fraction, 1e-12);
  EXPECT_GT(report->grad_norm, 0);
  EXPECT_GT(report->effective_size, 0.5);
  EXPECT_LE(report->effective_size, 1);
}

/// Limits so wide that no finite difference moves a token across one.
TEST_P(LearnerObjective, HasTheDerivativeOfItsLossAsGradient) {
  AdapterTraining training = adapter_with(kFirst, GetParam());
  for (const auto& number : find_objective(GetParam())->numbers)
    if (number.name.starts_with("clip_") || number.name == "moment_max")
      training.rules.loss.*number.member = number.name == "clip_dual" ? 0 : 0.9;
  const auto rule = objective_of(training.rules.loss).rule;
  if (rule == ObjectiveRule::kWeightCap || rule == ObjectiveRule::kWeightBand ||
      rule == ObjectiveRule::kDecoupled || rule == ObjectiveRule::kReferenceKl)
    return;  // it has constants that a finite difference would move
  auto learner = make_adapter_learner(folder_, {training});
  const TrainBatch batch = near_batch(*learner, kFirst);
  ASSERT_EQ(learner->step(batch, testing::never)->masked_fraction, 0);
  testing::expect_derivatives(*learner, kFirst, batch, 1e-6);
}

TEST_P(LearnerObjective, DoesNotDependOnMicroBatches) {
  LearnerOptions small;
  small.micro_batch_tokens = small.adapter_batch_tokens = 1;
  auto whole = make_adapter_learner(folder_, {adapter_with(kFirst, GetParam())});
  auto divided = make_adapter_learner(folder_, {adapter_with(kFirst, GetParam())}, small);
  const TrainBatch batch = near_batch(*whole, kFirst);
  const auto one = whole->step(batch, testing::never).value();
  const auto many = divided->step(batch, testing::never).value();
  EXPECT_GT(many.num_micro_batches, one.num_micro_batches);
  EXPECT_NEAR(one.loss, many.loss, 1e-12);
  EXPECT_EQ(one.masked_fraction, many.masked_fraction);
  EXPECT_NEAR(one.grad_norm, many.grad_norm, 1e-5 * one.grad_norm);
}

/// Passes of several work calls: the first ones measure, and other tenants train meanwhile.
TEST_P(LearnerObjective, HasTheSameBitsBesideAnotherTenant) {
  LearnerOptions small;
  small.adapter_batch_tokens = 12;
  const std::vector<AdapterTraining> both = {adapter_with(kFirst, GetParam(), 0.01),
                                             adapter_with(kSecond, "dppo", 0.02)};
  auto alone = make_adapter_learner(folder_, {both[0]}, small);
  auto other_alone = make_adapter_learner(folder_, {both[1]}, small);
  auto shared = make_adapter_learner(folder_, both, small);
  const auto first = std::make_shared<const TrainBatch>(near_batch(*alone, kFirst));
  const auto second = std::make_shared<const TrainBatch>(two_groups(kSecond));
  const auto report = alone->step(*first, testing::never).value();
  ASSERT_TRUE(other_alone->step(*second, testing::never).ok());
  std::optional<Result<TrainReport>> found, other;
  for (int32_t call = 0; call < 64 && !(found && other); ++call) {
    std::vector<std::shared_ptr<const TrainBatch>> asked;
    if (!found) asked.push_back(first);
    if (!other) asked.push_back(second);
    for (const auto& batch : asked) EXPECT_GT(shared->next_tokens(*batch), 0);
    auto reports = shared->pass_together(asked, testing::never);
    if (!found) found = std::move(reports.front());
    if (!other) other = std::move(reports.back());
  }
  ASSERT_TRUE(found && found->ok());
  EXPECT_EQ((*found)->loss, report.loss);
  EXPECT_EQ((*found)->grad_norm, report.grad_norm);
  EXPECT_EQ(adapter_bytes(*shared, kFirst), adapter_bytes(*alone, kFirst));
  EXPECT_EQ(adapter_bytes(*shared, kSecond), adapter_bytes(*other_alone, kSecond));
}

INSTANTIATE_TEST_SUITE_P(All, LearnerObjective, ::testing::ValuesIn(policy_objectives()),
                         [](const auto& each) { return each.param; });

TEST(LearnerObjectives, WithDropoutASequenceMeasuresWhatItsPassComputes) {
  const auto folder = make_folder({});
  AdapterTraining training = adapter_with(kFirst, "gspo");
  training.adapter.dropout = 0.3;
  LearnerOptions small;
  small.adapter_batch_tokens = 1;
  auto learner = make_adapter_learner(folder, {training}, small);
  TrainBatch batch = two_groups(kFirst);
  const auto far = learner->step(batch, testing::never).value();
  // mismatch_kl and s use the same log-probabilities: for sequences of one token s is r.
  for (auto& sample : batch.samples)
    for (size_t i = 5; i < sample.tokens.size(); ++i) sample.loss_mask[i] = 0;
  const auto one = learner->step(batch, testing::never).value();
  training.rules.loss = loss_named("ppo");
  training.rules.loss.clip_low = training.rules.loss.clip_high = 0.5;
  auto ppo = make_adapter_learner(folder, {training}, small);
  ASSERT_TRUE(ppo->step(two_groups(kFirst), testing::never).ok());
  const auto same = ppo->step(batch, testing::never).value();
  EXPECT_DOUBLE_EQ(one.loss, same.loss);
  EXPECT_EQ(one.grad_norm, same.grad_norm);
  EXPECT_GT(far.num_loss_tokens, one.num_loss_tokens);
}

TEST(LearnerObjectives, ReadStoredReferencesInsteadOfComputingThem) {
  const auto folder = make_folder({});
  auto learner = make_adapter_learner(folder, {adapter_with(kFirst, "opd")});
  auto base = make_torch_learner({}, folder).value();
  TrainBatch batch = near_batch(*learner, kFirst);
  const double computed = learner->step(batch, testing::never)->loss;
  const auto log_ref = scores_of(*base, kFirst, batch);
  for (size_t s = 0; s < batch.samples.size(); ++s) {
    batch.samples[s].reference.assign(batch.samples[s].tokens.size(), 0.0F);
    for (size_t i = 4; i < batch.samples[s].tokens.size(); ++i)
      batch.samples[s].reference[i] = log_ref[s][i - 1];
  }
  EXPECT_NEAR(learner->step(batch, testing::never)->loss, computed, 1e-7);
  for (auto& sample : batch.samples)
    for (float& value : sample.reference) value *= 2;
  EXPECT_GT(std::abs(learner->step(batch, testing::never)->loss - computed), 1e-3);
  batch.samples[1].reference.clear();
  const auto mixed = learner->step(batch, testing::never);
  ASSERT_FALSE(mixed.ok());
  EXPECT_THAT(mixed.error().text(), HasSubstr("others have none"));
}

TEST(LearnerObjectives, ReadStoredProximalLogProbabilities) {
  const auto folder = make_folder({});
  auto learner = make_adapter_learner(folder, {adapter_with(kFirst, "decoupled_ppo")});
  TrainBatch batch = near_batch(*learner, kFirst);
  const auto computed = learner->step(batch, testing::never).value();
  const auto log_pi = scores_of(*learner, kFirst, batch);
  for (size_t s = 0; s < batch.samples.size(); ++s) {
    batch.samples[s].proximal.assign(batch.samples[s].tokens.size(), 0.0F);
    for (size_t i = 4; i < batch.samples[s].tokens.size(); ++i)
      batch.samples[s].proximal[i] = log_pi[s][i - 1];
  }
  // The weights at the start of the step are the current ones: a second pass would change nothing.
  EXPECT_NEAR(learner->step(batch, testing::never)->loss, computed.loss, 1e-7);
  for (auto& sample : batch.samples)
    for (float& value : sample.proximal) value -= 0.5F;
  EXPECT_GT(learner->step(batch, testing::never)->masked_fraction, computed.masked_fraction);
}

/// A pass over many tokens takes minutes on a CPU, and must not be taken for a stall.
TEST(LearnerObjectives, APassGivesSignsOfLife) {
  const auto folder = make_folder({});
  auto learner = make_torch_learner({}, folder).value();
  int32_t num_signs = 0;
  const auto report = learner->step(two_groups(kFirst), [&] { return ++num_signs < 0; });
  ASSERT_TRUE(report.ok()) << report.error().text();
  const int32_t num_layers = read_model_config(folder).value().num_layers();
  EXPECT_GE(num_signs, report->num_micro_batches * (1 + 2 * num_layers));
}

TEST(LearnerObjectives, AStepThatStopsWhileItMeasuresChangesNothing) {
  const auto folder = make_folder({});
  LearnerOptions small;
  small.adapter_batch_tokens = 1;
  auto learner = make_adapter_learner(folder, {adapter_with(kFirst, "gspo", 0.01)}, small);
  const auto batch = near_batch(*learner, kFirst);
  const auto before = adapter_bytes(*learner, kFirst);
  int32_t calls = 0;
  const auto stopped = learner->step(batch, [&] { return ++calls > 2; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code(), Code::kCancelled);
  EXPECT_EQ(adapter_bytes(*learner, kFirst), before);
  EXPECT_TRUE(learner->step(batch, testing::never).ok());
}

/// The base of an adapter whose output is 0 has the weights of the whole model.
TEST(LearnerObjectives, WholeWeightsFollowAStoredReferenceAndHaveNoOther) {
  const auto folder = make_folder({});
  for (const std::string_view kind : {"ref_kl", "opd"}) {
    LearnerOptions options;
    options.loss.kind = kind;
    options.optimizer.lr = 0;
    auto learner = make_torch_learner(options, folder).value();
    TrainBatch batch = two_groups(kFirst);
    const auto refused = learner->step(batch, testing::never);
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.error().text(), HasSubstr("name a teacher"));
    const auto training = adapter_with(kFirst, kind);
    auto adapter = make_adapter_learner(folder, {training});
    const TensorTable model(read_model_config(folder).value());
    const AdapterTable table(model, training.adapter);
    ASSERT_TRUE(adapter->fill_adapter(kFirst, testing::random_adapter(table, 1, 0)).ok());
    const auto log_ref = scores_of(*learner, kFirst, batch);
    for (size_t s = 0; s < batch.samples.size(); ++s) {
      batch.samples[s].reference.assign(batch.samples[s].tokens.size(), 0.0F);
      for (size_t i = 4; i < batch.samples[s].tokens.size(); ++i)
        batch.samples[s].reference[i] = log_ref[s][i - 1] - 0.5F;
    }
    const auto whole = learner->step(batch, testing::never).value();
    EXPECT_NEAR(whole.loss, adapter->step(batch, testing::never)->loss, 1e-5) << kind;
    EXPECT_GT(whole.grad_norm, 0) << kind;
  }
}

TEST(LearnerObjectives, ALossOfAnswersIsTheSumOfWeightsTimesScores) {
  LearnerOptions options;
  options.micro_batch_tokens = 16;  // several micro-batches
  options.optimizer.lr = 0;
  auto learner = make_torch_learner(options, make_folder({})).value();
  TrainBatch batch = two_groups(kFirst);
  batch.loss = LossKind::kCrossEntropy;
  for (size_t s = 0; s < batch.samples.size(); ++s) {
    auto& sample = batch.samples[s];
    sample.logprobs.clear();
    sample.advantages.clear();
    if (s % 2 == 1) continue;
    for (size_t i = 0; i < sample.tokens.size(); ++i)
      sample.weights.push_back(0.25F * static_cast<float>(i + 1));
  }
  const auto scores = scores_of(*learner, kFirst, batch);
  double sum = 0;
  int64_t num_tokens = 0;
  for (size_t s = 0; s < batch.samples.size(); ++s)
    for (size_t i = 1; i < batch.samples[s].tokens.size(); ++i) {
      if (batch.samples[s].loss_mask[i] == 0) continue;
      sum -= (s % 2 == 0 ? 0.25 * static_cast<double>(i + 1) : 1.0) * scores[s][i - 1];
      ++num_tokens;
    }
  const auto before = learner->score(kFirst, batch.samples[0].tokens).value();
  const AnswerLoss loss = learner->evaluate(batch).value();
  EXPECT_NEAR(loss.sum, sum, 1e-4);
  EXPECT_EQ(loss.num_tokens, num_tokens);
  EXPECT_EQ(learner->score(kFirst, batch.samples[0].tokens).value(), before) << "nothing changes";
  const auto step = learner->step(batch, testing::never).value();
  EXPECT_NEAR(step.loss, sum / static_cast<double>(num_tokens), 1e-5);
  batch.samples[0].weights[5] = -1;
  EXPECT_THAT(learner->evaluate(batch).error().text(), HasSubstr("the weight of token 5"));
}

TEST(LearnerObjectives, ABatchWithoutLossTokensIsSkippedByEach) {
  const auto folder = make_folder({});
  for (const auto& name : policy_objectives()) {
    auto learner = make_adapter_learner(folder, {adapter_with(kFirst, name, 0.01)});
    TrainBatch batch = two_groups(kFirst);
    for (auto& sample : batch.samples)
      std::fill(sample.loss_mask.begin(), sample.loss_mask.end(), 0);
    EXPECT_TRUE(learner->step(batch, testing::never)->skipped) << name;
    batch.samples.clear();
    EXPECT_TRUE(learner->step(batch, testing::never)->skipped) << name;
  }
}

TEST(LearnerObjectives, AnAdvantageThatIsNotANumberIsRefused) {
  auto learner = make_adapter_learner(make_folder({}), {adapter_with(kFirst, "gspo")});
  TrainBatch batch = two_groups(kFirst);
  batch.samples[2].advantages[5] = std::nanf("");
  const auto refused = learner->step(batch, testing::never);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("sample 2: an advantage is nan"));
}

}  // namespace
}  // namespace primerl
