// The halves of a step on the CPU: each loss of the Tinker wire is its formula over the scores of
// the learner, its gradient is the derivative, and nothing depends on calls, passes and tenants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "kernels/train/loss_batch.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using testing::adapter_bytes;
using ::testing::HasSubstr;
using testing::make_adapter_learner;
using testing::make_folder;
using testing::never;

constexpr TenantSlot kClient(0), kLoop(1);

std::vector<AdapterTraining> client_and_loop(double dropout = 0) {
  std::vector<AdapterTraining> both = {{kClient, {.rank = 4, .dropout = dropout}, {}},
                                       {kLoop, {.rank = 4, .dropout = dropout}, {}}};
  for (auto& each : both) each.rules.optimizer.lr = 0.01;
  return both;
}

/// Rows of a micro-batch.
LearnerOptions rows_of(int32_t rows) {
  LearnerOptions options;
  options.micro_batch_tokens = options.adapter_batch_tokens = rows;
  return options;
}

/// Four sequences of falling lengths, whose log-probabilities at sampling are near those of the
/// learner, with a prompt of zeros as clients send it.
LossBatch client_batch(CpuLearner& learner, std::string_view loss,
                       const std::map<std::string, double>& config = {}) {
  LossBatch made;
  made.tenant = kClient;
  made.loss = tinker_loss(loss, config).value();
  for (int32_t d = 0; d < 4; ++d) {
    LossDatum& datum = made.data.emplace_back();
    std::vector<int32_t> all;
    for (int32_t i = 0; i < 12 - d; ++i) all.push_back((d * 17 + i * 7 + 3) % 61);
    datum.tokens.assign(all.begin(), all.end() - 1);
    datum.targets.assign(all.begin() + 1, all.end());
    const auto log_pi = learner.score(kClient, all).value();
    for (size_t i = 0; i < datum.targets.size(); ++i) {
      const bool is_prompt = i < 3;
      const auto number = static_cast<float>(i);
      if (loss == "cross_entropy") {
        datum.weights.push_back(is_prompt ? 0 : 0.5F - 0.2F * number);
        continue;
      }
      datum.logprobs.push_back(
          is_prompt ? 0 : std::min(log_pi[i] + 0.15F * (static_cast<float>(i % 5) - 2), 0.0F));
      datum.advantages.push_back(is_prompt ? 0 : static_cast<float>(d % 3) - 0.8F);
    }
  }
  return made;
}

/// The sums of the wire's documentation.
double wire_loss(std::string_view name, double lp, double q, double a, double w) {
  const double r = std::exp(lp - q);
  if (name == "cross_entropy") return -w * lp;
  if (name == "importance_sampling") return -r * a;
  if (name == "ppo") return -std::min(r * a, std::clamp(r, 0.8, 1.2) * a);
  if (name == "cispo") return -std::clamp(r, 0.0, 4.0) * a * lp;
  return -(lp * a - 0.05 * (lp - q) * (lp - q));
}

const std::vector<std::string>& wire_names() {
  static const std::vector<std::string> all = {"cross_entropy", "importance_sampling", "ppo",
                                               "cispo", "dro"};
  return all;
}

double forward_loss(CpuLearner& learner, LossBatch batch) {
  batch.forward_only = true;
  return learner.accumulate(batch, never)->totals.loss;
}

TEST(ClientLosses, AreSumsOfTheirFormulasOverTheScores) {
  auto learner = make_adapter_learner(make_folder({}), client_and_loop());
  for (const std::string& name : wire_names()) {
    SCOPED_TRACE(name);
    const LossBatch batch = client_batch(*learner, name);
    const auto result = learner->accumulate(batch, never);
    ASSERT_TRUE(result.ok()) << result.error().text();
    learner->discard(kClient);
    double sum = 0;
    int64_t num_trained = 0;
    for (size_t d = 0; d < batch.data.size(); ++d) {
      const LossDatum& datum = batch.data[d];
      std::vector<int32_t> all = datum.tokens;
      all.push_back(datum.targets.back());
      EXPECT_EQ(result->logprobs[d], learner->score(kClient, all).value());
      for (size_t i = 0; i < datum.targets.size(); ++i) {
        const bool is_policy = datum.weights.empty();
        sum +=
            wire_loss(name, result->logprobs[d][i], is_policy ? datum.logprobs[i] : 0.0F,
                      is_policy ? datum.advantages[i] : 0.0F, is_policy ? 0.0F : datum.weights[i]);
        num_trained += (is_policy ? datum.advantages[i] : datum.weights[i]) != 0 ? 1 : 0;
      }
    }
    EXPECT_NEAR(result->totals.loss, sum, 1e-5);
    EXPECT_EQ(result->totals.num_trained, num_trained);
    EXPECT_EQ(result->totals.num_masked > 0, name == "ppo");
    EXPECT_GT(result->totals.entropy, 0);
    EXPECT_EQ(result->totals.mismatch_kl > 0, name != "cross_entropy");
  }
}

