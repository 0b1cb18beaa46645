/// The guarantees of every Learner (kernels/train/learner.h), as tests over a factory.
///
/// Include in one test file and write
///   INSTANTIATE_TEST_SUITE_P(Torch, LearnerConformance,
///   ::testing::Values(my_learner_under_test()));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "graph/base/files.h"
#include "kernels/engine/kept_sets.h"
#include "kernels/train/learner.h"
#include "kernels/train/optimizer.h"
#include "kernels/train/options.h"
#include "kernels/weights/device_weights.h"
#include "tests/store/scratch_folder.h"

namespace primerl {

struct LearnerUnderTest {
  std::string name;
  int32_t vocab_size = 0;  // tokens are [0, vocab_size)
  std::function<std::unique_ptr<Learner>(const LearnerOptions&)> make;
};

inline std::ostream& operator<<(std::ostream& out, const LearnerUnderTest& learner) {
  return out << learner.name;
}

class LearnerConformance : public ::testing::TestWithParam<LearnerUnderTest> {
 protected:
  static bool never() { return false; }

  std::unique_ptr<Learner> make(LearnerOptions options = {}) {
    if (options.optimizer.lr == OptimizerOptions().lr) options.optimizer.lr = 1e-3;
    return GetParam().make(options);
  }

  TrainSample sample(int32_t number, int32_t num_tokens = 12, int32_t num_prompt_tokens = 5) {
    TrainSample made;
    for (int32_t i = 0; i < num_tokens; ++i) {
      const bool sampled = i >= num_prompt_tokens;
      made.tokens.push_back((number * 5 + i * 3 + 1) % GetParam().vocab_size);
      made.loss_mask.push_back(sampled ? 1 : 0);
      made.logprobs.push_back(sampled ? -2.0F - 0.1F * static_cast<float>(i % 3) : 0.0F);
      made.advantages.push_back(sampled ? (number % 2 == 0 ? 0.5F : -0.5F) : 0.0F);
    }
    return made;
  }

  TrainBatch batch(int32_t num_samples = 6) {
    TrainBatch made;
    made.tenant = TenantSlot(0);
    for (int32_t i = 0; i < num_samples; ++i) made.samples.push_back(sample(i, 9 + i));
    return made;
  }

  std::shared_ptr<const WeightSnapshot> weights(Learner& learner) {
    auto taken = learner.snapshot(TenantSlot(0), PolicyVersion(7));
    EXPECT_TRUE(taken.ok()) << (taken.ok() ? "" : taken.error().text());
    auto bytes = on_host(*taken);
    EXPECT_TRUE(bytes.ok()) << (bytes.ok() ? "" : bytes.error().text());
    return *bytes;
  }

  static bool equal(const WeightSnapshot& a, const WeightSnapshot& b) {
    if (a.tensors.size() != b.tensors.size()) return false;
    for (size_t i = 0; i < a.tensors.size(); ++i)
      if (a.tensors[i].name != b.tensors[i].name || !(a.tensors[i].bytes == b.tensors[i].bytes))
        return false;
    return true;
  }

  TrainReport must_step(Learner& learner, const TrainBatch& data) {
    auto report = learner.step(data, never);
    EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().text());
    return report.ok() ? *report : TrainReport();
  }

  void expect_refused(const TrainBatch& data) {
    auto learner = make();
    const auto before = weights(*learner);
    EXPECT_FALSE(learner->step(data, never).ok());
    EXPECT_TRUE(equal(*before, *weights(*learner)));
  }

  static std::filesystem::path empty_folder(const std::string& name) {
    const auto folder = new_scratch_folder() / name;
    std::filesystem::create_directories(folder);
    return folder;
  }
};

TEST_P(LearnerConformance, RefusesArraysOfUnequalLength) {
  auto data = batch();
  data.samples[1].loss_mask.pop_back();
  expect_refused(data);
  data = batch();
  data.samples[1].advantages.clear();
  expect_refused(data);
}

