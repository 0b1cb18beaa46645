/// The guarantees of every Learner that has the two halves of a step, as tests over a factory.
///
/// Include in one test file and write
///   INSTANTIATE_TEST_SUITE_P(Torch, ClientSteps, ::testing::Values(my_learner_under_test()));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>

#include "kernels/train/loss_batch.h"
#include "tests/conformance/learner_conformance.h"

namespace primerl {

class ClientSteps : public LearnerConformance {
 protected:
  /// A sequence whose every token predicts the next one, with weights of both signs.
  LossDatum datum(int32_t number, int32_t num_tokens) {
    LossDatum made;
    for (int32_t i = 0; i < num_tokens; ++i) {
      made.tokens.push_back((number * 5 + i * 3 + 1) % GetParam().vocab_size);
      made.targets.push_back((number * 5 + i * 3 + 4) % GetParam().vocab_size);
      made.weights.push_back(0.25F * static_cast<float>(i % 5 - 1));
    }
    return made;
  }

  /// Data of falling lengths, none of which shares a micro-batch of 16 rows.
  LossBatch loss_batch(int32_t num_data = 4) {
    LossBatch made;
    made.tenant = TenantSlot(0);
    made.loss = tinker_loss("cross_entropy", {}).value();
    for (int32_t i = 0; i < num_data; ++i) made.data.push_back(datum(i, 16 - i));
    return made;
  }

  static LossBatch one_of(const LossBatch& whole, size_t i) {
    LossBatch made = whole;
    made.data = {whole.data[i]};
    return made;
  }

  std::unique_ptr<Learner> make_divided() {
    LearnerOptions options;
    options.micro_batch_tokens = options.adapter_batch_tokens = 16;
    return make(options);
  }

  LossResult must_accumulate(Learner& learner, const LossBatch& data) {
    auto result = learner.accumulate(data, never);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().text());
    return result.ok() ? *result : LossResult();
  }

  TrainReport must_apply(Learner& learner, const AdamNumbers& adam = {}) {
    auto report = learner.apply(TenantSlot(0), adam);
    EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().text());
    return report.ok() ? *report : TrainReport();
  }
};

TEST_P(ClientSteps, AccumulatedCallsAddUpToTheBitsOfOne) {
  auto whole = make_divided(), parts = make_divided();
  const LossBatch data = loss_batch();
  const LossResult all = must_accumulate(*whole, data);
  LossTotals sum;
  for (size_t i = 0; i < data.data.size(); ++i) {
    const LossResult one = must_accumulate(*parts, one_of(data, i));
    ASSERT_EQ(one.logprobs.size(), 1U);
    EXPECT_EQ(one.logprobs[0], all.logprobs[i]);
    EXPECT_EQ(one.logprobs[0].size(), data.data[i].targets.size());
    sum.add(one.totals);
  }
  EXPECT_NEAR(sum.loss, all.totals.loss, 1e-9 * (1 + std::abs(all.totals.loss)));
  EXPECT_EQ(sum.num_targets, 16 + 15 + 14 + 13);
  EXPECT_EQ(all.totals.num_tokens, 16 + 15 + 14 + 13);
  EXPECT_EQ(all.totals.num_trained, sum.num_trained);
  EXPECT_LT(all.totals.num_trained, all.totals.num_targets) << "a weight of 0 trains nothing";
  const auto before = weights(*whole);
  EXPECT_TRUE(equal(*before, *weights(*parts)));
  const TrainReport one = must_apply(*whole), many = must_apply(*parts);
  EXPECT_FALSE(one.skipped);
  EXPECT_EQ(one.grad_norm, many.grad_norm);
  EXPECT_EQ(one.num_micro_batches, 4);
  EXPECT_EQ(many.num_micro_batches, 4);
  EXPECT_EQ(one.num_tokens, many.num_tokens);
  EXPECT_NEAR(one.loss, all.totals.loss, 1e-9 * (1 + std::abs(one.loss)));
  EXPECT_EQ(one.learning_rate, AdamNumbers().lr);
  EXPECT_FALSE(equal(*before, *weights(*whole)));
  EXPECT_TRUE(equal(*weights(*whole), *weights(*parts)));
}

