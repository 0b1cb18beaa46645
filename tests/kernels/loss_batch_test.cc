// Requests of a client to a learner: losses of the Tinker wire, data, Adam's numbers; and how
// data becomes micro-batches.
#include "kernels/train/loss_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/train/learner.h"
#include "kernels/train/objective.h"
#include "kernels/train/packing.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr SampleLimits kLossLimits{.max_sequence_tokens = 8, .vocab_size = 50};

std::string fault_of(const Status& status) { return status.ok() ? "" : status.error().text(); }

std::string fault_of(std::string_view name, const std::map<std::string, double>& config) {
  const auto loss = tinker_loss(name, config);
  return loss.ok() ? "" : loss.error().text();
}

LossBatch loss_batch_of(std::string_view loss) {
  LossBatch made;
  made.loss = tinker_loss(loss, {}).value();
  for (int32_t i = 0; i < 2; ++i) {
    LossDatum& datum = made.data.emplace_back();
    datum.tokens = {1, 2, 3};
    datum.targets = {2, 3, 4};
    if (loss == "cross_entropy") continue;
    datum.logprobs = {-1, -2, 0};
    datum.advantages = {0, 1, -1};
  }
  return made;
}

std::string fault_after(std::string_view loss, const auto& change) {
  LossBatch batch = loss_batch_of(loss);
  change(batch.data[1]);
  return fault_of(check_loss_batch(batch, kLossLimits));
}

TEST(TinkerLoss, HasTheNumbersOfTheWire) {
  const auto of = [](std::string_view name, const std::map<std::string, double>& config = {}) {
    return objective_of(tinker_loss(name, config).value());
  };
  EXPECT_EQ(of("cross_entropy").rule, ObjectiveRule::kCrossEntropy);
  EXPECT_EQ(of("importance_sampling").rule, ObjectiveRule::kImportance);
  EXPECT_EQ(1 - of("ppo").clip_low, 0.8);
  EXPECT_EQ(1 + of("ppo").clip_high, 1.2);
  EXPECT_EQ(1 + of("ppo", {{"clip_high_threshold", 1.28}}).clip_high, 1.28);
  EXPECT_EQ(of("ppo", {{"clip_low_threshold", 0}}).clip_low, 1);
  EXPECT_EQ(of("cispo").weight_low, 0);
  EXPECT_EQ(of("cispo").weight_high, 4);
  EXPECT_EQ(of("cispo", {{"clip_low_threshold", 0.5}}).weight_low, 0.5);
  EXPECT_EQ(of("dro").kl_weight, 0.05);
  EXPECT_EQ(of("dro", {{"beta", 0.3}}).kl_weight, 0.15);
  EXPECT_EQ(of("dro", {{"beta", 0}}).kl_weight, 0);
}

TEST(TinkerLoss, RefusesByNameWhatItDoesNotKnow) {
  EXPECT_THAT(fault_of("gspo", {}), HasSubstr("unknown loss 'gspo'"));
  EXPECT_THAT(fault_of("gspo", {}), HasSubstr("importance_sampling, ppo"));
  EXPECT_THAT(fault_of("ppo", {{"beta", 1}}), HasSubstr("loss 'ppo' has no number 'beta'"));
  EXPECT_THAT(fault_of("cross_entropy", {{"beta", 1}}),
              HasSubstr("'cross_entropy' is used without any"));
  EXPECT_THAT(fault_of("dro", {{"beta", -0.1}}), HasSubstr("'beta' of loss 'dro' is -0.1"));
  EXPECT_THAT(fault_of("dro", {{"beta", std::nan("")}}), HasSubstr("must be 0 or above"));
  EXPECT_THAT(fault_of("ppo", {{"clip_low_threshold", 1.1}}), HasSubstr("which lacks 1"));
  EXPECT_THAT(fault_of("ppo", {{"clip_high_threshold", 0.9}}), HasSubstr("which lacks 1"));
  EXPECT_THAT(fault_of("cispo", {{"clip_low_threshold", 5}}), HasSubstr("is above weight_high"));
  EXPECT_THAT(fault_of("cispo", {{"clip_high_threshold", 0}}), HasSubstr("would train"));
}