TEST_P(LearnerConformance, RefusesATokenOutsideTheVocabulary) {
  auto data = batch();
  data.samples[2].tokens[3] = GetParam().vocab_size;
  expect_refused(data);
  data.samples[2].tokens[3] = -1;
  expect_refused(data);
}

TEST_P(LearnerConformance, RefusesNumbersThatAreNotFinite) {
  auto data = batch();
  data.samples[1].advantages.back() = std::numeric_limits<float>::quiet_NaN();
  expect_refused(data);
  data = batch();
  data.samples[1].logprobs.back() = -std::numeric_limits<float>::infinity();
  expect_refused(data);
}

TEST_P(LearnerConformance, RefusesATemperatureOfZero) {
  auto data = batch();
  data.samples[0].temperature = 0;
  expect_refused(data);
}

TEST_P(LearnerConformance, RefusesKeptSetsThatAreNotOfItsTokens) {
  const auto kept_of = [&](const TrainSample& sample, int32_t shift) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < sample.tokens.size(); ++i)
      if (sample.loss_mask[i] != 0)
        append_kept(std::vector{(sample.tokens[i] + shift) % GetParam().vocab_size},
                    GetParam().vocab_size, bytes);
    return bytes;
  };
  auto data = batch();
  for (auto& one : data.samples) one.kept = Blob(kept_of(one, 0));
  EXPECT_FALSE(must_step(*make(), data).skipped);
  data.samples[3].kept = Blob(kept_of(data.samples[3], 1));
  expect_refused(data);
  auto bytes = kept_of(data.samples[3], 0);
  bytes.pop_back();
  data.samples[3].kept = Blob(bytes);
  expect_refused(data);
  bytes = kept_of(data.samples[3], 0);
  bytes.emplace_back();
  data.samples[3].kept = Blob(bytes);
  expect_refused(data);
}

TEST_P(LearnerConformance, TakesTheLongestSampleAndNoLonger) {
  auto learner = make();
  const int32_t longest = learner->limits().max_sequence_tokens;
  if (longest > 4096) GTEST_SKIP() << "the limit of " << longest << " is too far away";
  TrainBatch data;
  data.tenant = TenantSlot(0);
  data.samples = {sample(1, longest)};
  EXPECT_FALSE(must_step(*learner, data).skipped);
  data.samples = {sample(1, longest + 1)};
  expect_refused(data);
}

TEST_P(LearnerConformance, CountsTokensAndLossTokens) {
  auto learner = make();
  const auto report = must_step(*learner, batch(6));
  EXPECT_EQ(report.num_tokens, 9 + 10 + 11 + 12 + 13 + 14);
  EXPECT_EQ(report.num_loss_tokens, 4 + 5 + 6 + 7 + 8 + 9);
  EXPECT_GE(report.num_micro_batches, 1);
  EXPECT_FALSE(report.skipped);
  EXPECT_TRUE(std::isfinite(report.loss));
  EXPECT_GE(report.grad_norm, 0);
  EXPECT_GE(report.entropy_mean, 0);
  EXPECT_GE(report.mismatch_kl_mean, 0);
  EXPECT_GE(report.mismatch_kl_max, report.mismatch_kl_mean);
}

TEST_P(LearnerConformance, SkipsABatchWithNothingToTrainOn) {
  auto learner = make();
  const auto before = weights(*learner);
  auto data = batch();
  for (auto& one : data.samples) std::fill(one.loss_mask.begin(), one.loss_mask.end(), 0);
  const auto report = must_step(*learner, data);
  EXPECT_TRUE(report.skipped);
  EXPECT_FALSE(report.skip_reason.empty());
  data.samples.clear();
  EXPECT_TRUE(must_step(*learner, data).skipped);
  EXPECT_TRUE(equal(*before, *weights(*learner)));
}

TEST_P(LearnerConformance, AStepChangesTheWeights) {
  auto learner = make();
  const auto before = weights(*learner);
  must_step(*learner, batch());
  EXPECT_FALSE(equal(*before, *weights(*learner)));
}