TEST_P(ClientSteps, AnUpdateClosesTheGradients) {
  auto twice = make(), once = make();
  must_accumulate(*twice, loss_batch());
  must_apply(*twice);
  EXPECT_FALSE(twice->has_open_gradients(TenantSlot(0)));
  const auto refused = twice->apply(TenantSlot(0), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), ::testing::HasSubstr("without open gradients"));
  must_accumulate(*once, loss_batch());
  must_apply(*once);
  for (Learner* learner : {twice.get(), once.get()}) {
    must_accumulate(*learner, loss_batch(2));
    must_apply(*learner);
  }
  EXPECT_TRUE(equal(*weights(*twice), *weights(*once)));
}

TEST_P(ClientSteps, AForwardOnlyCallHasTheAnswersAndChangesNothing) {
  auto learner = make_divided(), other = make_divided();
  LossBatch only = loss_batch();
  only.forward_only = true;
  const LossResult forward = must_accumulate(*learner, only);
  EXPECT_FALSE(learner->has_open_gradients(TenantSlot(0)));
  EXPECT_FALSE(learner->apply(TenantSlot(0), {}).ok());
  const LossResult both = must_accumulate(*learner, loss_batch());
  EXPECT_TRUE(learner->has_open_gradients(TenantSlot(0)));
  EXPECT_EQ(forward.logprobs, both.logprobs);
  EXPECT_EQ(forward.totals.loss, both.totals.loss);
  EXPECT_EQ(forward.totals.num_trained, both.totals.num_trained);
  must_accumulate(*learner, only);
  must_accumulate(*other, loss_batch());
  must_apply(*learner);
  must_apply(*other);
  EXPECT_TRUE(equal(*weights(*learner), *weights(*other)));
}

TEST_P(ClientSteps, OpenGradientsAreInNoCheckpoint) {
  auto learner = make(), untouched = make();
  must_step(*learner, batch());
  must_step(*untouched, batch());
  const auto saved = empty_folder("saved");
  ASSERT_TRUE(learner->save(TenantSlot(0), saved).ok());
  must_accumulate(*learner, loss_batch());
  const auto refused = [](const Status& status) {
    ASSERT_FALSE(status.ok());
    EXPECT_THAT(status.error().text(), ::testing::HasSubstr("open gradients of 1 accumulate"));
  };
  const auto folder = empty_folder("refused");
  refused(learner->save(TenantSlot(0), folder));
  refused(learner->begin_save({TenantSlot(0), folder, Time(), [] { return ok(); }}));
  const auto copy = learner->capture(TenantSlot(0));
  refused(copy.ok() ? Status(ok()) : Status(copy.error()));
  const auto step = learner->step(batch(), never);
  refused(step.ok() ? Status(ok()) : Status(step.error()));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  learner->discard(TenantSlot(0));
  EXPECT_TRUE(learner->save(TenantSlot(0), folder).ok());
  must_accumulate(*learner, loss_batch());
  ASSERT_TRUE(learner->load(TenantSlot(0), saved).ok());
  EXPECT_FALSE(learner->has_open_gradients(TenantSlot(0))) << "a load discards them";
  must_step(*learner, batch(3));
  must_step(*untouched, batch(3));
  EXPECT_TRUE(equal(*weights(*learner), *weights(*untouched)));
}

TEST_P(ClientSteps, ARefusedCallLeavesOpenGradientsAsTheyAre) {
  auto learner = make(), untouched = make();
  for (Learner* each : {learner.get(), untouched.get()}) must_accumulate(*each, loss_batch());
  LossBatch bad = loss_batch();
  bad.data[2].targets[3] = GetParam().vocab_size;
  const auto refused = learner->accumulate(bad, never);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), ::testing::HasSubstr("datum 2: targets[3] is "));
  AdamNumbers numbers;
  numbers.beta1 = 1;
  EXPECT_FALSE(learner->apply(TenantSlot(0), numbers).ok());
  must_apply(*learner);
  must_apply(*untouched);
  EXPECT_TRUE(equal(*weights(*learner), *weights(*untouched)));
}

TEST_P(ClientSteps, AStopDiscardsAllOpenGradients) {
  auto stopped = make_divided(), untouched = make_divided();
  must_accumulate(*stopped, loss_batch());
  int asked = 0;
  const auto result = stopped->accumulate(loss_batch(), [&] { return ++asked >= 3; });
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kCancelled);
  EXPECT_THAT(result.error().text(), ::testing::ContainsRegex("after [12] of 4 micro-batches"));
  EXPECT_FALSE(stopped->has_open_gradients(TenantSlot(0)));
  for (Learner* learner : {stopped.get(), untouched.get()}) {
    must_accumulate(*learner, loss_batch(2));
    must_apply(*learner);
  }
  EXPECT_TRUE(equal(*weights(*stopped), *weights(*untouched)));
}

