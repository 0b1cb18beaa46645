// Engines and learners on the CPU with products = "fp8": equal bits, gradients, updates, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "kernels/devices/make.h"
#include "kernels/models/fp8_matrices.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/products_model.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using testing::engine_options;
using ::testing::HasSubstr;
using testing::kTenant;
using testing::learner_options;
using testing::make_folder;
using testing::make_learner;
using testing::mismatch;
using testing::never;
using testing::wide_model;

class Fp8Model : public ::testing::TestWithParam<std::string> {
 protected:
  const std::filesystem::path folder_ = make_folder(wide_model(GetParam()));
};

TEST_P(Fp8Model, EngineAndLearnerHaveEqualBitsAtAnyNumberOfThreads) {
  auto learner = make_learner(folder_, learner_options("fp8"));
  auto plain = make_learner(folder_, learner_options("dtype"));
  for (const int32_t threads : {1, 3})
    std::jthread([&] {
      auto engine = make_torch_engine(engine_options("fp8", threads), folder_).value();
      EXPECT_EQ(mismatch(*engine, *learner), 0.0F) << threads;
      EXPECT_GT(mismatch(*engine, *plain), 1e-3F) << "the quantisation is seen";
    }).join();
}

TEST_P(Fp8Model, TheyStayEqualAfterUpdatesThatAreAppliedInPartsOrAtOnce) {
  testing::expect_equal_after_updates(folder_, "fp8");
}

TEST_P(Fp8Model, AdaptersOnARoundedBaseHaveEqualBits) {
  EngineOptions options = engine_options("fp8");
  options.adapter_slots = 1;
  FrozenBases bases;
  auto engine = make_torch_engine(options, folder_, nullptr, &bases).value();
  const std::vector<AdapterTraining> training = {{kTenant, {.rank = 4, .alpha = 8}, {}, {}}};
  auto made = make_torch_adapter_learner(learner_options("fp8"), training, folder_, &bases);
  ASSERT_TRUE(made.ok()) << made.error().text();
  auto& learner = dynamic_cast<CpuLearner&>(**made);
  EXPECT_EQ(bases.size(), 1U) << "both read one base";
  const AdapterTable table(TensorTable(read_model_config(folder_).value()), training[0].adapter);
  ASSERT_TRUE(learner.fill_adapter(kTenant, testing::random_adapter(table, 5)).ok());
  ASSERT_TRUE(engine->apply(*testing::adapter_of(learner, kTenant, 1)).ok());
  EXPECT_EQ(mismatch(*engine, learner), 0.0F);
  auto plain =
      make_torch_adapter_learner(learner_options("dtype"), training, folder_, &bases).value();
  EXPECT_EQ(bases.size(), 2U) << "a base that is not rounded is another one";
  // Bases that are read by libtorch's GEMMs are rounded as well.
  LearnerOptions fast = learner_options("fp8");
  fast.numerics = "fast";
  auto flat = testing::make_adapter_learner(folder_, training, fast);
  ASSERT_TRUE(flat->fill_adapter(kTenant, testing::random_adapter(table, 5)).ok());
  EXPECT_LT(mismatch(*engine, *flat), 2e-2F);
}

/// The loss depends smoothly on what is not rounded and read after all layers.
TEST_P(Fp8Model, TheGradientsOfHeadAndLastNormAreThoseOfFiniteDifferences) {
  auto learner = make_learner(folder_, learner_options("fp8"));
  const auto tensors = read_model_tensors(folder_).value();
  const TrainBatch batch = testing::two_groups(kTenant, LossKind::kCrossEntropy);
  ASSERT_TRUE(learner->step(batch, never).ok());
  const auto gradients = learner->gradients();
  for (const std::string name : {"lm_head.weight", "model.norm.weight"}) {
    const auto found = std::ranges::find(gradients, name, &WeightTensor::name);
    if (found == gradients.end()) {
      EXPECT_EQ(name + GetParam(), "lm_head.weightqwen3") << "tied: the embedding feeds the layers";
      continue;
    }
    const auto gradient = testing::values(*found);
    double square = 0;
    for (const float g : gradient) square += double{g} * g;
    const double h = 1e-2 / std::sqrt(square);
    const auto loss_at = [&](double step) {
      CHECK(learner->fill(testing::moved(tensors, name, step, gradient)).ok(), "no fill");
      return learner->step(batch, never).value().loss;
    };
    EXPECT_NEAR((loss_at(h) - loss_at(-h)) / (2 * h * square), 1, 1e-2) << name;
  }
}

