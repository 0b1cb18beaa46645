// Adapters of several tenants on a CUDA device: compared with the CPU's learner, and with each
// trained alone.
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "graph/base/random.h"
#include "kernels/cpu/learner/learner.h"
#include "kernels/cuda/learner/learner.h"
#include "kernels/devices/make.h"
#include "kernels/models/folder.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"
#include "tests/device/bf16_rounding.h"
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
using testing::TinyModel;

TrainingRules rules_of(double lr) {
  TrainingRules rules;
  rules.optimizer.lr = lr;
  rules.loss.kl_weight = 0.05;
  return rules;
}

/// Six tenants, more than are computed one by one, of ranks 4 to 64, with different targets and
/// rules. Two have dropout.
std::vector<AdapterTraining> six_tenants() {
  std::vector<AdapterTraining> all = {
      {TenantSlot(0), {.rank = 4}, rules_of(1e-3)},
      {TenantSlot(1), {.rank = 64, .targets = {"q_proj", "down_proj", "lm_head"}}, rules_of(2e-3)},
      {TenantSlot(2), {.rank = 9, .is_rank_stabilized = true}, rules_of(3e-3)},
      {TenantSlot(3), {.rank = 33, .alpha = 7}, rules_of(1e-3)},
      {TenantSlot(4),
       {.rank = 16, .targets = {"v_proj", "o_proj", "gate_proj", "lm_head"}},
       rules_of(1e-3)},
      {TenantSlot(5), {.rank = 8, .targets = {"up_proj", "k_proj"}}, rules_of(2e-3)}};
  all[2].rules.optimizer.max_norm = 0.01;
  all[2].rules.schedule.warmup_steps = 3;
  all[4].rules.loss = {.advantage_weight = 3, .kl_weight = 0};
  all[1].adapter.dropout = 0.25;
  all[3].adapter.dropout = 0.5;
  return all;
}

TrainBatch batch_of(TenantSlot tenant) {
  TrainBatch batch = mixed_batch();
  batch.tenant = tenant;
  // Each tenant has different tokens and lengths.
  batch.samples.resize(4 + tenant.value);
  for (auto& sample : batch.samples) {
    if (!sample.kept.empty()) continue;
    for (auto& token : sample.tokens) token = (token + 7 * static_cast<int32_t>(tenant.value)) % 60;
  }
  if (tenant.value == 3) batch.loss = LossKind::kCrossEntropy;
  return batch;
}

using Tensors = std::vector<WeightTensor>;

/// Values in A and B of each adapter. In a mixture larger values, times their scaling, would exceed
/// the weights, and the bf16 rounding errors would grow to half of a gradient.
std::vector<Tensors> numbers_of(const std::filesystem::path& folder,
                                const std::vector<AdapterTraining>& adapters) {
  const ModelConfig config = read_model_config(folder).value();
  const TensorTable model(config);
  const double deviation = config.moe.has_value() ? 0.03 : 0.1;
  std::vector<Tensors> all;
  for (const auto& training : adapters)
    all.push_back(testing::random_adapter(AdapterTable(model, training.adapter),
                                          training.tenant.value + 1, deviation));
  return all;
}

template <class LearnerType>
std::unique_ptr<LearnerType> filled(const std::filesystem::path& folder,
                                    const std::vector<AdapterTraining>& adapters,
                                    const std::vector<Tensors>& numbers,
                                    const LearnerOptions& options) {
  auto made = make_torch_adapter_learner(options, adapters, folder);
  CHECK(made.ok(), made.error().text());
  std::unique_ptr<LearnerType> learner(dynamic_cast<LearnerType*>(made->release()));
  for (size_t i = 0; i < adapters.size(); ++i)
    CHECK(learner->fill_adapter(adapters[i].tenant, numbers[i]).ok(), "no fill");
  return learner;
}

std::unique_ptr<CudaLearner> on_cuda(const std::filesystem::path& folder,
                                     const std::vector<AdapterTraining>& adapters,
                                     const LearnerOptions& options) {
  return filled<CudaLearner>(folder, adapters, numbers_of(folder, adapters), options);
}

std::unique_ptr<CpuLearner> on_cpu(const std::filesystem::path& folder,
                                   const std::vector<AdapterTraining>& adapters,
                                   const std::vector<Tensors>& numbers, LearnerOptions options) {
  options.device = "cpu";
  options.dtype = "auto";
  options.numerics = "invariant";
  return filled<CpuLearner>(folder, adapters, numbers, options);
}

