/// The guarantees of every Learner for tenants that join and leave (kernels/train/learner.h), as
/// tests over a factory.
///
/// Include in one test file and write
///   INSTANTIATE_TEST_SUITE_P(Torch, LearnerTenants, ::testing::Values(my_tenants_under_test()));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "graph/base/files.h"
#include "kernels/train/adapter_training.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"
#include "kernels/weights/device_weights.h"
#include "tests/store/scratch_folder.h"

namespace primerl {

struct TenantsUnderTest {
  std::string name;
  int32_t vocab_size = 0;     // tokens are [0, vocab_size)
  bool has_adapters = true;   // false: it takes any rank and targets, and any slot
  bool divides_steps = true;  // into passes
  int num_uses = 1000;        // of a slot, one after the other
  std::function<std::unique_ptr<Learner>(const LearnerOptions&,
                                         const std::vector<AdapterTraining>&)>
      make;
};

inline std::ostream& operator<<(std::ostream& out, const TenantsUnderTest& learner) {
  return out << learner.name;
}

class LearnerTenants : public ::testing::TestWithParam<TenantsUnderTest> {
 protected:
  static constexpr TenantSlot kStays{0}, kComes{1};
  static bool never() { return false; }

  /// The training of a tenant of the slot; `use` tells those of one slot apart.
  static AdapterTraining training(TenantSlot tenant, uint64_t use = 0) {
    AdapterTraining made;
    made.tenant = tenant;
    made.adapter.rank = 4;
    made.adapter.init_seed = 100 * use + tenant.value;
    made.rules.optimizer.lr = use == 0 ? 0.01 : 0.003;
    made.rules.schedule.warmup_steps = use == 0 ? 0 : 2;
    made.rules.optimizer.max_norm = use == 0 ? 1 : 0.5;
    return made;
  }
  static AdapterTraining free_slot(TenantSlot tenant) {
    AdapterTraining made = training(tenant);
    made.is_free = true;
    return made;
  }
  /// Passes have few rows, so that steps have several.
  static std::unique_ptr<Learner> make(const std::vector<AdapterTraining>& tenants) {
    LearnerOptions options;
    options.micro_batch_tokens = 24;
    options.adapter_batch_tokens = 24;
    return GetParam().make(options, tenants);
  }
  static std::unique_ptr<Learner> make_with_a_free_slot() {
    return make({training(kStays), free_slot(kComes)});
  }

  static std::shared_ptr<const TrainBatch> batch(TenantSlot tenant, int32_t number = 0) {
    auto made = std::make_shared<TrainBatch>();
    made->tenant = tenant;
    for (int32_t i = 0; i < 6; ++i) {
      TrainSample& sample = made->samples.emplace_back();
      for (int32_t t = 0; t < 9 + i; ++t) {
        const bool is_sampled = t >= 4;
        sample.tokens.push_back((number * 11 + i * 5 + t * 3 + 1) % GetParam().vocab_size);
        sample.loss_mask.push_back(is_sampled ? 1 : 0);
        sample.logprobs.push_back(is_sampled ? -2.0F : 0.0F);
        sample.advantages.push_back(is_sampled ? (i % 2 == 0 ? 0.5F : -0.5F) : 0.0F);
      }
    }
    return made;
  }
  static LossBatch client_batch(TenantSlot tenant) {
    LossBatch made;
    made.tenant = tenant;
    made.loss.kind = "cross_entropy";
    LossDatum& datum = made.data.emplace_back();
    for (int32_t t = 0; t < 8; ++t) {
      datum.tokens.push_back(t + 1);
      datum.targets.push_back(t + 2);
      datum.weights.push_back(1);
    }
    return made;
  }

  static TrainReport must_step(Learner& learner, TenantSlot tenant, int32_t number = 0) {
    const auto report = learner.step(*batch(tenant, number), never);
    EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().text());
    return report.ok() ? *report : TrainReport();
  }
  static void must_begin(Learner& learner, const AdapterTraining& tenant) {
    const Status begun = learner.begin_tenant(tenant);
    ASSERT_TRUE(begun.ok()) << begun.error().text();
  }
  static std::vector<std::byte> weights(Learner& learner, TenantSlot tenant) {
    const auto taken = learner.snapshot(tenant, PolicyVersion(1));
    EXPECT_TRUE(taken.ok()) << (taken.ok() ? "" : taken.error().text());
    std::vector<std::byte> all;
    if (!taken.ok()) return all;
    const auto host = on_host(*taken);
    for (const WeightTensor& tensor : (*host)->tensors)
      all.insert(all.end(), tensor.bytes.bytes().begin(), tensor.bytes.bytes().end());
    return all;
  }
  /// The bits of a tenant: of its weights, and after two steps, which its optimizer shows in.
  static std::vector<std::vector<std::byte>> bits(Learner& learner, TenantSlot tenant) {
    std::vector<std::vector<std::byte>> all{weights(learner, tenant)};
    for (int32_t number = 0; number < 2; ++number) {
      must_step(learner, tenant, number);
      all.push_back(weights(learner, tenant));
    }
    return all;
  }
  static Code code_of(const Status& status) {
    return status.ok() ? Code::kInternal : status.error().code();
  }
  template <class T>
  static Code code_of(const Result<T>& result) {
    return result.ok() ? Code::kInternal : result.error().code();
  }
};