TEST_P(LearnerConformance, EqualDataGivesEqualBits) {
  auto one = make(), two = make();
  for (int i = 0; i < 3; ++i) {
    must_step(*one, batch());
    must_step(*two, batch());
  }
  EXPECT_TRUE(equal(*weights(*one), *weights(*two)));
}

TEST_P(LearnerConformance, AStopBetweenMicroBatchesDiscardsTheStep) {
  LearnerOptions options;
  options.micro_batch_tokens = 16;
  auto stopped = make(options), untouched = make(options);
  const auto before = weights(*stopped);
  int asked = 0;
  const auto report = stopped->step(batch(), [&] { return ++asked >= 2; });
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code(), Code::kCancelled);
  EXPECT_TRUE(equal(*before, *weights(*stopped)));
  must_step(*stopped, batch());
  must_step(*untouched, batch());
  EXPECT_TRUE(equal(*weights(*untouched), *weights(*stopped)));
}

TEST_P(LearnerConformance, MicroBatchesDoNotChangeTheMeans) {
  LearnerOptions small;
  small.micro_batch_tokens = 16;
  auto whole = make(), parts = make(small);
  const auto one = must_step(*whole, batch()), many = must_step(*parts, batch());
  EXPECT_GT(many.num_micro_batches, one.num_micro_batches);
  EXPECT_NEAR(many.loss, one.loss, 1e-5 * (1 + std::abs(one.loss)));
  EXPECT_NEAR(many.entropy_mean, one.entropy_mean, 1e-4);
  EXPECT_NEAR(many.mismatch_kl_mean, one.mismatch_kl_mean, 1e-4 * (1 + one.mismatch_kl_mean));
  EXPECT_NEAR(many.grad_norm, one.grad_norm, 1e-4 * (1 + one.grad_norm));
  EXPECT_EQ(many.num_loss_tokens, one.num_loss_tokens);
}

TEST_P(LearnerConformance, ASnapshotIsNamedSortedAndNeverChanges) {
  auto learner = make();
  const auto taken = weights(*learner);
  EXPECT_EQ(taken->version, PolicyVersion(7));
  ASSERT_FALSE(taken->tensors.empty());
  std::vector<std::vector<std::byte>> bytes;
  for (size_t i = 0; i < taken->tensors.size(); ++i) {
    const auto& tensor = taken->tensors[i];
    if (i > 0) {
      EXPECT_LT(taken->tensors[i - 1].name, tensor.name);
    }
    size_t expected = size_in_bytes(tensor.type);
    for (const int64_t extent : tensor.shape) expected *= static_cast<size_t>(extent);
    EXPECT_EQ(tensor.bytes.size(), expected) << tensor.name;
    bytes.emplace_back(tensor.bytes.bytes().begin(), tensor.bytes.bytes().end());
  }
  must_step(*learner, batch());
  for (size_t i = 0; i < bytes.size(); ++i)
    EXPECT_TRUE(
        std::equal(bytes[i].begin(), bytes[i].end(), taken->tensors[i].bytes.bytes().begin()));
}

TEST_P(LearnerConformance, ReportsTheScheduledLearningRate) {
  LearnerOptions options;
  options.optimizer.lr = 0.01;
  options.schedule.warmup_steps = 1;
  auto learner = make(options);
  EXPECT_DOUBLE_EQ(must_step(*learner, batch()).learning_rate, 0.005);
  EXPECT_DOUBLE_EQ(must_step(*learner, batch()).learning_rate, 0.01);
}

TEST_P(LearnerConformance, TrainsOnPlainTextWithCrossEntropy) {
  auto learner = make();
  auto data = batch();
  data.loss = LossKind::kCrossEntropy;
  for (auto& one : data.samples) {
    one.logprobs.clear();
    one.advantages.clear();
  }
  const auto report = must_step(*learner, data);
  EXPECT_FALSE(report.skipped);
  EXPECT_GE(report.loss, 0);
}