std::unique_ptr<CpuLearner> on_cpu(const std::filesystem::path& folder,
                                   const std::vector<AdapterTraining>& adapters,
                                   const LearnerOptions& options) {
  return on_cpu(folder, adapters, numbers_of(folder, adapters), options);
}

std::vector<WeightTensor> weights_of(Learner& learner, TenantSlot tenant) {
  return learner.snapshot(tenant, PolicyVersion(1)).value()->tensors;
}

std::vector<Result<TrainReport>> together(Learner& learner,
                                          const std::vector<TrainBatch>& batches) {
  std::vector<const TrainBatch*> pointers;
  for (const auto& batch : batches) pointers.push_back(&batch);
  return learner.step_together(pointers, never);
}

/// The CPU's step of each of six_tenants(), alone. Adapters of many experts are large, so they and
/// every step are computed once, for all comparisons.
struct Expected {
  explicit Expected(const std::filesystem::path& model)
      : folder(model), numbers(numbers_of(model, tenants)) {
    auto learner = on_cpu(folder, tenants, numbers, options_of("float32"));
    for (const auto& one : tenants) {
      batches.push_back(batch_of(one.tenant));
      reports.push_back(must_step(*learner, batches.back()));
      gradients.push_back(learner->gradients(one.tenant));
    }
  }

  const std::filesystem::path folder;
  const std::vector<AdapterTraining> tenants = six_tenants();
  const std::vector<Tensors> numbers;  // of the adapters
  std::vector<TrainBatch> batches;
  std::vector<TrainReport> reports;
  std::vector<Tensors> gradients;
};

/// The error that bf16 may cause in each tenant's gradients (bf16_rounding.h), for the tensor with
/// the largest error.
std::vector<double> tolerances_in_bf16(const Expected& expected) {
  std::vector<std::vector<double>> squares(expected.tenants.size());
  for (uint64_t seed = 0; seed < device_test::kRoundings; ++seed) {
    RandomStream random(seed);
    const auto other = device_test::moved_folder(expected.folder, random);
    std::vector<Tensors> numbers;
    for (const auto& of_tenant : expected.numbers)
      numbers.push_back(device_test::moved(of_tenant, random));
    auto learner = on_cpu(other, expected.tenants, numbers, options_of("float32"));
    for (size_t i = 0; i < expected.tenants.size(); ++i) {
      must_step(*learner, expected.batches[i]);
      const Tensors& want = expected.gradients[i];
      const Tensors got = learner->gradients(expected.tenants[i].tenant);
      const double size = testing::size_of(want);
      squares[i].resize(want.size());
      for (size_t t = 0; t < want.size(); ++t)
        squares[i][t] += std::pow(testing::distance_of(got[t], want[t], size), 2);
    }
  }
  std::vector<double> tolerances;
  for (const auto& of_tensors : squares)
    tolerances.push_back(device_test::tolerance_of_roundings(std::ranges::max(of_tensors)));
  return tolerances;
}

/// Reports are means over tokens and sequences, whose rounding errors average out: within the
/// precision of bf16.
constexpr double kReportInBf16 = 0.05;

/// The tolerance of each tenant's step.
std::vector<double> tolerances_of(const Expected& expected, const std::string& dtype) {
  if (dtype == "float32") return std::vector<double>(expected.tenants.size(), 1e-4);
  return tolerances_in_bf16(expected);
}

/// Compares the gradients of `tenants` (indices in six_tenants(); all adapters exist): trained
/// alone and in one pass.
void compare_gradients(const Expected& expected, const LearnerOptions& options,
                       const std::vector<size_t>& tenants, const std::vector<double>& tolerances) {
  const double of_report = options.dtype == "float32" ? 1e-4 : kReportInBf16;
  const auto made = [&] {
    return filled<CudaLearner>(expected.folder, expected.tenants, expected.numbers, options);
  };
  auto alone = made(), shared = made();
  std::vector<TrainBatch> batches;
  for (const size_t i : tenants) batches.push_back(expected.batches[i]);
  const auto reports = together(*shared, batches);
  for (size_t i = 0; i < tenants.size(); ++i) {
    SCOPED_TRACE(fmt::format("{}, {}, tenant {} of {}", options.dtype, options.recompute,
                             tenants[i], tenants.size()));
    const TenantSlot tenant = expected.tenants[tenants[i]].tenant;
    const double tolerance = tolerances[tenants[i]];
    ASSERT_TRUE(reports[i].ok()) << reports[i].error().text();
    const TrainReport& want = expected.reports[tenants[i]];
    const Tensors& exact = expected.gradients[tenants[i]];
    const double of_norm = std::max(of_report, tolerance);
    expect_like(must_step(*alone, batches[i]), want, of_report, of_norm);
    expect_like(*reports[i], want, of_report, of_norm);
    EXPECT_EQ(reports[i]->learning_rate, want.learning_rate);
    expect_close(alone->gradients(tenant), exact, tolerance);
    expect_close(shared->gradients(tenant), exact, tolerance);
    if (options.recompute == "none")
      fmt::print("{}, tenant {} of {}: {:.2g} and {:.2g} of {:.2g}\n", options.dtype, tenants[i],
                 tenants.size(), testing::distance_of(alone->gradients(tenant), exact),
                 testing::distance_of(shared->gradients(tenant), exact), tolerance);
  }
}