TEST_P(LearnerTenants, AFreeSlotRefusesEveryCall) {
  auto learner = make_with_a_free_slot();
  const std::filesystem::path folder = new_scratch_folder();
  EXPECT_EQ(code_of(learner->step(*batch(kComes), never)), Code::kNotFound);
  EXPECT_EQ(code_of(learner->accumulate(client_batch(kComes), never)), Code::kNotFound);
  EXPECT_EQ(code_of(learner->apply(kComes, {})), Code::kNotFound);
  EXPECT_EQ(code_of(learner->snapshot(kComes, PolicyVersion(0))), Code::kNotFound);
  EXPECT_EQ(code_of(learner->score(kComes, {1, 2})), Code::kNotFound);
  EXPECT_EQ(code_of(learner->capture(kComes)), Code::kNotFound);
  EXPECT_EQ(code_of(learner->save(kComes, folder)), Code::kNotFound);
  EXPECT_EQ(code_of(learner->load(kComes, folder)), Code::kNotFound);
  EXPECT_FALSE(learner->has_open_gradients(kComes));
  learner->end_tenant(kComes);
  must_step(*learner, kStays);
  must_begin(*learner, training(kComes));
  must_step(*learner, kComes);
}

TEST_P(LearnerTenants, RefusesASlotInUseAndAnInvalidTenantAndChangesNothing) {
  auto learner = make_with_a_free_slot();
  const auto before = weights(*learner, kStays);
  EXPECT_EQ(code_of(learner->begin_tenant(training(kStays, 1))), Code::kExists);
  AdapterTraining bad = training(kComes);
  bad.adapter.rank = 0;
  EXPECT_EQ(code_of(learner->begin_tenant(bad)), Code::kInvalid);
  bad = training(kComes);
  bad.rules.optimizer.kind = "none such";
  EXPECT_EQ(code_of(learner->begin_tenant(bad)), Code::kInvalid);
  if (GetParam().has_adapters) {
    bad = training(kComes);
    bad.adapter.rank = 5;
    EXPECT_EQ(code_of(learner->begin_tenant(bad)), Code::kInvalid) << "one above the largest";
    bad = training(kComes);
    bad.adapter.targets = {"lm_head"};
    EXPECT_EQ(code_of(learner->begin_tenant(bad)), Code::kInvalid);
    EXPECT_EQ(code_of(learner->begin_tenant(training(TenantSlot(2)))), Code::kNotFound);
    bad = training(kComes);
    bad.start = (new_scratch_folder() / "none").string();
    EXPECT_FALSE(learner->begin_tenant(bad).ok());
  }
  EXPECT_EQ(code_of(learner->score(kComes, {1, 2})), Code::kNotFound) << "nothing has begun";
  EXPECT_EQ(weights(*learner, kStays), before);
  must_begin(*learner, training(kComes));
}

TEST_P(LearnerTenants, OneThatJoinsHasTheBitsOfOneThatWasThereFromTheStart) {
  auto learner = make_with_a_free_slot(), fresh = make({training(kStays), training(kComes)});
  must_step(*learner, kStays);
  must_begin(*learner, training(kComes));
  EXPECT_EQ(bits(*learner, kComes), bits(*fresh, kComes));
}

TEST_P(LearnerTenants, EndAndBeginAreAFreshStart) {
  auto learner = make({training(kStays), training(kComes)});
  auto fresh = make({training(kStays), training(kComes)});
  for (int32_t number = 0; number < 3; ++number) must_step(*learner, kComes, number);
  ASSERT_TRUE(learner->accumulate(client_batch(kComes), never).ok());
  EXPECT_TRUE(learner->has_open_gradients(kComes));
  learner->end_tenant(kComes);
  must_begin(*learner, training(kComes));
  EXPECT_FALSE(learner->has_open_gradients(kComes));
  EXPECT_EQ(code_of(learner->apply(kComes, {})), Code::kInvalid) << "nothing is open";
  EXPECT_EQ(bits(*learner, kComes), bits(*fresh, kComes));
}

TEST_P(LearnerTenants, ALaterTenantHasItsOwnAdapterRulesAndSchedule) {
  auto learner = make({training(kStays), training(kComes)});
  auto other = make({training(kStays), training(kComes, 1)});
  must_step(*learner, kComes);
  learner->end_tenant(kComes);
  must_begin(*learner, training(kComes, 1));
  EXPECT_EQ(bits(*learner, kComes), bits(*other, kComes));
  EXPECT_EQ(must_step(*learner, kComes, 2).learning_rate,
            must_step(*other, kComes, 2).learning_rate);
}