/// The weight of cispo is a constant that a finite difference would move.
TEST(ClientLosses, HaveTheirDerivativesAsGradients) {
  auto learner = make_adapter_learner(make_folder({}), client_and_loop());
  const auto start = learner->snapshot(kClient, PolicyVersion(0)).value()->tensors;
  for (const std::string& name : wire_names()) {
    if (name == "cispo") continue;
    SCOPED_TRACE(name);
    const std::map<std::string, double> wide = {{"clip_low_threshold", 0.05},
                                                {"clip_high_threshold", 8}};
    const LossBatch batch =
        client_batch(*learner, name, name == "ppo" ? wide : std::map<std::string, double>());
    ASSERT_TRUE(learner->accumulate(batch, never).ok());
    const auto gradients = learner->gradients(kClient);
    learner->discard(kClient);
    for (const auto& gradient : gradients) {
      const auto derivative = testing::values(gradient);
      double square = 0;
      for (const float g : derivative) square += static_cast<double>(g) * g;
      if (square < 1e-2) continue;
      const double h = 2e-3 / std::sqrt(square);
      const auto at = [&](double step) {
        EXPECT_TRUE(
            learner->fill_adapter(kClient, testing::moved(start, gradient.name, step, derivative))
                .ok());
        return forward_loss(*learner, batch);
      };
      const double difference = (at(h) - at(-h)) / (2 * h) / square;
      EXPECT_NEAR(difference, 1, 0.02) << gradient.name;
    }
    ASSERT_TRUE(learner->fill_adapter(kClient, start).ok());
  }
}

/// forward_backward_custom of the SDK: cross_entropy whose weights are minus the derivative of the
/// client's own loss by each log-probability.
TEST(ClientLosses, OfAClientsOwnFollowFromCrossEntropyWithRealWeights) {
  auto own = make_adapter_learner(make_folder({}), client_and_loop());
  auto built_in = make_adapter_learner(make_folder({}), client_and_loop());
  const LossBatch dro = client_batch(*built_in, "dro");
  ASSERT_TRUE(built_in->accumulate(dro, never).ok());
  LossBatch custom = dro;
  custom.loss = tinker_loss("cross_entropy", {}).value();
  for (auto& datum : custom.data) {
    datum.logprobs.clear();
    datum.advantages.clear();
  }
  custom.forward_only = true;
  const LossResult forward = own->accumulate(custom, never).value();
  custom.forward_only = false;
  for (size_t d = 0; d < dro.data.size(); ++d)
    for (size_t i = 0; i < dro.data[d].targets.size(); ++i)
      custom.data[d].weights.push_back(dro.data[d].advantages[i] -
                                       0.1F * (forward.logprobs[d][i] - dro.data[d].logprobs[i]));
  ASSERT_TRUE(own->accumulate(custom, never).ok());
  const double norm = own->apply(kClient, {}).value().grad_norm;
  EXPECT_NEAR(norm, built_in->apply(kClient, {}).value().grad_norm, 1e-5 * norm);
}

TEST(ClientLosses, OfSeveralTargetsOfOneTokenAreThoseOfEach) {
  auto learner = make_adapter_learner(make_folder({}), client_and_loop());
  LossBatch sparse;
  sparse.tenant = kClient;
  sparse.loss = tinker_loss("cross_entropy", {}).value();
  LossDatum& datum = sparse.data.emplace_back();
  datum.tokens = {3, 10, 17, 24, 31};
  datum.targets = {10, 5, 6, 7, 9};
  datum.positions = {0, 2, 2, 2, 4};
  datum.weights = {0.5F, 0.7F, 0.2F, -0.1F, 1};
  const LossResult all = learner->accumulate(sparse, never).value();
  const double norm = learner->apply(kClient, {.lr = 0}).value().grad_norm;
  ASSERT_EQ(all.logprobs.front().size(), 5U);
  EXPECT_EQ(all.totals.num_tokens, 5);
  double sum = 0;
  for (size_t i = 0; i < datum.targets.size(); ++i) {
    LossBatch one = sparse;
    LossDatum& single = one.data.front();
    single.targets = {datum.targets[i]};
    single.positions = {datum.positions[i]};
    single.weights = {datum.weights[i]};
    const LossResult alone = learner->accumulate(one, never).value();
    EXPECT_EQ(alone.logprobs.front().front(), all.logprobs.front()[i]);
    EXPECT_EQ(alone.totals.num_tokens, datum.positions[i] + 1) << "later rows are not computed";
    sum += alone.totals.loss;
  }
  EXPECT_NEAR(all.totals.loss, sum, 1e-9);
  EXPECT_NEAR(learner->apply(kClient, {.lr = 0}).value().grad_norm, norm, 1e-5 * norm);
}