TEST(CudaAdapters, HaveTheCpusGradientsAloneAndTogether) {
  const Expected expected(make_folder({.head_dim = 64, .deviation = 0.1}));
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const auto tolerances = tolerances_of(expected, dtype);
    for (const char* recompute : {"none", "keep_attention", "full"}) {
      LearnerOptions options = options_of(dtype);
      options.recompute = recompute;
      compare_gradients(expected, options, {0, 1, 2, 3, 4, 5}, tolerances);
    }
  }
}

/// Adapters of experts, of the shared expert, and of attention beside them. The slots of the third
/// list are not adjacent. In bf16 each row goes to all experts, since a router may choose
/// differently among nearly equal ones.
TEST(CudaAdapters, OfMixturesHaveTheCpusGradients) {
  for (const char* type : {"qwen3_moe", "glm4_moe"})
    for (const std::string dtype : {"float32", "bfloat16"}) {
      SCOPED_TRACE(type);
      const Expected expected(dtype == "float32"
                                  ? make_folder({.model_type = type, .deviation = 0.1})
                                  : all_experts_folder(type));
      const auto tolerances = tolerances_of(expected, dtype);
      EXPECT_LT(std::ranges::max(tolerances), 0.25) << "the comparison could hardly fail";
      for (const char* recompute : {"none", "full"})
        for (const auto& tenants : {std::vector<size_t>{0, 1, 2, 3, 4, 5}, {3}, {0, 2, 5}}) {
          LearnerOptions options = options_of(dtype);
          options.recompute = recompute;
          compare_gradients(expected, options, tenants, tolerances);
        }
    }
}

