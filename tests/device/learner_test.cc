// The learner on a CUDA device compared with the CPU's, with the same weights and batches: in fp32
// the same losses, gradients and weights except for rounding, in bf16 within its precision.
// Gradients of bf16 flash attention repeat exactly only if libtorch is configured for it, as this
// program does.
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "kernels/cpu/learner/learner.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/learner/attention.h"
#include "kernels/cuda/learner/learner.h"
#include "kernels/devices/make.h"
#include "kernels/weights/device_weights.h"
#include "kernels/weights/safetensors.h"
#include "tests/conformance/client_steps_conformance.h"
#include "tests/conformance/learner_conformance.h"
#include "tests/cpu/tiny_model.h"
#include "tests/device/learner_checks.h"

namespace primerl {
namespace {

using testing::all_experts_folder;
using testing::are_equal;
using testing::expect_close;
using testing::expect_like;
using ::testing::HasSubstr;
using testing::make_folder;
using testing::mixed_batch;
using testing::must_step;
using testing::never;
using testing::options_of;
using testing::sample_of;
using testing::TinyModel;

const int kIsAskedToRepeat = ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);

std::unique_ptr<CudaLearner> on_cuda(const std::filesystem::path& folder,
                                     const LearnerOptions& options) {
  const CudaStream stream(0);
  const CudaStream::Use use(stream);
  auto learner = std::make_unique<CudaLearner>(options, read_model_folder(folder).value(), stream);
  CHECK(learner->fill(read_model_tensors(folder).value()).ok(), "cannot fill");
  return learner;
}

std::unique_ptr<CpuLearner> on_cpu(const std::filesystem::path& folder, LearnerOptions options) {
  options.device = "cpu";
  options.dtype = "auto";
  auto learner = std::make_unique<CpuLearner>(options, read_model_folder(folder).value());
  CHECK(learner->fill(read_model_tensors(folder).value()).ok(), "cannot fill");
  return learner;
}

std::vector<WeightTensor> weights_of(Learner& learner) {
  return on_host(learner.snapshot(TenantSlot(0), PolicyVersion(1)).value()).value()->tensors;
}

/// One step on each device.
void compare_steps(const TinyModel& model, const TrainBatch& batch, const LearnerOptions& options,
                   double tolerance) {
  const auto folder = make_folder(model);
  auto device_learner = on_cuda(folder, options);
  auto cpu = on_cpu(folder, options);
  const TrainReport got = must_step(*device_learner, batch), want = must_step(*cpu, batch);
  expect_like(got, want, tolerance);
  expect_close(device_learner->gradients(), cpu->gradients(), tolerance);
}

TEST(CudaLearner, ComputesTheCpusGradientsInFp32) {
  for (const char* type : {"qwen3", "llama", "qwen2"})
    for (const int32_t head_dim : {16, 64})
      for (const char* recompute : {"none", "keep_attention", "full"}) {
        SCOPED_TRACE(fmt::format("{}, {}, {}", type, head_dim, recompute));
        LearnerOptions options = options_of("float32");
        options.recompute = recompute;
        compare_steps({.model_type = type, .head_dim = head_dim}, mixed_batch(), options, 1e-4);
      }
}

TEST(CudaLearner, AndThoseOfManyMicroBatches) {
  LearnerOptions options = options_of("float32");
  options.micro_batch_tokens = 40;
  compare_steps({}, mixed_batch(), options, 1e-4);
}

TEST(CudaLearner, AndThoseOfCrossEntropy) {
  TrainBatch batch = mixed_batch();
  batch.loss = LossKind::kCrossEntropy;
  compare_steps({}, batch, options_of("float32"), 1e-4);
}

// bf16 has 8 bits; gradients of a few tokens do not average its rounding errors.
TEST(CudaLearner, ComputesThemInBf16WithinItsDigits) {
  for (const char* recompute : {"none", "keep_attention", "full"}) {
    SCOPED_TRACE(recompute);
    LearnerOptions options = options_of("bfloat16");
    options.recompute = recompute;
    compare_steps({.head_dim = 64, .deviation = 0.1}, mixed_batch(), options, 0.05);
  }
}

TEST(CudaLearner, ComputesTheCpusGradientsOfMixturesInFp32) {
  for (const char* type : {"qwen3_moe", "glm4_moe"})
    for (const char* recompute : {"none", "keep_attention", "full"}) {
      SCOPED_TRACE(fmt::format("{}, {}", type, recompute));
      LearnerOptions options = options_of("float32");
      options.recompute = recompute;
      options.micro_batch_tokens = 150;
      compare_steps({.model_type = type}, mixed_batch(), options, 1e-4);
    }
}

TEST(CudaLearner, AndInBf16WithinItsDigits) {
  for (const char* type : {"qwen3_moe", "glm4_moe"})
    for (const char* recompute : {"none", "keep_attention"}) {
      SCOPED_TRACE(fmt::format("{}, {}", type, recompute));
      LearnerOptions options = options_of("bfloat16");
      options.recompute = recompute;
      const auto folder = all_experts_folder(type);
      auto device_learner = on_cuda(folder, options);
      auto cpu = on_cpu(folder, options);
      expect_like(must_step(*device_learner, mixed_batch()), must_step(*cpu, mixed_batch()), 0.05);
      expect_close(device_learner->gradients(), cpu->gradients(), 0.05);
    }
}

/// Each expert's gradient comes from its own rows: experts without rows have none.
TEST(CudaLearner, ExpertsWithoutRowsHaveNoGradient) {
  const auto folder = make_folder({.model_type = "qwen3_moe", .hidden_size = 64, .head_dim = 64});
  TrainBatch batch;
  batch.loss = LossKind::kCrossEntropy;
  batch.samples = {sample_of(1, 1, 1, 2, 1)};  // one row, three of eight experts
  for (const char* dtype : {"float32", "bfloat16"}) {
    auto learner = on_cuda(folder, options_of(dtype));
    const TrainReport report = must_step(*learner, batch);
    EXPECT_FALSE(report.skipped) << report.skip_reason;
    int32_t num_used = 0;
    for (const auto& tensor : learner->gradients()) {
      if (!tensor.name.starts_with("model.layers.0.mlp.experts.")) continue;
      if (!tensor.name.ends_with("down_proj.weight")) continue;
      const auto values = testing::floats_of(tensor);
      num_used += std::ranges::any_of(values, [](float value) { return value != 0; }) ? 1 : 0;
    }
    EXPECT_EQ(num_used, 3) << dtype;
  }
}

TEST(CudaLearner, RecomputationChangesNoBit) {
  for (const auto& [type, dtype] :
       {std::pair("qwen3", "float32"), std::pair("qwen3", "bfloat16"),
        std::pair("qwen3_moe", "float32"), std::pair("glm4_moe", "bfloat16")}) {
    SCOPED_TRACE(fmt::format("{}, {}", type, dtype));
    const auto folder = make_folder({.model_type = type, .hidden_size = 64, .head_dim = 64});
    LearnerOptions options = options_of(dtype);
    auto keeps_all = on_cuda(folder, options);
    must_step(*keeps_all, mixed_batch());
    for (const char* recompute : {"keep_attention", "full"}) {
      options.recompute = recompute;
      auto learner = on_cuda(folder, options);
      must_step(*learner, mixed_batch());
      EXPECT_TRUE(are_equal(learner->gradients(), keeps_all->gradients())) << recompute;
    }
  }
}

TEST(CudaLearner, PadsToFewLengthsAndGroupsIndicesInOrder) {
  EXPECT_EQ(dense_length(1), 1);
  EXPECT_EQ(dense_length(4096), 4096);
  EXPECT_EQ(dense_length(4097), 4608);
  EXPECT_EQ(dense_length(8191), 8192);
  EXPECT_EQ(dense_length(65537), 73728);
  const GroupedIndices grouped = group_indices({5, 2, 5});
  EXPECT_EQ(grouped.num_ids, 2);
  EXPECT_EQ(grouped.all, (std::vector<int32_t>{2, 5, 0, 1, 3, 1, 0, 2}));
}

/// Documents of 5,000 tokens, which cuDNN computes padded; one of 4,200 tokens that is a shared
/// prompt; and short ones.
TrainBatch long_batch() {
  TrainBatch made;
  made.samples.push_back(sample_of(1, 1, 8, 5000, 1));
  for (int32_t i = 2; i < 5; ++i) made.samples.push_back(sample_of(i, 2, 4200, 4250 + 20 * i, 1));
  for (int32_t i = 5; i < 9; ++i) made.samples.push_back(sample_of(i, i, 5, 300 + 17 * i, 1));
  return made;
}

TEST(CudaLearner, LongDocumentsGiveTheSameForEveryImplementation) {
  const TinyModel model{.head_dim = 64, .max_positions = 8192, .deviation = 0.1};
  const auto folder = make_folder(model);
  LearnerOptions options = options_of("float32");
  options.micro_batch_tokens = 16384;
  auto exact = on_cuda(folder, options);
  const TrainReport want = must_step(*exact, long_batch());
  options.dtype = "bfloat16";
  options.recompute = "keep_attention";
  for (const bool is_repeatable : {true, false}) {
    SCOPED_TRACE(is_repeatable ? "flash attention" : "cuDNN");
    if (!is_repeatable) {
      ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
      at::globalContext().setDeterministicAlgorithms(false, false);
    }
    auto learner = on_cuda(folder, options);
    expect_like(must_step(*learner, long_batch()), want, 0.02);
    expect_close(learner->gradients(), exact->gradients(), 0.05);
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
  }
}

TEST(CudaLearner, TheSameStepHasTheSameBitsTwice) {
  const auto folder = make_folder({.head_dim = 64, .max_positions = 8192});
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    LearnerOptions options = options_of(dtype);
    options.micro_batch_tokens = 8192;
    auto one = on_cuda(folder, options), two = on_cuda(folder, options);
    for (int i = 0; i < 2; ++i)
      for (CudaLearner* learner : {one.get(), two.get()}) must_step(*learner, long_batch());
    EXPECT_TRUE(are_equal(one->gradients(), two->gradients()));
    EXPECT_TRUE(are_equal(weights_of(*one), weights_of(*two)));
  }
}