TEST_P(LearnerConformance, ScoresEveryTokenAfterTheFirst) {
  auto learner = make();
  const auto scored = learner->score(TenantSlot(0), {1, 2, 3, 4, 5});
  ASSERT_TRUE(scored.ok()) << scored.error().text();
  ASSERT_EQ(scored->size(), 4U);
  for (const float logprob : *scored) EXPECT_LE(logprob, 0.0F);
  const auto one = learner->score(TenantSlot(0), {1});
  ASSERT_TRUE(one.ok()) << one.error().text();
  EXPECT_TRUE(one->empty());
  EXPECT_FALSE(learner->score(TenantSlot(0), {}).ok());
  EXPECT_FALSE(learner->score(TenantSlot(0), {1, GetParam().vocab_size}).ok());
}

TEST_P(LearnerConformance, ARestoredLearnerContinuesUnchangedWithEachOptimizer) {
  for (const std::string& kind : optimizer_names()) {
    SCOPED_TRACE(kind);
    const auto folder = empty_folder("checkpoint");
    LearnerOptions options;
    options.optimizer.kind = kind;
    options.schedule.warmup_steps = 10;
    auto straight = make(options), restored = make(options);
    must_step(*straight, batch());
    must_step(*straight, batch());
    const Status saved = straight->save(TenantSlot(0), folder);
    ASSERT_TRUE(saved.ok()) << saved.error().text();
    const Status loaded = restored->load(TenantSlot(0), folder);
    ASSERT_TRUE(loaded.ok()) << loaded.error().text();
    EXPECT_TRUE(equal(*weights(*straight), *weights(*restored)));
    const auto expected = must_step(*straight, batch(3));
    const auto actual = must_step(*restored, batch(3));
    EXPECT_EQ(actual.learning_rate, expected.learning_rate);
    EXPECT_EQ(actual.loss, expected.loss);
    EXPECT_TRUE(equal(*weights(*straight), *weights(*restored)));
  }
}

/// The files of two folders, by name.
inline std::map<std::string, std::string> files_below(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files[entry.path().lexically_relative(folder).string()] = *read_text_file(entry.path());
  return files;
}

TEST_P(LearnerConformance, ACopyIsWrittenAsItWasWhateverIsTrainedMeanwhile) {
  const auto before = empty_folder("before"), later = empty_folder("later");
  auto learner = make();
  must_step(*learner, batch());
  const auto copy = learner->capture(TenantSlot(0));
  ASSERT_TRUE(copy.ok()) << copy.error().text();
  ASSERT_NE(*copy, nullptr);
  ASSERT_TRUE(learner->save(TenantSlot(0), before).ok());
  must_step(*learner, batch(3));
  ASSERT_TRUE((*copy)->write(later).ok());
  EXPECT_EQ(files_below(later), files_below(before));
  EXPECT_FALSE(files_below(before).empty());
}

TEST_P(LearnerConformance, ASaveIsCommittedOnceAndItsEndIsTakenOnce) {
  const auto folder = empty_folder("begun");
  auto learner = make();
  int num_commits = 0;
  const LearnerSave save{TenantSlot(0), folder, Time(), [&] {
                           ++num_commits;
                           return ok();
                         }};
  ASSERT_TRUE(learner->begin_save(save).ok());
  const auto ended = learner->end_of_save(TenantSlot(0), Time());
  ASSERT_TRUE(ended.has_value());
  EXPECT_TRUE(ended->ok());
  EXPECT_EQ(num_commits, 1);
  EXPECT_FALSE(files_below(folder).empty());
  EXPECT_FALSE(learner->end_of_save(TenantSlot(0), Time())->ok()) << "nothing was begun";
}

TEST_P(LearnerConformance, AFolderThatCannotBeReadLeavesTheLearnerAsItWas) {
  const auto folder = empty_folder("nothing");
  auto learner = make(), other = make();
  must_step(*learner, batch());
  must_step(*other, batch());
  EXPECT_FALSE(learner->load(TenantSlot(0), folder).ok());
  must_step(*learner, batch());
  must_step(*other, batch());
  EXPECT_TRUE(equal(*weights(*learner), *weights(*other)));
}

}  // namespace primerl