/// More experts and tenants than one library GEMM supports. Biases choose the same three experts
/// for all rows, including one of the last, so that bf16 makes the same choice.
TEST(CudaAdapters, OfManyExpertsAndTenantsHaveTheCpusGradients) {
  const auto folder = make_folder({.model_type = "glm4_moe",
                                   .hidden_size = 64,
                                   .head_dim = 64,
                                   .deviation = 0.1,
                                   .num_experts = 256});
  auto tensors = read_model_tensors(folder).value();
  for (auto& tensor : tensors) {
    if (!tensor.name.ends_with("e_score_correction_bias")) continue;
    std::vector<float> biases(tensor.bytes.size() / sizeof(float), 0.0F);
    for (const size_t expert : {5, 102, 254}) biases.at(expert) = 8;
    const auto bytes = std::as_bytes(std::span(biases));
    tensor.bytes = Blob(std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
  const auto biased = testing::scratch_folder("biased");
  ASSERT_TRUE(write_model_folder(biased, read_model_folder(folder).value(), tensors).ok());
  const Expected expected(biased);
  for (const std::string dtype : {"float32", "bfloat16"}) {
    LearnerOptions options = options_of(dtype);
    options.recompute = "none";
    compare_gradients(expected, options, {0, 1, 2, 3, 4, 5}, tolerances_of(expected, dtype));
  }
}

/// One row, three of eight experts: A and B of the other experts have no gradient.
TEST(CudaAdapters, OfExpertsWithoutRowsHaveNoGradient) {
  const auto folder = make_folder({.model_type = "qwen3_moe", .hidden_size = 64, .head_dim = 64});
  const auto tenants = six_tenants();
  TrainBatch batch;
  batch.tenant = tenants[2].tenant;
  batch.loss = LossKind::kCrossEntropy;
  batch.samples = {testing::sample_of(1, 1, 1, 2, 1)};
  for (const char* dtype : {"float32", "bfloat16"}) {
    auto learner = on_cuda(folder, tenants, options_of(dtype));
    const TrainReport report = must_step(*learner, batch);
    EXPECT_FALSE(report.skipped) << report.skip_reason;
    for (const std::string name : {"gate_proj.lora_A.weight", "up_proj.lora_B.weight",
                                   "down_proj.lora_A.weight", "down_proj.lora_B.weight"}) {
      int32_t num_used = 0;
      for (const auto& tensor : learner->gradients(batch.tenant)) {
        if (tensor.name.find("layers.0.mlp.experts.") == std::string::npos) continue;
        if (!tensor.name.ends_with(name)) continue;
        const auto values = testing::floats_of(tensor);
        num_used += std::ranges::any_of(values, [](float value) { return value != 0; }) ? 1 : 0;
      }
      EXPECT_EQ(num_used, 3) << dtype << ", " << name;
    }
  }
}

/// Biases that decide the choice, and that bf16 would round to one value. An adapter that adds
/// nothing keeps the base's bits, so that another choice would be detected.
TEST(CudaAdapters, AreOnFrozenWeightsWhoseExpertsAreChosenAsOnWholeOnes) {
  const auto folder = make_folder({.model_type = "glm4_moe", .hidden_size = 64, .head_dim = 64});
  auto tensors = read_model_tensors(folder).value();
  for (auto& tensor : tensors) {
    if (!tensor.name.ends_with("e_score_correction_bias")) continue;
    std::vector<float> biases(tensor.bytes.size() / sizeof(float));
    for (size_t i = 0; i < biases.size(); ++i)
      biases[i] = 512.0F + 0.2F * static_cast<float>((i * 3) % biases.size());
    const auto bytes = std::as_bytes(std::span(biases));
    tensor.bytes = Blob(std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
  const auto biased = testing::scratch_folder("biased");
  ASSERT_TRUE(write_model_folder(biased, read_model_folder(folder).value(), tensors).ok());
  const std::vector<int32_t> tokens = {3, 9, 40, 22, 5, 17, 60, 2, 33};
  const auto tenants = six_tenants();
  std::vector<std::vector<float>> scores;
  for (const auto& one : {folder, biased}) {
    const LearnerOptions options = options_of("bfloat16");
    auto made = make_torch_adapter_learner(options, tenants, one).value();
    auto whole = make_torch_learner(options, one).value();
    scores.push_back(whole->score(TenantSlot(0), tokens).value());
    EXPECT_EQ(made->score(tenants[0].tenant, tokens).value(), scores.back());
  }
  EXPECT_NE(scores[0], scores[1]);
}

TEST(CudaAdapters, StepsOfSomeTenantsEqualTheCpusAndDoNotChangeTheOthers) {
  const auto folder = make_folder({});
  const auto tenants = six_tenants();
  LearnerOptions options = options_of("float32");
  options.micro_batch_tokens = 90;  // several passes
  auto device_learner = on_cuda(folder, tenants, options);
  auto cpu = on_cpu(folder, tenants, options);
  const auto untouched = weights_of(*device_learner, tenants[1].tenant);
  for (int step = 0; step < 4; ++step) {
    std::vector<TrainBatch> batches;
    for (const size_t i : {5, 0, 2, 3, 4}) batches.push_back(batch_of(tenants[i].tenant));
    const auto got = together(*device_learner, batches);
    for (size_t i = 0; i < batches.size(); ++i) {
      ASSERT_TRUE(got[i].ok()) << got[i].error().text();
      expect_like(*got[i], must_step(*cpu, batches[i]), 1e-3);
    }
  }
  for (const size_t i : {0, 2, 3, 4, 5})
    expect_close(weights_of(*device_learner, tenants[i].tenant),
                 weights_of(*cpu, tenants[i].tenant), 2e-3);
  EXPECT_TRUE(are_equal(weights_of(*device_learner, tenants[1].tenant), untouched));
}

TEST(CudaAdapters, BeginAsTheBaseAndLeaveItAsItIs) {
  const auto folder = make_folder({.head_dim = 64});
  const auto tenants = six_tenants();
  const LearnerOptions options = options_of("float32");
  auto made = make_torch_adapter_learner(options, tenants, folder).value();
  auto whole = make_torch_learner(options, folder).value();
  const std::vector<int32_t> tokens = {3, 9, 40, 22, 5, 17, 60, 2, 33};
  const auto before = whole->score(TenantSlot(0), tokens).value();
  EXPECT_EQ(made->score(tenants[0].tenant, tokens).value(), before);
  must_step(*made, batch_of(tenants[0].tenant));
  EXPECT_NE(made->score(tenants[0].tenant, tokens).value(), before);
  EXPECT_EQ(made->score(tenants[1].tenant, tokens).value(), before);
  EXPECT_THAT(made->describe(), HasSubstr("1 optimizer steps, 6 adapters of "));
}

/// A snapshot whose first tensor, of an MLP or of an expert, is NaN.
void expect_skipped_alone(const std::filesystem::path& folder) {
  const auto tenants = six_tenants();
  for (const char* dtype : {"float32", "bfloat16"}) {
    auto learner = on_cuda(folder, tenants, options_of(dtype));
    auto sound = on_cuda(folder, tenants, options_of(dtype));
    auto broken = weights_of(*learner, tenants[2].tenant);
    std::vector<float> nan(broken[0].bytes.size() / sizeof(float),
                           std::numeric_limits<float>::quiet_NaN());
    const auto* bytes = reinterpret_cast<const std::byte*>(nan.data());
    broken[0].bytes = Blob(std::vector<std::byte>(bytes, bytes + broken[0].bytes.size()));
    ASSERT_TRUE(learner->fill_adapter(tenants[2].tenant, broken).ok());
    std::vector<TrainBatch> batches;
    for (const auto& one : tenants) batches.push_back(batch_of(one.tenant));
    const auto reports = together(*learner, batches), others = together(*sound, batches);
    for (size_t i = 0; i < tenants.size(); ++i) {
      SCOPED_TRACE(fmt::format("{}, tenant {}", dtype, i));
      ASSERT_TRUE(reports[i].ok()) << reports[i].error().text();
      EXPECT_EQ(reports[i]->skipped, i == 2) << reports[i]->skip_reason;
      if (i == 2) {
        EXPECT_THAT(reports[i]->skip_reason, HasSubstr("the gradient is not finite"));
        EXPECT_TRUE(are_equal(weights_of(*learner, tenants[i].tenant), broken));
      } else {
        expect_like(*reports[i], *others[i], 1e-3);
        expect_close(learner->gradients(tenants[i].tenant), sound->gradients(tenants[i].tenant),
                     1e-2);
      }
    }
  }
}

TEST(CudaAdapters, ABrokenNeighbourIsSkippedAlone) {
  expect_skipped_alone(make_folder({.head_dim = 64, .deviation = 0.1}));
  expect_skipped_alone(all_experts_folder("qwen3_moe"));
}

TEST(CudaAdapters, CheckpointsResumeOnEitherDevice) {
  const auto folder = make_folder({});
  const auto tenants = six_tenants();
  const LearnerOptions options = options_of("float32");
  auto device_learner = on_cuda(folder, tenants, options);
  auto cpu = on_cpu(folder, tenants, options);
  for (const size_t i : {1, 2}) {
    SCOPED_TRACE(fmt::format("tenant {}", i));
    const TenantSlot tenant = tenants[i].tenant;
    const TrainBatch batch = batch_of(tenant);
    const auto kept = testing::scratch_folder(fmt::format("kept{}", i));
    const auto again = testing::scratch_folder(fmt::format("again{}", i));
    for (int step = 0; step < 3; ++step) must_step(*cpu, batch);
    ASSERT_TRUE(cpu->save(tenant, kept).ok());
    const Status loaded = device_learner->load(tenant, kept);
    ASSERT_TRUE(loaded.ok()) << loaded.error().text();
    EXPECT_TRUE(are_equal(weights_of(*device_learner, tenant), weights_of(*cpu, tenant)));
    ASSERT_TRUE(device_learner->save(tenant, again).ok());
    auto other = on_cpu(folder, tenants, options);
    ASSERT_TRUE(other->load(tenant, again).ok());
    must_step(*other, batch);
    must_step(*cpu, batch);
    must_step(*device_learner, batch);
    EXPECT_TRUE(are_equal(weights_of(*other, tenant), weights_of(*cpu, tenant)));
    expect_close(weights_of(*device_learner, tenant), weights_of(*cpu, tenant), 1e-3);
  }
}

TEST(CudaAdapters, AreRefusedByNameWhereTheyCannotBeTrained) {
  const auto folder = make_folder({.head_dim = 64});
  const auto tenants = six_tenants();
  LearnerOptions options = options_of("auto");
  options.micro_batch_tokens = 1 << 30;
  auto made = make_torch_adapter_learner(options, tenants, folder);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().text(), HasSubstr("(frozen weights, 6 adapters, gradients and moments"));
}

}  // namespace
}  // namespace primerl