TEST(ClientLoss, IsASumOverTargetsEachByItself) {
  const auto fault = [](std::string_view kind) {
    LossOptions loss;
    loss.kind = kind;
    return fault_of(check_client_loss(loss));
  };
  for (const char* kind : {"dppo", "ppo", "dapo", "cispo", "tis", "dro", "cross_entropy"})
    EXPECT_EQ(fault(kind), "") << kind;
  EXPECT_THAT(fault("gspo"), HasSubstr("log-probabilities of all tokens"));
  EXPECT_THAT(fault("m2po"), HasSubstr("log-probabilities of all tokens"));
  EXPECT_THAT(fault("grpo"), HasSubstr("the length of each sequence"));
  EXPECT_THAT(fault("opd"), HasSubstr("a reference model"));
  EXPECT_THAT(fault("ref_kl"), HasSubstr("a reference model"));
  EXPECT_THAT(fault("gkd"), HasSubstr("the likeliest tokens of a teacher"));
  LossOptions penalty;
  penalty.kind = "ppo";
  penalty.reference_weight = 0.1;
  EXPECT_THAT(fault_of(check_client_loss(penalty)), HasSubstr("a reference model"));
}

TEST(LossBatches, AreRefusedByTheNameOfTheArray) {
  using D = LossDatum;
  EXPECT_EQ(fault_of(check_loss_batch(loss_batch_of("ppo"), kLossLimits)), "");
  LossBatch empty = loss_batch_of("ppo");
  empty.data.clear();
  EXPECT_THAT(fault_of(check_loss_batch(empty, kLossLimits)), HasSubstr("no data"));
  const auto fault = [](const auto& change) { return fault_after("ppo", change); };
  EXPECT_THAT(fault([](D& d) { d.tokens.clear(); }), HasSubstr("it has no tokens"));
  EXPECT_THAT(fault([](D& d) { d.tokens.clear(); }), HasSubstr("datum 1"));
  EXPECT_THAT(fault([](D& d) { d.targets.pop_back(); }), HasSubstr("3 tokens, but 2 targets"));
  EXPECT_THAT(fault([](D& d) { d.weights = {1}; }), HasSubstr("3 targets, but 1 weights"));
  EXPECT_THAT(fault([](D& d) { d.logprobs.clear(); }), HasSubstr("3 targets, but 0 logprobs"));
  EXPECT_THAT(fault([](D& d) { d.advantages.push_back(1); }), HasSubstr("but 4 advantages"));
  EXPECT_THAT(fault([](D& d) { d.tokens[1] = 50; }), HasSubstr("tokens[1] is 50, outside"));
  EXPECT_THAT(fault([](D& d) { d.targets[2] = -1; }), HasSubstr("targets[2] is -1, outside"));
  EXPECT_THAT(fault([](D& d) { d.logprobs[0] = 0.02F; }), HasSubstr("logprobs[0] is 0.02"));
  EXPECT_THAT(fault([](D& d) { d.logprobs[0] = std::nanf(""); }), HasSubstr("logprobs[0] is nan"));
  EXPECT_THAT(fault([](D& d) { d.advantages[1] = std::numeric_limits<float>::infinity(); }),
              HasSubstr("advantages[1] is inf"));
  EXPECT_THAT(fault([](D& d) {
                d.weights = {0, -std::numeric_limits<float>::infinity(), 0};
              }),
              HasSubstr("weights[1] is -inf"));
  const auto answers = [](const auto& change) { return fault_after("cross_entropy", change); };
  EXPECT_EQ(answers([](D& d) { d.weights = {-5, 0, 1e9F}; }), "");
  EXPECT_THAT(answers([](D& d) {
                d.advantages = {1, 1, 1};
              }),
              HasSubstr("cross_entropy reads no advantages"));
  EXPECT_THAT(answers([](D& d) { d.logprobs = {0, 0, 0}; }), HasSubstr("reads no logprobs"));
}

TEST(LossBatches, HaveLimits) {
  const auto of_tokens = [](size_t num_tokens, size_t num_targets) {
    return [=](LossDatum& datum) {
      datum.tokens.assign(num_tokens, 1);
      datum.targets.assign(num_targets, 2);
      if (num_targets != num_tokens) datum.positions.assign(num_targets, 0);
    };
  };
  EXPECT_EQ(fault_after("cross_entropy", of_tokens(8, 8)), "");
  EXPECT_THAT(fault_after("cross_entropy", of_tokens(9, 9)), HasSubstr("limit of 8"));
  const auto most = static_cast<size_t>(2 * kTargetsPerTokenMax);
  EXPECT_EQ(fault_after("cross_entropy", of_tokens(2, most)), "");
  EXPECT_THAT(fault_after("cross_entropy", of_tokens(2, most + 1)),
              HasSubstr("129 targets for 2 tokens are more than 64"));
}