TEST_P(LearnerTenants, NobodyElseNoticesThemBetweenPassesEither) {
  auto learner = make_with_a_free_slot(), alone = make({training(kStays)});
  const auto data = batch(kStays);
  const std::vector one{data};
  int num_passes = 0;
  std::optional<Result<TrainReport>> report;
  for (; !report && num_passes < 100; ++num_passes) {
    report = learner->pass_together(one, never).front();
    if (num_passes % 2 == 0) {
      must_begin(*learner, training(kComes, static_cast<uint64_t>(num_passes % 3)));
      must_step(*learner, kComes, num_passes);
    } else {
      learner->end_tenant(kComes);
    }
  }
  ASSERT_TRUE(report && report->ok());
  if (GetParam().divides_steps) {
    EXPECT_GT(num_passes, 2) << "a step of several passes";
  }
  const TrainReport expected = must_step(*alone, kStays);
  EXPECT_EQ((*report)->loss, expected.loss);
  EXPECT_EQ((*report)->grad_norm, expected.grad_norm);
  EXPECT_EQ(bits(*learner, kStays), bits(*alone, kStays));
}

TEST_P(LearnerTenants, OpenGradientsOfANeighbourStay) {
  auto learner = make_with_a_free_slot(), alone = make({training(kStays)});
  ASSERT_TRUE(alone->accumulate(client_batch(kStays), never).ok());
  ASSERT_TRUE(learner->accumulate(client_batch(kStays), never).ok());
  must_begin(*learner, training(kComes));
  ASSERT_TRUE(learner->accumulate(client_batch(kComes), never).ok());
  learner->end_tenant(kComes);
  ASSERT_TRUE(learner->has_open_gradients(kStays));
  const AdamNumbers adam{.lr = 0.01};
  ASSERT_TRUE(alone->apply(kStays, adam).ok());
  ASSERT_TRUE(learner->apply(kStays, adam).ok());
  EXPECT_EQ(weights(*learner, kStays), weights(*alone, kStays));
}

TEST_P(LearnerTenants, AnUnfinishedStepAndThePlaceInTheQueueAreDropped) {
  auto learner = make({training(kStays), training(kComes)});
  auto fresh = make({training(kStays), training(kComes)});
  learner->share_out({0.5, 0.5}, 24);
  const auto mine = batch(kStays), gone = batch(kComes);
  uint64_t work_call = 0;
  // Two work calls put both into the line, the third runs a pass.
  for (; work_call < 4; ++work_call) {
    (void)learner->step_queued(gone, work_call, never);
    (void)learner->step_queued(mine, work_call, never);
  }
  learner->end_tenant(kComes);
  std::optional<Result<TrainReport>> report;
  for (; !report && work_call < 100; ++work_call)
    report = learner->step_queued(mine, work_call, never);
  ASSERT_TRUE(report && report->ok());
  must_begin(*learner, training(kComes));
  EXPECT_EQ(bits(*learner, kComes), bits(*fresh, kComes));
}

TEST_P(LearnerTenants, ASaveIsForgottenWithItsTenant) {
  auto learner = make({training(kStays), training(kComes)});
  const std::filesystem::path folder = new_scratch_folder() / "begun";
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(learner->begin_save({kComes, folder, Time(), [] { return ok(); }}).ok());
  learner->end_tenant(kComes);
  must_begin(*learner, training(kComes));
  EXPECT_FALSE(learner->end_of_save(kComes, Time())->ok()) << "this tenant has not begun one";
}

TEST_P(LearnerTenants, ACopyOutlivesItsTenant) {
  auto learner = make({training(kStays), training(kComes)});
  const std::filesystem::path later = new_scratch_folder();
  must_step(*learner, kComes);
  const auto copy = learner->capture(kComes);
  ASSERT_TRUE(copy.ok() && *copy != nullptr);
  const auto snapshot = learner->snapshot(kComes, PolicyVersion(1));
  const auto bytes = weights(*learner, kComes);
  learner->end_tenant(kComes);
  must_begin(*learner, training(kComes, 1));
  must_step(*learner, kComes);
  ASSERT_TRUE((*copy)->write(later).ok());
  learner->end_tenant(kComes);
  must_begin(*learner, training(kComes));
  ASSERT_TRUE(learner->load(kComes, later).ok());
  EXPECT_EQ(weights(*learner, kComes), bytes);
  EXPECT_FALSE((*snapshot)->tensors.empty());
}

TEST_P(LearnerTenants, ManyUsesOfASlotGrowNothing) {
  auto learner = make_with_a_free_slot();
  auto alone = make({training(kStays)});
  const std::string before = learner->describe();
  for (int use = 0; use < GetParam().num_uses; ++use) {
    must_begin(*learner, training(kComes, static_cast<uint64_t>(use)));
    if (use % 100 == 0) must_step(*learner, kComes, use);
    learner->end_tenant(kComes);
  }
  EXPECT_EQ(learner->describe(), before);
  EXPECT_EQ(bits(*learner, kStays), bits(*alone, kStays));
}

}  // namespace primerl