TEST_P(ClientSteps, AnUnfinishedCallTakesNoOtherBatch) {
  auto learner = make_divided(), whole = make_divided();
  const auto data = std::make_shared<const LossBatch>(loss_batch());
  EXPECT_LE(learner->next_rows(*data), 16);
  EXPECT_FALSE(learner->accumulate_pass(data, never).has_value());
  EXPECT_TRUE(learner->has_open_gradients(TenantSlot(0)));
  EXPECT_EQ(learner->next_rows(*data), 15);
  const auto other = learner->accumulate_pass(std::make_shared<const LossBatch>(*data), never);
  ASSERT_TRUE(other.has_value());
  EXPECT_THAT(other->error().text(), ::testing::HasSubstr("unfinished accumulate"));
  EXPECT_THAT(learner->apply(TenantSlot(0), {}).error().text(),
              ::testing::HasSubstr("not finished"));
  EXPECT_FALSE(learner->accumulate_pass(data, never).has_value());
  EXPECT_FALSE(learner->accumulate_pass(data, never).has_value());
  const auto result = learner->accumulate_pass(data, never);
  ASSERT_TRUE(result && result->ok());
  EXPECT_EQ(**result, must_accumulate(*whole, *data));
}

TEST_P(ClientSteps, AForwardOnlyCallThatIsNotFinishedTakesNoStep) {
  auto learner = make_divided(), whole = make_divided();
  LossBatch only = loss_batch();
  only.forward_only = true;
  const auto data = std::make_shared<const LossBatch>(only);
  EXPECT_FALSE(learner->accumulate_pass(data, never).has_value());
  EXPECT_FALSE(learner->has_open_gradients(TenantSlot(0)));
  const auto refused = learner->step(batch(), never);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), ::testing::HasSubstr("is not finished"));
  EXPECT_FALSE(learner->accumulate_pass(data, never).has_value());
  EXPECT_FALSE(learner->accumulate_pass(data, never).has_value());
  const auto result = learner->accumulate_pass(data, never);
  ASSERT_TRUE(result && result->ok());
  EXPECT_EQ(**result, must_accumulate(*whole, only)) << "of one set of weights";
  must_step(*learner, batch());
}

TEST_P(ClientSteps, WeightsAreLoadedWithTheOptimizerOfAnotherSave) {
  auto learner = make();
  const auto first = empty_folder("first"), later = empty_folder("later");
  ASSERT_TRUE(learner->save(TenantSlot(0), first).ok());
  const auto updated = [&] {
    must_accumulate(*learner, loss_batch());
    must_apply(*learner);
    return weights(*learner);
  };
  updated();
  const auto saved = updated();
  ASSERT_TRUE(learner->save(TenantSlot(0), later).ok());
  const auto loaded = [&](const std::filesystem::path& others) {
    must_accumulate(*learner, loss_batch());
    ASSERT_TRUE(learner->load_weights(TenantSlot(0), later, others).ok());
    EXPECT_FALSE(learner->has_open_gradients(TenantSlot(0))) << "a load discards them";
    EXPECT_TRUE(equal(*saved, *weights(*learner)));
  };
  loaded(later);
  const auto third = updated();
  loaded(first);
  const auto begun_anew = updated();
  loaded(later);
  EXPECT_TRUE(equal(*third, *updated()));
  loaded(first);
  EXPECT_TRUE(equal(*begun_anew, *updated()));
  EXPECT_FALSE(learner->load_weights(TenantSlot(0), empty_folder("empty"), first).ok());
  EXPECT_TRUE(equal(*begun_anew, *weights(*learner))) << "all or nothing";
}

TEST_P(ClientSteps, OnlyAdamwHasAStepOfAClientsNumbers) {
  LearnerOptions options;
  options.optimizer.kind = "sgd";
  auto learner = make(options);
  must_accumulate(*learner, loss_batch());
  EXPECT_THAT(learner->apply(TenantSlot(0), {}).error().text(),
              ::testing::HasSubstr("the tenant's optimizer is 'sgd'"));
}

}  // namespace primerl
