// A learner's errors for NaN or infinity and for models that are too large, and the batches it
// keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "kernels/cpu/learner/learner.h"
#include "kernels/train/batch_file.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/never.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using testing::make_folder;
using testing::never;

std::unique_ptr<CpuLearner> make_learner(const std::filesystem::path& folder,
                                         const LearnerOptions& options) {
  auto learner = std::make_unique<CpuLearner>(options, read_model_folder(folder).value());
  CHECK(learner->fill(read_model_tensors(folder).value()).ok(), "cannot fill");
  return learner;
}

LearnerOptions frozen() {
  LearnerOptions options;
  options.optimizer.lr = 0;
  return options;
}

TrainBatch batch() {
  TrainBatch made;
  made.loss = LossKind::kCrossEntropy;
  for (int32_t i = 0; i < 4; ++i) {
    TrainSample& sample = made.samples.emplace_back();
    for (int32_t t = 0; t < 8 + i; ++t) sample.tokens.push_back((7 * i + 3 * t) % 60);
    sample.loss_mask.assign(sample.tokens.size(), 1);
  }
  return made;
}

/// A model with a NaN weight, in a layer that every token uses.
void break_weight(CpuLearner& learner, const std::string& name) {
  auto tensors = learner.snapshot(TenantSlot(0), PolicyVersion(1)).value()->tensors;
  for (auto& tensor : tensors) {
    if (tensor.name != name) continue;
    std::vector<std::byte> bytes(tensor.bytes.bytes().begin(), tensor.bytes.bytes().end());
    const float none = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes.data() + 4, &none, sizeof(none));
    tensor.bytes = Blob(std::move(bytes));
  }
  CHECK(learner.fill(tensors).ok(), "cannot fill");
}

TEST(CpuLearner, HasNoBf16OnTheCpu) {
  LearnerOptions options = frozen();
  options.dtype = "float32";
  EXPECT_TRUE(make_torch_learner(options, make_folder({})).ok());
  options.dtype = "bfloat16";
  const auto learner = make_torch_learner(options, make_folder({}));
  ASSERT_FALSE(learner.ok());
  EXPECT_THAT(learner.error().text(), HasSubstr("a learner on the CPU computes in float32"));
}

TEST(CpuLearner, NamesTheFirstNanActivation) {
  LearnerOptions options = frozen();
  options.debug.check_finite = true;
  auto learner = make_learner(make_folder({}), options);
  EXPECT_FALSE(learner->step(batch(), never)->skipped);
  break_weight(*learner, "model.layers.1.mlp.gate_proj.weight");
  const auto report = learner->step(batch(), never).value();
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(report.skip_reason,
            "activation 'layers.1.mlp.gate_up' is nan at row 0, column 0 of micro-batch 0 "
            "(step 2)");
}

TEST(CpuLearner, NamesATensorWithANanGradient) {
  auto learner = make_learner(make_folder({}), frozen());
  break_weight(*learner, "model.layers.1.mlp.gate_proj.weight");
  const auto report = learner->step(batch(), never).value();
  EXPECT_TRUE(report.skipped);
  EXPECT_THAT(report.skip_reason, HasSubstr("first in 'model."));
}

TEST(CpuLearner, KeepsTheNewestBatchesAndRepeatsTheirSteps) {
  const auto folder = make_folder({});
  LearnerOptions options;
  options.optimizer.lr = 1e-3;
  options.debug.batch_folder = (testing::scratch_folder("kept") / "batches").string();
  options.debug.batches_max = 2;
  auto learner = make_learner(folder, options);
  for (int step = 0; step < 3; ++step) ASSERT_TRUE(learner->step(batch(), never).ok());
  const auto file = [&](int step) {
    return std::filesystem::path(options.debug.batch_folder) /
           fmt::format("step_{:06}.safetensors", step);
  };
  EXPECT_FALSE(std::filesystem::exists(file(1)));
  EXPECT_TRUE(std::filesystem::exists(file(2)));
  const auto again = read_train_batch(file(3)).value();
  options.debug = {};
  auto first = make_learner(folder, options), second = make_learner(folder, options);
  const auto a = first->step(batch(), never).value(), b = second->step(again, never).value();
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
}

TEST(CpuLearner, ABatchThatCannotBeKeptChangesNoStep) {
  const auto folder = make_folder({});
  LearnerOptions options;
  options.optimizer.lr = 1e-3;
  auto plain = make_learner(folder, options);
  options.debug.batch_folder = (testing::scratch_folder("gone") / "batches").string();
  auto learner = make_learner(folder, options);
  std::filesystem::remove_all(options.debug.batch_folder);
  std::ofstream(options.debug.batch_folder) << "in the way";
  for (int step = 0; step < 3; ++step)
    EXPECT_EQ(learner->step(batch(), never).value().loss, plain->step(batch(), never).value().loss);
  EXPECT_FALSE(make_torch_learner(options, folder).ok()) << "but a run does not start like that";
}

TEST(CpuLearner, ABrokenStepLeavesItsOwnDumpAndNoOlderOne) {
  auto options = frozen();
  options.debug.check_finite = true;
  options.debug.dump_folder = testing::scratch_folder("dump").string();
  auto learner = make_learner(make_folder({}), options);
  const auto file = std::filesystem::path(options.debug.dump_folder) / "step.safetensors";
  ASSERT_FALSE(learner->step(batch(), never)->skipped);
  const auto whole = read_safetensors(file).value();
  break_weight(*learner, "model.layers.1.mlp.gate_proj.weight");
  ASSERT_TRUE(learner->step(batch(), never)->skipped);
  const auto broken = read_safetensors(file).value();
  EXPECT_LT(broken.size(), whole.size());
  EXPECT_THAT(broken.back().name, HasSubstr("micro_batch.0."))
      << "activations, and nothing after them";
}

TEST(CpuLearner, RefusesAModelThatIsLargerThanTheMachine) {
  const auto folder = testing::write_config({.vocab_size = 2'000'000'000, .hidden_size = 4096},
                                            testing::scratch_folder("large"));
  LearnerOptions options;
  options.init_seed = 1;
  const auto learner = make_torch_learner(options, folder);
  ASSERT_FALSE(learner.ok());
  EXPECT_THAT(learner.error().text(), HasSubstr("needs 13"));
  EXPECT_THAT(learner.error().text(), HasSubstr(" GB of memory, the limit is "));
}

}  // namespace
}  // namespace primerl
