// Calls of clients in the queue of a learner, beside the steps of other tenants.
#include "kernels/train/open_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/scripted/scripted_learner.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

constexpr TenantSlot kCaller(0), kStepper(1), kOtherCaller(2);

/// Micro-batches of 10 tokens.
std::unique_ptr<Learner> queued_learner() {
  ScriptedLearnerOptions options;
  options.micro_batch_tokens = 10;
  auto learner = make_scripted_learner(options).value();
  learner->share_out({0.3, 0.3, 0.3}, 40);
  return learner;
}

/// `num_data` sequences of 10 tokens: so many passes.
std::shared_ptr<const LossBatch> calls_of(TenantSlot tenant, int32_t num_data) {
  auto made = std::make_shared<LossBatch>();
  made->tenant = tenant;
  made->loss = tinker_loss("cross_entropy", {}).value();
  for (int32_t d = 0; d < num_data; ++d) {
    LossDatum& datum = made->data.emplace_back();
    for (int32_t i = 0; i < 10; ++i) {
      datum.tokens.push_back(d + i);
      datum.targets.push_back(d + i + 1);
    }
  }
  return made;
}

std::shared_ptr<const TrainBatch> steps_of(TenantSlot tenant) {
  auto made = std::make_shared<TrainBatch>();
  made->tenant = tenant;
  made->loss = LossKind::kCrossEntropy;
  TrainSample& sample = made->samples.emplace_back();
  sample.tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  sample.loss_mask.assign(8, 1);
  return made;
}

/// The work call in which each call had its result, and the result.
struct Ended {
  uint64_t turn = 0;
  Result<LossResult> result;
};
std::optional<Ended> ask_until_done(Learner& learner, std::shared_ptr<const LossBatch> calls,
                                    const auto& beside) {
  for (uint64_t turn = 1; turn < 100; ++turn) {
    auto result = learner.accumulate_queued(calls, turn, nullptr);
    beside(turn);
    if (result) return Ended{turn, *std::move(result)};
  }
  return std::nullopt;
}

TEST(OpenGradientsInAQueue, OfATenantAloneAreThoseOfTheWholeCall) {
  const auto learner = queued_learner(), whole = queued_learner();
  const auto calls = calls_of(kCaller, 3);
  const auto ended = ask_until_done(*learner, calls, [](uint64_t) {});
  ASSERT_TRUE(ended && ended->result.ok());
  EXPECT_EQ(ended->turn, 6U) << "a pass in every second work call";
  EXPECT_EQ(*ended->result, whole->accumulate(*calls, nullptr).value());
  EXPECT_EQ(learner->apply(kCaller, {})->grad_norm, whole->apply(kCaller, {})->grad_norm);
}

TEST(OpenGradientsInAQueue, ALargeCallDelaysNoStepOfAnotherTenant) {
  const auto learner = queued_learner(), alone = queued_learner();
  const auto calls = calls_of(kCaller, 5);
  std::shared_ptr<const TrainBatch> batch = steps_of(kStepper);
  std::vector<uint64_t> stepped;
  double loss = 0;
  const auto ended = ask_until_done(*learner, calls, [&](uint64_t turn) {
    const auto report = learner->step_queued(batch, turn, nullptr);
    if (!report) return;
    ASSERT_TRUE(report->ok());
    stepped.push_back(turn);
    loss = (*report)->loss;
    batch = steps_of(kStepper);
  });
  ASSERT_TRUE(ended && ended->result.ok());
  EXPECT_EQ(ended->turn, 10U);
  EXPECT_THAT(stepped, ::testing::ElementsAre(2U, 4U, 6U, 8U, 10U)) << "one in each pass";
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(alone->step(*steps_of(kStepper), nullptr).ok());
  EXPECT_EQ(loss, alone->step(*steps_of(kStepper), nullptr)->loss);
  EXPECT_EQ(*ended->result, alone->accumulate(*calls, nullptr).value());
}

TEST(OpenGradientsInAQueue, PassesOfSeveralClientsArePaidForLikeSteps) {
  const auto learner = queued_learner();
  learner->share_out({0.8, 0.1, 0.1}, 10);  // one pass of 10 tokens for one tenant at a time
  const auto much = calls_of(kCaller, 8), little = calls_of(kOtherCaller, 8);
  int64_t num_much = 0;
  std::optional<Result<LossResult>> done;
  uint64_t turn = 1;
  for (; turn < 100 && !done; ++turn) {
    done = learner->accumulate_queued(much, turn, nullptr);
    EXPECT_FALSE(learner->accumulate_queued(little, turn, nullptr)) << "at turn " << turn;
    ++num_much;
  }
  ASSERT_TRUE(done && done->ok());
  EXPECT_LE(num_much, 20) << "8 passes of its own, and at most 2 of a tenant with an eighth";
}

