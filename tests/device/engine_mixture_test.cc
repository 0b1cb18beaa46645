// Mixtures of experts in the engine on a CUDA device compared with the CPU's. fp32 uses one GEMM
// per expert and no graph; bf16 uses grouped GEMMs, in graphs if all sequences decode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>

#include "kernels/cuda/engine/decoder.h"
#include "kernels/cuda/layers/supported_model.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"
#include "tests/device/bf16_rounding.h"
#include "tests/device/engine_checks.h"

namespace primerl {
namespace {

using device_test::apply;
using device_test::Ends;
using device_test::expect_alike;
using device_test::made;
using device_test::options_on;
using device_test::request_of;
using device_test::run_all;
using device_test::Snapshots;
using ::testing::HasSubstr;

std::vector<SequenceRequest> some_requests(double temperature) {
  std::vector<SequenceRequest> all;
  for (uint64_t number = 0; number < 19; ++number)
    all.push_back(request_of(number, static_cast<int32_t>(1 + 5 * (number % 9)),
                             static_cast<int32_t>(12 + number % 9), temperature));
  return all;
}

class CudaMixtureEngine : public ::testing::TestWithParam<std::string> {
 protected:
  testing::TinyModel model() const { return {.model_type = GetParam(), .head_dim = 64}; }

  const std::filesystem::path folder_ = testing::make_folder(model());
};

TEST_P(CudaMixtureEngine, TokensAreTheCpus) {
  for (const double temperature : {0.0, 1.0}) {
    SCOPED_TRACE(temperature);
    auto device_engine = made(options_on("cuda:0"), folder_),
         cpu = made(options_on("cpu"), folder_);
    const Ends got = run_all(*device_engine, some_requests(temperature));
    expect_alike(got, run_all(*cpu, some_requests(temperature)));
  }
}

TEST_P(CudaMixtureEngine, NewWeightsAndTheirBiasesCountFromTheNextStepOn) {
  testing::TinyModel other = model();
  other.seed = 2;
  const auto snapshot = testing::make_snapshot(other, PolicyVersion(1));
  auto device_engine = made(options_on("cuda:0"), folder_), cpu = made(options_on("cpu"), folder_);
  for (Engine* engine : {device_engine.get(), cpu.get()}) {
    run_all(*engine, some_requests(0));
    apply(*engine, *snapshot);
  }
  auto requests = some_requests(0);
  for (auto& one : requests) one.salt = "main:2";
  expect_alike(run_all(*device_engine, requests), run_all(*cpu, requests));
}

/// Scores prompts followed by their sampled tokens: returns the log-probabilities of the sampled
/// tokens.
std::vector<float> scores_of(Engine& engine, const std::vector<SequenceRequest>& scored,
                             const Ends& drawn) {
  const Ends ends = run_all(engine, scored);
  std::vector<float> scores;
  for (const auto& [id, end] : drawn) {
    const auto& all = ends.at(id).prompt_logprobs;
    scores.insert(scores.end(), all.end() - std::ssize(end.logprobs), all.end());
  }
  return scores;
}

double squares_between(const std::vector<float>& got, const std::vector<float>& want) {
  double squares = 0;
  for (size_t i = 0; i < want.size(); ++i) squares += std::pow(got[i] - want[i], 2.0);
  return squares;
}

/// The CPU's engine scores the tokens that the device sampled in bf16. CPU engines with changed
/// weights show the error that rounding alone may cause (bf16_rounding.h), including other choices
/// among nearly equal experts. All of them have `adapters`.
void expect_near_in_bf16(Engine& device_engine, const EngineOptions& on_cpu,
                         const std::filesystem::path& folder, const Snapshots& adapters,
                         const std::vector<SequenceRequest>& requests) {
  const Ends drawn = run_all(device_engine, requests);
  if (cuda::has_own_kernels()) {
    EXPECT_THAT(device_engine.describe(), ::testing::Not(HasSubstr(" 0 graphs")));
  }
  std::vector<SequenceRequest> scored;
  std::vector<float> got;
  for (const auto& request : requests) {
    scored.push_back(request);
    const auto& tokens = drawn.at(request.id.value).tokens;
    auto& prompt = scored.back().prompt_tokens;
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
    scored.back().sampling.prompt_logprobs = true;
    scored.back().sampling.max_tokens = 1;
  }
  for (const auto& [id, end] : drawn)
    got.insert(got.end(), end.logprobs.begin(), end.logprobs.end());
  const auto want = scores_of(*made(on_cpu, folder, adapters), scored, drawn);
  ASSERT_EQ(got.size(), want.size());
  double of_roundings = 0;
  for (uint64_t seed = 0; seed < device_test::kRoundings; ++seed) {
    RandomStream random(seed);
    const auto other = device_test::moved_folder(folder, random);
    Snapshots numbers;
    for (const auto& adapter : adapters) {
      auto moved = std::make_shared<WeightSnapshot>(*adapter);
      moved->tensors = device_test::moved(moved->tensors, random);
      numbers.push_back(std::move(moved));
    }
    of_roundings += squares_between(scores_of(*made(on_cpu, other, numbers), scored, drawn), want);
  }
  const double size = std::sqrt(squares_between(std::vector<float>(want.size(), 0), want));
  const double far = std::sqrt(squares_between(got, want)) / size;
  const double tolerance = device_test::tolerance_of_roundings(of_roundings) / size;
  fmt::print("bf16 is {:.3g} off, of {:.3g}\n", far, tolerance);
  EXPECT_LT(far, tolerance);
  EXPECT_GT(far, 0);
  EXPECT_LT(tolerance, 0.1) << "the comparison could hardly fail";
}

TEST_P(CudaMixtureEngine, Bf16InGraphsIsNearTheCpusFp32) {
  EngineOptions options = options_on("cuda:0");
  options.dtype = "bfloat16";
  auto device_engine = made(options, folder_);
  expect_near_in_bf16(*device_engine, options_on("cpu"), folder_, {}, some_requests(1));
}

/// Adapters of experts, of the shared expert, and of attention beside them; one of attention alone.
class CudaMixtureAdapters : public CudaMixtureEngine {
 protected:
  static constexpr uint32_t kTenants = 5;