TEST(LossBatches, HavePositionsThatRise) {
  const auto with = [](std::vector<int32_t> positions) {
    return fault_after("cross_entropy",
                       [&](LossDatum& datum) { datum.positions = std::move(positions); });
  };
  EXPECT_EQ(with({0, 0, 2}), "");
  EXPECT_THAT(with({0, 1}), HasSubstr("3 targets, but 2 positions"));
  EXPECT_THAT(with({0, 1, 3}), HasSubstr("positions[2] is 3, not in [0, 3)"));
  EXPECT_THAT(with({-1, 0, 1}), HasSubstr("positions[0] is -1"));
  EXPECT_THAT(with({0, 2, 1}), HasSubstr("positions[2] is 1, after 2"));
}

TEST(LossBatches, BecomeMicroBatchesLongestFirst) {
  LossBatch batch = loss_batch_of("ppo");
  LossDatum& longer = batch.data.emplace_back();
  longer.tokens = {7, 8, 9, 10, 11};
  longer.targets = {30, 31};
  longer.positions = {1, 3};
  longer.weights = {-2, 0};
  longer.logprobs = {-0.5F, -0.25F};
  longer.advantages = {4, 5};
  const auto batches = pack(batch.data, 7, 100);
  ASSERT_EQ(batches.size(), 2U);
  const MicroBatch& first = batches[0];
  EXPECT_THAT(first.rows.tokens, ElementsAre(7, 8, 9, 10, 1, 2, 3)) << "rows after the last target";
  EXPECT_THAT(first.rows.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2));
  ASSERT_EQ(first.targets.size(), 5U);
  EXPECT_EQ(first.targets[1].row, 3);
  EXPECT_EQ(first.targets[0].label, 30);
  EXPECT_EQ(first.targets[0].weight, -2);
  EXPECT_EQ(first.targets[1].advantage, 5);
  EXPECT_EQ(first.targets[0].sample, 2);
  EXPECT_EQ(first.targets[1].position, 1);
  EXPECT_EQ(first.targets[2].row, 4);
  EXPECT_EQ(first.targets[2].weight, 1);
  EXPECT_EQ(batches[1].targets.front().sample, 1);
  // The keys of a datum depend on its number alone.
  const auto alone = pack(std::span(batch.data).subspan(1, 1), 7, 101);
  EXPECT_EQ(alone.front().rows.draws, batches[1].rows.draws);
  EXPECT_NE(pack(batch.data, 7, 0)[1].rows.draws, batches[1].rows.draws);
}

TEST(AdamNumbers, AreRefusedByName) {
  const auto fault = [](const auto& change) {
    AdamNumbers adam;
    change(adam);
    return fault_of(validate(adam));
  };
  using A = AdamNumbers;
  EXPECT_EQ(fault([](A&) {}), "");
  EXPECT_EQ(fault([](A& a) { a.lr = a.beta1 = a.beta2 = 0; }), "");
  EXPECT_THAT(fault([](A& a) { a.lr = -1; }), HasSubstr("the learning rate is -1"));
  EXPECT_THAT(fault([](A& a) { a.beta1 = 1; }), HasSubstr("beta1 is 1, not in [0, 1)"));
  EXPECT_THAT(fault([](A& a) { a.beta2 = std::nan(""); }), HasSubstr("beta2 is nan"));
  EXPECT_THAT(fault([](A& a) { a.epsilon = 0; }), HasSubstr("epsilon is 0"));
  EXPECT_THAT(fault([](A& a) { a.epsilon = 1e-60; }), HasSubstr("above 0 in fp32"));
  EXPECT_THAT(fault([](A& a) { a.weight_decay = -0.1; }), HasSubstr("the weight decay is -0.1"));
  EXPECT_THAT(fault([](A& a) { a.max_norm = std::numeric_limits<double>::infinity(); }),
              HasSubstr("the clip norm is inf"));
}

}  // namespace
}  // namespace primerl