TEST_P(Fp8Model, RecomputationChangesNoBit) {
  std::vector<std::byte> want;
  for (const char* recompute : {"none", "keep_attention", "full"}) {
    LearnerOptions options = learner_options("fp8");
    options.recompute = recompute;
    auto learner = make_learner(folder_, options);
    ASSERT_TRUE(learner->step(testing::two_groups(kTenant), never).ok());
    const auto got = testing::bytes_of(learner->gradients());
    if (want.empty()) want = got;
    EXPECT_EQ(got, want) << recompute;
  }
}

/// Replaces one number of a tensor.
std::vector<WeightTensor> broken(std::vector<WeightTensor> tensors, const std::string& name,
                                 size_t element, float value) {
  for (auto& tensor : tensors) {
    if (tensor.name != name) continue;
    auto numbers = testing::values(tensor);
    numbers.at(element) = value;
    const auto* bytes = reinterpret_cast<const std::byte*>(numbers.data());
    tensor.bytes = Blob(std::vector<std::byte>(bytes, bytes + numbers.size() * sizeof(float)));
  }
  return tensors;
}

TEST_P(Fp8Model, WeightsWithoutAScaleAreRefusedByNameAndChangeNothing) {
  const std::string name = "model.layers.1.self_attn.v_proj.weight";
  auto learner = make_learner(folder_, learner_options("fp8"));
  auto engine = make_torch_engine(engine_options("fp8"), folder_).value();
  const auto tensors = read_model_tensors(folder_).value();
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const auto bad = std::make_shared<const WeightSnapshot>(
        WeightSnapshot{{}, PolicyVersion(1), broken(tensors, name, 333, value)});
    for (const bool is_prepared : {false, true}) {
      for (int parts = 0; is_prepared && !engine->prepare(bad); ++parts) ASSERT_LT(parts, 100);
      const auto applied = engine->apply(*bad);
      ASSERT_FALSE(applied.ok());
      EXPECT_THAT(applied.error().text(), HasSubstr("tensor '" + name + "' is "));
      EXPECT_THAT(applied.error().text(), HasSubstr("at element 333"));
    }
    const Status filled = learner->fill(bad->tensors);
    ASSERT_FALSE(filled.ok());
    EXPECT_THAT(filled.error().text(), HasSubstr("tensor '" + name + "' is "));
    EXPECT_EQ(mismatch(*engine, *learner), 0.0F) << "both have the weights from before";
  }
  // A norm has no scale: as without FP8, its numbers are loaded as they are.
  EXPECT_TRUE(
      learner->fill(broken(tensors, "model.norm.weight", 0, std::numeric_limits<float>::infinity()))
          .ok());
}

TEST(Fp8Learner, ACheckpointWithoutAScaleIsRefusedByNameAndChangesNothing) {
  const auto folder = make_folder(wide_model("qwen3"));
  auto learner = make_learner(folder, learner_options("fp8", 1e-3));
  const auto saved = testing::scratch_folder("saved_fp8");
  ASSERT_TRUE(learner->step(testing::two_groups(kTenant), never).ok());
  ASSERT_TRUE(learner->save(kTenant, saved).ok());
  const std::string name = "model.layers.1.self_attn.v_proj.weight";
  const auto tensors = broken(read_model_tensors(saved / "weights").value(), name, 333,
                              std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(write_safetensors(saved / "weights" / "model.safetensors", tensors).ok());
  ASSERT_TRUE(learner->step(testing::two_groups(kTenant), never).ok());
  const auto bits = [&] {
    return testing::bytes_of(learner->snapshot(kTenant, PolicyVersion(1)).value()->tensors);
  };
  const auto before = bits();
  const Status loaded = learner->load(kTenant, saved);
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.error().text(), HasSubstr("tensor '" + name + "' is nan at element 333"));
  EXPECT_EQ(bits(), before);
  EXPECT_THAT(learner->describe(), HasSubstr("2 optimizer steps")) << "the count stays too";
}