  CudaMixtureAdapters() {
    const std::vector<AdapterTraining> tenants = {
        {TenantSlot(0), {.rank = 4, .alpha = 8}},
        {TenantSlot(1), {.rank = 64, .alpha = 16, .targets = {"q_proj", "down_proj"}}},
        {TenantSlot(2), {.rank = 16, .alpha = 8, .targets = {"k_proj", "v_proj", "o_proj"}}},
        {TenantSlot(3), {.rank = 7, .alpha = 9, .targets = {"up_proj", "o_proj"}}},
        {TenantSlot(4), {.rank = 24, .targets = {"gate_proj"}}}};
    auto learner = testing::make_adapter_learner(folder_, tenants);
    for (uint32_t tenant = 0; tenant < kTenants; ++tenant)
      adapters_.push_back(testing::adapter_of(*learner, TenantSlot(tenant), 1));
  }

  std::unique_ptr<Engine> engine_on(const std::string& device, const std::string& dtype) const {
    return made(with_slots(device, dtype), folder_, adapters_);
  }
  static EngineOptions with_slots(const std::string& device, const std::string& dtype) {
    EngineOptions options = options_on(device);
    options.dtype = dtype;
    options.adapter_slots = kTenants;
    return options;
  }

  static std::vector<SequenceRequest> of_all_tenants(double temperature) {
    auto requests = some_requests(temperature);
    for (auto& one : requests) one.tenant = TenantSlot(static_cast<uint32_t>(one.id.value * 3 % 5));
    return requests;
  }