TEST(CudaLearner, ScoresAreTheCpus) {
  const auto folder = make_folder({.head_dim = 64});
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 200; ++i) tokens.push_back(i * i % 61);
  auto cpu = on_cpu(folder, options_of("float32"));
  const auto want = cpu->score(TenantSlot(0), tokens).value();
  for (const auto& [dtype, tolerance] : {std::pair("float32", 2e-4), std::pair("bfloat16", 0.5)}) {
    auto device_learner = on_cuda(folder, options_of(dtype));
    const auto got = device_learner->score(TenantSlot(0), tokens).value();
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << dtype;
  }
}

TEST(CudaLearner, StepsEqualTheCpus) {
  const auto folder = make_folder({});
  LearnerOptions options = options_of("float32");
  options.optimizer.max_norm = 0.1;
  auto device_learner = on_cuda(folder, options);
  auto cpu = on_cpu(folder, options);
  for (int i = 0; i < 4; ++i) {
    const TrainReport got = must_step(*device_learner, mixed_batch()),
                      want = must_step(*cpu, mixed_batch());
    expect_like(got, want, 1e-3);
    EXPECT_EQ(got.learning_rate, want.learning_rate);
  }
  expect_close(weights_of(*device_learner), weights_of(*cpu), 1e-3);
}