TEST(Fp8Learner, AnUpdateThatLeavesNoScaleIsSkippedByNameAndChangesNothing) {
  const auto folder = make_folder(wide_model("qwen3"));
  for (const std::string kind : {"adamw", "muon", "sgd", "sign_sgd", "adafactor"}) {
    LearnerOptions options = learner_options("fp8", 1e39);  // infinite in fp32
    options.optimizer.kind = kind;
    auto learner = make_learner(folder, options);
    const auto saved = testing::scratch_folder("fp8_undo");
    const auto bits = [&] {
      EXPECT_TRUE(learner->save(kTenant, saved).ok());
      const auto moments = read_text_file(saved / "learner" / "optimizer.safetensors");
      return std::pair(testing::bytes_of(read_model_tensors(saved / "weights").value()),
                       moments.ok() ? *moments : std::string());
    };
    const auto before = bits();
    const std::vector<int32_t> tokens = {5, 6, 7, 8};
    const auto scored = learner->score(kTenant, tokens).value();
    const auto report = learner->step(testing::two_groups(kTenant), never);
    ASSERT_TRUE(report.ok()) << kind << ": " << report.error().text();
    EXPECT_TRUE(report->skipped) << kind;
    EXPECT_THAT(report->skip_reason, HasSubstr("tensor 'model.layers.0.")) << kind;
    EXPECT_THAT(report->skip_reason, HasSubstr("has no FP8 scale")) << kind;
    EXPECT_EQ(bits(), before) << kind;
    EXPECT_EQ(learner->score(kTenant, tokens).value(), scored) << kind << ": the rounded copy";
    EXPECT_THAT(learner->describe(), HasSubstr("0 optimizer steps")) << kind;
  }
}

/// Weights that are large but finite have a scale, so their step is made.
TEST(Fp8Learner, AnUpdateOfLargeWeightsThatHaveAScaleIsMade) {
  const auto folder = make_folder(wide_model("qwen3"));
  auto learner = make_learner(folder, learner_options("fp8", 1e7));
  const auto report = learner->step(testing::two_groups(kTenant), never);
  ASSERT_TRUE(report.ok()) << report.error().text();
  EXPECT_FALSE(report->skipped) << report->skip_reason;
  EXPECT_THAT(learner->describe(), HasSubstr("1 optimizer step"));
}

INSTANTIATE_TEST_SUITE_P(Families, Fp8Model,
                         ::testing::Values("qwen3", "llama", "qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

TEST(Fp8Matrices, AreTheMatricesOfLayersWithoutTheRouter) {
  const TensorTable table(read_model_config(make_folder(wide_model("glm4_moe"))).value());
  std::vector<std::string> fp8, other;
  for (const Parameter& parameter : table.parameters())
    if (parameter.name.starts_with("layers.1.") || !parameter.name.starts_with("layers."))
      (is_fp8_matrix(parameter) ? fp8 : other).push_back(parameter.name);
  EXPECT_THAT(
      fp8, ::testing::IsSupersetOf({"layers.1.attention.qkv", "layers.1.attention.out",
                                    "layers.1.moe.experts_gate_up", "layers.1.moe.experts_down"}));
  EXPECT_THAT(other,
              ::testing::IsSupersetOf({"embedding", "head", "final_norm", "layers.1.moe.router",
                                       "layers.1.moe.norm", "layers.1.attention.norm"}));
  EXPECT_GT(fp8.size(), 3U);
}

}  // namespace
}  // namespace primerl
