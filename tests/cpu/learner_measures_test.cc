// The numbers of a step that a person looks at: they agree with its gradients and its tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/common/gradient_norms.h"
#include "kernels/models/folder.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/never.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using testing::make_adapter_learner;
using testing::make_folder;
using testing::two_groups;

double norm_of(const MetricValues& values, std::string_view group) {
  for (const auto& [name, value] : values)
    if (name == "optim/grad_norm/" + std::string(group)) return value;
  return 0;
}

MetricValues metrics_of(const TrainReport& report) {
  MetricValues values;
  add_measures(report.measures, values);
  return values;
}

std::unique_ptr<Learner> learner_of(const LearnerOptions& options = {}) {
  const auto folder = make_folder({});
  auto learner = std::make_unique<CpuLearner>(options, read_model_folder(folder).value());
  CHECK(learner->fill(read_model_tensors(folder).value()).ok(), "cannot fill");
  return learner;
}

TEST(LearnerMeasures, NormsOfTheGroupsAddUpToThatOfTheGradient) {
  const auto learner = learner_of();
  const auto report = learner->step(two_groups(TenantSlot(0)), testing::never).value();
  double squares = 0;
  for (const double norm : report.measures.grad_norms) squares += norm * norm;
  EXPECT_NEAR(std::sqrt(squares), report.grad_norm, 1e-6 * report.grad_norm);
  const MetricValues metrics = metrics_of(report);
  for (const char* group : {"embeddings", "attention", "mlp", "norms"})
    EXPECT_GT(norm_of(metrics, group), 0) << group;
  EXPECT_EQ(norm_of(metrics, "adapters"), 0);
}

TEST(LearnerMeasures, AnAdapterHasOneNorm) {
  const auto learner = make_adapter_learner(make_folder({}), {{TenantSlot(0), {.rank = 4}, {}}});
  const auto report = learner->step(two_groups(TenantSlot(0)), testing::never).value();
  EXPECT_EQ(norm_of(metrics_of(report), "adapters"), report.grad_norm);
  EXPECT_EQ(norm_of(metrics_of(report), "attention"), 0);
}

TEST(LearnerMeasures, EveryTokenWithALossIsInEachDistribution) {
  const auto learner = learner_of();
  TrainBatch batch = two_groups(TenantSlot(0));
  for (auto& sample : batch.samples) sample.distances.assign(sample.tokens.size(), 2);
  const auto report = learner->step(batch, testing::never).value();
  const StepMeasures& measures = report.measures;
  EXPECT_EQ(std::accumulate(measures.ratio_counts.begin(), measures.ratio_counts.end(), int64_t{0}),
            report.num_loss_tokens);
  double mismatch = 0;
  int64_t count = 0;
  for (const MismatchPart& part : measures.by_position) {
    mismatch += part.mean * static_cast<double>(part.count);
    count += part.count;
  }
  EXPECT_EQ(count, report.num_loss_tokens);
  EXPECT_NEAR(mismatch / static_cast<double>(count), report.mismatch_kl_mean, 1e-9);
  EXPECT_EQ(measures.by_distance[2].count, count);
  EXPECT_GT(measures.flops, 0);
  EXPECT_EQ(measures.peak_flops, 0) << "a CPU's is not known";
}

TEST(LearnerMeasures, ThePeakIsTheOptionInTflops) {
  LearnerOptions options;
  options.peak_tflops = 0.5;
  const auto learner = learner_of(options);
  EXPECT_EQ(learner->step(two_groups(TenantSlot(0)), testing::never)->measures.peak_flops, 0.5e12);
}

TEST(LearnerMeasures, AnswersToImitateHaveNoRatio) {
  const auto learner = learner_of();
  TrainBatch batch = two_groups(TenantSlot(0));
  batch.loss = LossKind::kCrossEntropy;
  for (auto& sample : batch.samples) {
    sample.logprobs.clear();
    sample.advantages.clear();
  }
  EXPECT_TRUE(learner->step(batch, testing::never)->measures.ratio_counts.empty());
}

}  // namespace
}  // namespace primerl