TEST(CudaLearner, CheckpointsResumeOnEitherDevice) {
  const auto folder = make_folder({});
  const LearnerOptions options = options_of("float32");
  auto device_learner = on_cuda(folder, options);
  auto cpu = on_cpu(folder, options);
  const auto kept = testing::scratch_folder("kept"), again = testing::scratch_folder("again");
  for (int i = 0; i < 3; ++i) must_step(*cpu, mixed_batch());
  ASSERT_TRUE(cpu->save(TenantSlot(0), kept).ok());
  const Status loaded = device_learner->load(TenantSlot(0), kept);
  ASSERT_TRUE(loaded.ok()) << loaded.error().text();
  EXPECT_TRUE(are_equal(weights_of(*device_learner), weights_of(*cpu)));
  ASSERT_TRUE(device_learner->save(TenantSlot(0), again).ok());
  auto other = on_cpu(folder, options);
  ASSERT_TRUE(other->load(TenantSlot(0), again).ok());
  must_step(*other, mixed_batch());
  must_step(*cpu, mixed_batch());
  must_step(*device_learner, mixed_batch());
  EXPECT_TRUE(are_equal(weights_of(*other), weights_of(*cpu)));
  expect_close(weights_of(*device_learner), weights_of(*cpu), 1e-4);
}