/// A step is a call with the weights 1 / (loss tokens), and an update by the options' numbers.
TEST(ClientHalves, OfTheWeightsOfAMeanAreAStep) {
  const auto folder = make_folder({});
  auto training = client_and_loop();
  auto halves = make_adapter_learner(folder, training);
  LossBatch batch = client_batch(*halves, "importance_sampling");
  TrainBatch same;
  same.tenant = kClient;
  double num_loss_tokens = 0;
  for (const LossDatum& datum : batch.data) {
    TrainSample& sample = same.samples.emplace_back();
    sample.tokens = datum.tokens;
    sample.tokens.push_back(datum.targets.back());
    sample.loss_mask.assign(sample.tokens.size(), 1);
    sample.loss_mask.front() = 0;
    sample.logprobs = {0};
    sample.logprobs.insert(sample.logprobs.end(), datum.logprobs.begin(), datum.logprobs.end());
    sample.advantages = {0};
    sample.advantages.insert(sample.advantages.end(), datum.advantages.begin(),
                             datum.advantages.end());
    num_loss_tokens += static_cast<double>(datum.targets.size());
  }
  for (LossDatum& datum : batch.data)
    datum.weights.assign(datum.targets.size(), static_cast<float>(1 / num_loss_tokens));
  training[0].rules.loss.kind = "importance_sampling";
  auto whole = make_adapter_learner(folder, training);
  const TrainReport step = whole->step(same, never).value();
  const LossResult result = halves->accumulate(batch, never).value();
  const OptimizerOptions& own = training[0].rules.optimizer;
  const TrainReport update = halves
                                 ->apply(kClient, {.lr = own.lr,
                                                   .beta1 = 0.9,
                                                   .beta2 = 0.999,
                                                   .epsilon = 1e-8,
                                                   .weight_decay = own.weight_decay,
                                                   .max_norm = own.max_norm})
                                 .value();
  EXPECT_NEAR(result.totals.loss, step.loss, 1e-6);
  EXPECT_NEAR(update.grad_norm, step.grad_norm, 1e-5 * step.grad_norm);
  EXPECT_EQ(update.learning_rate, step.learning_rate);
  const auto scored = [&](CpuLearner& learner) {
    return learner.score(kClient, same.samples[0].tokens).value();
  };
  const auto one = scored(*whole), other = scored(*halves);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], other[i], 2e-3);
}

TEST(ClientHalves, HaveTheSameDropoutHoweverTheyAreDividedIntoCalls) {
  const auto folder = make_folder({});
  const auto training = client_and_loop(0.3);
  auto whole = make_adapter_learner(folder, training, rows_of(12));
  auto parts = make_adapter_learner(folder, training, rows_of(12));
  const LossBatch batch = client_batch(*whole, "ppo");
  ASSERT_TRUE(whole->accumulate(batch, never).ok());
  for (const LossDatum& datum : batch.data) {
    LossBatch one = batch;
    one.data = {datum};
    ASSERT_TRUE(parts->accumulate(one, never).ok());
  }
  EXPECT_EQ(whole->apply(kClient, {})->grad_norm, parts->apply(kClient, {})->grad_norm);
  EXPECT_EQ(adapter_bytes(*whole, kClient), adapter_bytes(*parts, kClient));
}

/// Rows of the head are gathered, its base rounds them, and its adapter drops and reads them whole.
TEST(ClientHalves, OfAnAdapterOfTheHeadOnABaseInBf16HaveTheBitsOfOneCall) {
  const auto folder = make_folder({});
  auto training = client_and_loop(0.3);
  for (auto& each : training) each.adapter.targets.emplace_back(kHeadTarget);
  LearnerOptions options = rows_of(12);
  options.products = "bf16";
  auto whole = make_adapter_learner(folder, training, options);
  auto parts = make_adapter_learner(folder, training, options);
  const LossBatch batch = client_batch(*whole, "cispo");
  ASSERT_TRUE(whole->accumulate(batch, never).ok());
  for (const LossDatum& datum : batch.data) {
    LossBatch one = batch;
    one.data = {datum};
    ASSERT_TRUE(parts->accumulate(one, never).ok());
    one.forward_only = true;
    std::vector<int32_t> all = datum.tokens;
    all.push_back(datum.targets.back());
    EXPECT_EQ(parts->accumulate(one, never).value().logprobs.front(),
              parts->score(kClient, all).value())
        << "without dropout, and no gradient changes";
  }
  EXPECT_EQ(whole->apply(kClient, {})->grad_norm, parts->apply(kClient, {})->grad_norm);
  EXPECT_EQ(adapter_bytes(*whole, kClient), adapter_bytes(*parts, kClient));
}