  Snapshots adapters_;  // by tenant
};

TEST_P(CudaMixtureAdapters, RowsOfAMixedBatchAreTheCpus) {
  auto device_engine = engine_on("cuda:0", "float32"), cpu = engine_on("cpu", "float32");
  for (const double temperature : {0.0, 1.0}) {
    SCOPED_TRACE(temperature);
    const auto requests = of_all_tenants(temperature);
    const Ends got = run_all(*device_engine, requests);
    expect_alike(got, run_all(*cpu, requests));
  }
}

/// Experts have so many rows each that wide tiles are used.
TEST_P(CudaMixtureAdapters, SoAreThoseOfLongPrompts) {
  const auto requests = device_test::long_prompts(kTenants);
  auto device_engine = engine_on("cuda:0", "float32"), cpu = engine_on("cpu", "float32");
  const Ends got = run_all(*device_engine, requests);
  expect_alike(got, run_all(*cpu, requests));
}

TEST_P(CudaMixtureAdapters, Bf16InGraphsIsNearTheCpusFp32) {
  auto device_engine = engine_on("cuda:0", "bfloat16");
  expect_near_in_bf16(*device_engine, with_slots("cpu", "float32"), folder_, adapters_,
                      of_all_tenants(1));
}

TEST_P(CudaMixtureAdapters, ABrokenNeighbourChangesNothing) {
  auto healthy = engine_on("cuda:0", "float32");
  const Ends want = run_all(*healthy, of_all_tenants(1));
  auto broken = std::make_shared<WeightSnapshot>(*adapters_[4]);  // of experts only
  for (auto& tensor : broken->tensors) {
    const std::vector<float> nan(tensor.bytes.size() / sizeof(float),
                                 std::numeric_limits<float>::quiet_NaN());
    const auto bytes = std::as_bytes(std::span(nan));
    tensor.bytes = Blob(std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
  adapters_[4] = broken;
  auto engine = engine_on("cuda:0", "float32");
  for (const auto& [id, end] : run_all(*engine, of_all_tenants(1))) {
    if (id * 3 % kTenants == 4)
      EXPECT_EQ(end.reason, FinishReason::kFailed) << id;
    else
      expect_alike(end, want.at(id));
  }
}

/// An engine has space only for the linears in its adapter targets.
TEST_P(CudaMixtureAdapters, AnUnsupportedTargetIsRefusedByName) {
  EngineOptions options = options_on("cuda:0");
  options.adapter_slots = kTenants;
  options.adapter_targets = {"k_proj", "o_proj", "v_proj"};
  auto engine = made(options, folder_, {adapters_[2]});
  const auto refused = engine->apply(*adapters_[4]);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("gate_proj', which this engine has no space for"));
  EXPECT_THAT(refused.error().text(), HasSubstr("its adapters add to k_proj, v_proj, o_proj"));
  std::vector<SequenceRequest> requests = some_requests(0);
  for (auto& one : requests) one.tenant = TenantSlot(2);
  auto cpu = engine_on("cpu", "float32");
  expect_alike(run_all(*engine, requests), run_all(*cpu, requests));
}

INSTANTIATE_TEST_SUITE_P(Families, CudaMixtureAdapters, ::testing::Values("qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

INSTANTIATE_TEST_SUITE_P(Families, CudaMixtureEngine, ::testing::Values("qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

TEST(CudaMixtureEngineRefuses, MoreExpertsThanAGroupedGemmHas) {
  const auto folder = testing::make_folder({.model_type = "qwen3_moe", .head_dim = 64}, "many");
  ModelConfig config = read_model_config(folder).value();
  config.moe->num_experts = 1023;
  EXPECT_TRUE(check_cuda_model(config).ok());
  config.moe->num_experts = 1024;
  const Status refused = check_cuda_model(config);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("a mixture of 1024 experts"));
}

TEST(CudaMixtureEngineRefuses, WidthsThatAGroupedGemmCannotRead) {
  const auto odd =
      testing::make_folder({.model_type = "qwen3_moe", .hidden_size = 36, .head_dim = 64}, "odd");
  const auto engine = make_torch_engine(options_on("cuda:0"), odd);
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(engine.error().text(), HasSubstr("a mixture of widths 36 and 36"));
}

}  // namespace
}  // namespace primerl