/// A sign differs where a gradient is as small as its rounding: sign_sgd is left out.
TEST(CudaLearner, StepsEqualTheCpusWithEachOptimizer) {
  const auto folder = make_folder({});
  for (const char* kind : {"muon", "sgd", "adafactor"}) {
    SCOPED_TRACE(kind);
    LearnerOptions options = options_of("float32");
    options.optimizer.kind = kind;
    options.optimizer.no_decay = {"norms", "embeddings"};
    auto device_learner = on_cuda(folder, options);
    auto cpu = on_cpu(folder, options);
    for (int i = 0; i < 3; ++i) {
      must_step(*device_learner, mixed_batch());
      must_step(*cpu, mixed_batch());
    }
    expect_close(weights_of(*device_learner), weights_of(*cpu), 2e-3);
    const auto kept = testing::scratch_folder("kept");
    ASSERT_TRUE(device_learner->save(TenantSlot(0), kept).ok());
    const Status loaded = cpu->load(TenantSlot(0), kept);
    ASSERT_TRUE(loaded.ok()) << loaded.error().text();
    must_step(*device_learner, mixed_batch());
    must_step(*cpu, mixed_batch());
    expect_close(weights_of(*device_learner), weights_of(*cpu), 2e-3);
  }
}

TEST(CudaLearner, MomentsOnTheHostChangeNoBit) {
  const auto folder = make_folder({});
  for (const char* kind : {"adamw", "muon", "sgd"})
    for (const char* dtype : {"float32", "bfloat16"}) {
      SCOPED_TRACE(fmt::format("{} {}", kind, dtype));
      LearnerOptions options = options_of("float32");
      options.optimizer.kind = kind;
      options.optimizer.moments_dtype = dtype;
      auto near = on_cuda(folder, options);
      options.optimizer.moments_on = "host";
      auto far = on_cuda(folder, options);
      for (int i = 0; i < 3; ++i) {
        must_step(*near, mixed_batch());
        must_step(*far, mixed_batch());
      }
      EXPECT_TRUE(are_equal(weights_of(*near), weights_of(*far)));
    }
}

TEST(CudaLearner, TooLittleMemoryIsOneErrorAndChangesNothing) {
  const auto folder =
      make_folder({.hidden_size = 512, .num_layers = 8, .head_dim = 64, .max_positions = 8192});
  LearnerOptions options = options_of("bfloat16");
  options.micro_batch_tokens = 8192;
  auto learner = on_cuda(folder, options), other = on_cuda(folder, options);
  const auto before = weights_of(*learner);
  c10::cuda::CUDACachingAllocator::emptyCache();
  const double total = cuda_device_facts(0).value().total_bytes;
  c10::cuda::CUDACachingAllocator::setMemoryFraction(0.9e9 / total, 0);
  const auto report = learner->step(long_batch(), never);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(1.0, 0);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code(), Code::kExhausted);
  EXPECT_THAT(report.error().text(), HasSubstr("GB of cuda:0 for micro-batches of "));
  EXPECT_THAT(report.error().text(), HasSubstr("lower 'micro_batch_tokens'"));
  EXPECT_TRUE(are_equal(weights_of(*learner), before));
  must_step(*learner, mixed_batch());
  must_step(*other, mixed_batch());
  EXPECT_TRUE(are_equal(weights_of(*learner), weights_of(*other)));
}