TEST(ClientHalves, OfOneTenantAndStepsOfAnotherChangeNoBitOfEachOther) {
  const auto folder = make_folder({});
  const auto training = client_and_loop(0.2);
  auto client = make_adapter_learner(folder, {training[0]}, rows_of(12));
  auto loop = make_adapter_learner(folder, {training[1]}, rows_of(12));
  auto both = make_adapter_learner(folder, training, rows_of(12));
  const auto batch = std::make_shared<const LossBatch>(client_batch(*client, "cispo"));
  const TrainBatch steps = testing::two_groups(kLoop);
  ASSERT_TRUE(loop->step(steps, never).ok());
  ASSERT_TRUE(client->accumulate(*batch, never).ok());
  ASSERT_TRUE(client->accumulate(*batch, never).ok());
  ASSERT_TRUE(client->apply(kClient, {}).ok());
  std::optional<Result<LossResult>> result = both->accumulate_pass(batch, never);
  EXPECT_FALSE(result) << "four micro-batches";
  ASSERT_TRUE(both->step(steps, never).ok()) << "between two passes";
  for (int32_t pass = 0; pass < 3; ++pass) result = both->accumulate_pass(batch, never);
  ASSERT_TRUE(result && result->ok());
  EXPECT_TRUE(both->save(kLoop, testing::scratch_folder("beside")).ok());
  ASSERT_TRUE(both->accumulate(*batch, never).ok());
  ASSERT_TRUE(both->apply(kClient, {}).ok());
  EXPECT_EQ(adapter_bytes(*both, kClient), adapter_bytes(*client, kClient));
  EXPECT_EQ(adapter_bytes(*both, kLoop), adapter_bytes(*loop, kLoop));
}

TEST(ClientHalves, OfWholeWeightsAreOfOneTenantAtATime) {
  auto learner = make_torch_learner({}, make_folder({})).value();
  LossBatch batch;
  batch.loss = tinker_loss("cross_entropy", {}).value();
  batch.data = {{.tokens = {1, 2, 3}, .targets = {2, 3, 4}}};
  batch.tenant = kClient;
  ASSERT_TRUE(learner->accumulate(batch, never).ok());
  const auto refused = learner->step(testing::two_groups(kLoop), never);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("open gradients"));
  EXPECT_TRUE(learner->apply(kClient, {}).ok());
  EXPECT_TRUE(learner->step(testing::two_groups(kLoop), never).ok());
}

/// Its first tensor becomes NaN.
void break_client(CpuLearner& learner) {
  const auto tensors = learner.snapshot(kClient, PolicyVersion(0)).value()->tensors;
  const std::vector<float> nan(testing::values(tensors[0]).size(),
                               std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(learner.fill_adapter(kClient, testing::moved(tensors, tensors[0].name, 1, nan)).ok());
}

TEST(ClientHalves, AGradientThatIsNotFiniteIsSkippedAndClosed) {
  auto learner = make_adapter_learner(make_folder({}), client_and_loop());
  const LossBatch batch = client_batch(*learner, "cross_entropy");
  break_client(*learner);
  const auto before = adapter_bytes(*learner, kClient);
  ASSERT_TRUE(learner->accumulate(batch, never).ok());
  const TrainReport report = learner->apply(kClient, {}).value();
  EXPECT_TRUE(report.skipped);
  EXPECT_THAT(report.skip_reason, HasSubstr("not finite"));
  EXPECT_EQ(adapter_bytes(*learner, kClient), before);
  EXPECT_FALSE(learner->has_open_gradients(kClient));
}

TEST(ClientHalves, AnActivationThatIsNotFiniteIsNamedAndDiscardsTheGradients) {
  LearnerOptions options;
  options.debug.check_finite = true;
  auto learner = make_adapter_learner(make_folder({}), client_and_loop(), options);
  const LossBatch batch = client_batch(*learner, "cross_entropy");
  ASSERT_TRUE(learner->accumulate(batch, never).ok());
  break_client(*learner);
  const auto failed = learner->accumulate(batch, never);
  ASSERT_FALSE(failed.ok());
  EXPECT_THAT(failed.error().text(), HasSubstr("activation 'layers."));
  EXPECT_THAT(failed.error().text(), HasSubstr("of 1 earlier calls are discarded"));
  EXPECT_FALSE(learner->has_open_gradients(kClient));
}

}  // namespace
}  // namespace primerl