TEST(OpenGradientsInAQueue, LeavingItInTheMiddleDiscardsThem) {
  const auto learner = queued_learner();
  ASSERT_TRUE(learner->accumulate(*calls_of(kCaller, 1), nullptr).ok());
  const auto calls = calls_of(kCaller, 3);
  for (uint64_t turn = 1; turn <= 3; ++turn)
    EXPECT_FALSE(learner->accumulate_queued(calls, turn, nullptr));
  EXPECT_TRUE(learner->has_open_gradients(kCaller));
  learner->leave_queue(kCaller);
  EXPECT_FALSE(learner->has_open_gradients(kCaller));
  EXPECT_THAT(learner->apply(kCaller, {}).error().text(), HasSubstr("without open gradients"));
}

TEST(OpenGradientsInAQueue, LeavingItBetweenCallsKeepsThem) {
  const auto learner = queued_learner();
  ASSERT_TRUE(learner->accumulate(*calls_of(kCaller, 1), nullptr).ok());
  EXPECT_FALSE(learner->accumulate_queued(calls_of(kCaller, 3), 1, nullptr));
  learner->leave_queue(kCaller);
  EXPECT_TRUE(learner->has_open_gradients(kCaller)) << "no pass of the call has run";
  EXPECT_TRUE(learner->apply(kCaller, {}).ok());
}

/// The work call of another tenant ran its only pass.
TEST(OpenGradientsInAQueue, LeavingItWithoutTheResultDiscardsThem) {
  const auto learner = queued_learner();
  ASSERT_TRUE(learner->accumulate(*calls_of(kCaller, 1), nullptr).ok());
  const auto calls = calls_of(kCaller, 1), others = calls_of(kOtherCaller, 1);
  EXPECT_FALSE(learner->accumulate_queued(calls, 1, nullptr));
  EXPECT_FALSE(learner->accumulate_queued(others, 1, nullptr));
  ASSERT_TRUE(learner->accumulate_queued(others, 2, nullptr));
  learner->leave_queue(kCaller);
  EXPECT_FALSE(learner->has_open_gradients(kCaller)) << "the call would count twice if repeated";
  EXPECT_TRUE(learner->has_open_gradients(kOtherCaller));
}

/// A refused call added nothing.
TEST(OpenGradientsInAQueue, LeavingItWithoutTheErrorOfARefusedCallKeepsThem) {
  const auto learner = queued_learner();
  ASSERT_TRUE(learner->accumulate(*calls_of(kCaller, 1), nullptr).ok());
  auto bad = std::make_shared<LossBatch>(*calls_of(kCaller, 1));
  bad->data[0].targets.clear();
  const auto others = calls_of(kOtherCaller, 1);
  EXPECT_FALSE(learner->accumulate_queued(bad, 1, nullptr));
  EXPECT_FALSE(learner->accumulate_queued(others, 1, nullptr));
  ASSERT_TRUE(learner->accumulate_queued(others, 2, nullptr));
  learner->leave_queue(kCaller);
  EXPECT_TRUE(learner->has_open_gradients(kCaller));
}

TEST(OpenGradientsInAQueue, ARefusedCallHasItsErrorAndTakesOneWorkCall) {
  const auto learner = queued_learner();
  auto bad = std::make_shared<LossBatch>(*calls_of(kCaller, 3));
  bad->data[0].targets.clear();
  EXPECT_EQ(learner->next_rows(*bad), 1);
  EXPECT_FALSE(learner->accumulate_queued(bad, 1, nullptr));
  const auto refused = learner->accumulate_queued(bad, 2, nullptr);
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->error().text(), HasSubstr("datum 0: 10 tokens, but 0 targets"));
}

/// A learner that makes whole steps.
class WholeLearner final : public Learner {
 public:
  using Learner::step;
  Result<TrainReport> step(const TrainBatch&, const StopRequested&) override {
    return TrainReport();
  }
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot, PolicyVersion) override {
    return std::make_shared<const WeightSnapshot>();
  }
  Result<std::vector<float>> score(TenantSlot, const std::vector<int32_t>&) override {
    return std::vector<float>();
  }
  Status save(TenantSlot, const std::filesystem::path&) override { return ok(); }
  Status load(TenantSlot, const std::filesystem::path&) override { return ok(); }
  SampleLimits limits() const override { return {}; }
};

TEST(OpenGradientsInAQueue, ALearnerWithoutHalvesRefusesThem) {
  WholeLearner learner;
  EXPECT_FALSE(learner.has_open_gradients(kCaller));
  EXPECT_THAT(learner.accumulate(*calls_of(kCaller, 1), nullptr).error().text(),
              HasSubstr("has no 'accumulate'"));
  EXPECT_THAT(learner.apply(kCaller, {}).error().text(), HasSubstr("has no 'apply'"));
}

}  // namespace
}  // namespace primerl