TEST(CudaLearner, ANanIsNamed) {
  const auto folder = make_folder({});
  LearnerOptions options = options_of("float32");
  auto tensors = weights_of(*on_cuda(folder, options));
  for (auto& tensor : tensors) {
    if (tensor.name != "model.layers.1.mlp.down_proj.weight") continue;
    std::vector<std::byte> bytes(tensor.bytes.bytes().begin(), tensor.bytes.bytes().end());
    const float none = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes.data(), &none, sizeof none);
    tensor.bytes = Blob(std::move(bytes));
  }
  for (const bool looks : {true, false}) {
    options.debug.check_finite = looks;
    auto learner = on_cuda(folder, options);
    ASSERT_TRUE(learner->fill(tensors).ok());
    const TrainReport report = must_step(*learner, mixed_batch());
    EXPECT_TRUE(report.skipped);
    EXPECT_THAT(report.skip_reason,
                HasSubstr(looks ? "activation 'layers.1.mlp.output' is nan at row 0, column 0 of "
                                  "micro-batch 0 (step 1)"
                                : "the gradient is not finite"));
    EXPECT_TRUE(are_equal(weights_of(*learner), tensors));
  }
}

std::string refusal_of(const LearnerOptions& options, const std::filesystem::path& folder) {
  auto learner = make_torch_learner(options, folder);
  return learner.ok() ? "" : learner.error().text();
}

TEST(CudaLearnerRefuses, UnsupportedOptionsByName) {
  const auto folder = make_folder({.head_dim = 64});
  LearnerOptions options = options_of("auto");
  options.numerics = "invariant";
  EXPECT_THAT(refusal_of(options, folder), HasSubstr("write numerics = \"fast\""));
  options = options_of("auto");
  options.micro_batch_tokens = 1 << 30;
  EXPECT_THAT(refusal_of(options, folder), HasSubstr("for micro-batches of 1073741824 tokens"));
  options = options_of("auto");
  options.device = "cuda:99";
  EXPECT_THAT(refusal_of(options, folder), HasSubstr("which is not available: this machine has "));
  options = options_of("bfloat16");
  options.device = "cpu";
  EXPECT_THAT(refusal_of(options, folder), HasSubstr("computes in float32"));
  const auto odd = make_folder({.hidden_size = 36, .head_dim = 64}, "odd");
  const AdapterTraining training;
  auto adapters = make_torch_adapter_learner(options_of("auto"), std::span(&training, 1), odd);
  ASSERT_FALSE(adapters.ok());
  EXPECT_THAT(adapters.error().text(), HasSubstr("a model with a width of 36 cannot be trained"));
}

LearnerUnderTest cuda_learner(const std::string& model_type) {
  const TinyModel model{.model_type = model_type, .head_dim = 64};
  return {model_type + "_on_a_device", model.vocab_size, [model](LearnerOptions options) {
            options.device = "cuda:0";
            options.numerics = "fast";
            options.dtype = "float32";
            auto learner = make_torch_learner(options, make_folder(model));
            CHECK(learner.ok(), learner.error().text());
            return std::move(learner).value();
          }};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Cuda, ClientSteps,
                         ::testing::Values(cuda_learner("qwen3"), cuda_learner("qwen3_moe")),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(Cuda, LearnerConformance,
                         ::testing::Values(cuda_learner("qwen3"), cuda_learner("llama"),
                                           cuda_learner("qwen3_moe")),
                         [](const auto& one) { return one.param.name; });

}  // namespace primerl
