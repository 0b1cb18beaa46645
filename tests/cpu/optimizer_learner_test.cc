// Optimizers in a learner: what they train, and beside other tenants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/train/optimizer.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using testing::make_adapter_learner;
using testing::make_folder;
using testing::never;
using testing::scratch_folder;
using testing::two_groups;
using testing::bytes_of;

constexpr TenantSlot kFirst(0), kSecond(1);

/// Rates with which 20 steps lower the loss of a tiny model.
double rate_of(const std::string& kind) {
  if (kind == "sgd") return 0.1;
  if (kind == "sign_sgd") return 2e-3;
  return kind == "adafactor" ? 0.02 : 0.01;
}

AdapterTraining training_of(TenantSlot tenant, const std::string& kind) {
  AdapterTraining training{tenant, {.rank = 4, .alpha = 8}, {}, {}};
  training.rules.optimizer.kind = kind;
  training.rules.optimizer.lr = rate_of(kind);
  return training;
}

TEST(LearnerOptimizer, EachKindLowersTheLossOfWholeWeights) {
  const auto folder = make_folder({.deviation = 0.1});
  for (const std::string& kind : optimizer_names()) {
    LearnerOptions options;
    options.optimizer.kind = kind;
    options.optimizer.lr = rate_of(kind);
    auto learner = make_torch_learner(options, folder).value();
    const auto data = two_groups(kFirst, LossKind::kCrossEntropy);
    const double before = learner->step(data, never)->loss;
    double after = before;
    for (int step = 0; step < 20; ++step) after = learner->step(data, never)->loss;
    EXPECT_LT(after, 0.8 * before) << kind;
  }
}

TEST(LearnerOptimizer, EachKindLowersTheLossOfAnAdapter) {
  const auto folder = make_folder({.deviation = 0.1});
  for (const std::string& kind : optimizer_names()) {
    auto learner = make_adapter_learner(folder, {training_of(kFirst, kind)});
    const auto data = two_groups(kFirst, LossKind::kCrossEntropy);
    const double before = learner->step(data, never)->loss;
    double after = before;
    for (int step = 0; step < 20; ++step) after = learner->step(data, never)->loss;
    EXPECT_LT(after, 0.97 * before) << kind;
  }
}

TEST(LearnerOptimizer, OfATenantDoesNotDependOnThatOfAnother) {
  const auto folder = make_folder({});
  auto both =
      make_adapter_learner(folder, {training_of(kFirst, "muon"), training_of(kSecond, "sgd")});
  auto alone = make_adapter_learner(folder, {training_of(kSecond, "sgd")});
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(both->step(two_groups(kFirst), never).ok());
    ASSERT_TRUE(both->step(two_groups(kSecond), never).ok());
    ASSERT_TRUE(alone->step(two_groups(kSecond), never).ok());
  }
  EXPECT_EQ(bytes_of(both->snapshot(kSecond, PolicyVersion(3)).value()->tensors),
            bytes_of(alone->snapshot(kSecond, PolicyVersion(3)).value()->tensors));
}

TEST(LearnerOptimizer, DoesNotLoadACheckpointOfAnotherKind) {
  const auto folder = make_folder({});
  const auto checkpoint = scratch_folder("checkpoint");
  auto saved = make_adapter_learner(folder, {training_of(kFirst, "adafactor")});
  ASSERT_TRUE(saved->step(two_groups(kFirst), never).ok());
  ASSERT_TRUE(saved->save(kFirst, checkpoint).ok());
  auto other = make_adapter_learner(folder, {training_of(kFirst, "muon")});
  auto same = make_adapter_learner(folder, {training_of(kFirst, "muon")});
  const Status loaded = other->load(kFirst, checkpoint);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code(), Code::kInvalid);
  EXPECT_THAT(loaded.error().text(), HasSubstr("optimizer 'adafactor' wrote it"));
  ASSERT_TRUE(other->step(two_groups(kFirst), never).ok());
  ASSERT_TRUE(same->step(two_groups(kFirst), never).ok());
  EXPECT_EQ(bytes_of(other->snapshot(kFirst, PolicyVersion(1)).value()->tensors),
            bytes_of(same->snapshot(kFirst, PolicyVersion(1)).value()->tensors));
}

TEST(LearnerOptimizer, RefusesMomentsOnTheHostOnTheCpu) {
  LearnerOptions options;
  options.optimizer.moments_on = "host";
  const auto made = make_torch_learner(options, make_folder({}));
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().text(), HasSubstr("'optimizer.moments_on' is \"host\""));
}

}  // namespace
}  // namespace primerl
