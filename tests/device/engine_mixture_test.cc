// Mixtures of experts in the engine on a CUDA device beside the CPU's. fp32 takes one product an
// expert and no graph, bf16 takes grouped products, in graphs where all decode.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ops/cuda_ops.h"
#include "tests/device/engine_checks.h"
#include "tests/torch/tiny_adapters.h"
#include "tests/torch/tiny_model.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using card_test::apply;
using card_test::Ends;
using card_test::expect_alike;
using card_test::made;
using card_test::options_on;
using card_test::request_of;
using card_test::run_all;

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
    auto card = made(options_on("cuda:0"), folder_), cpu = made(options_on("cpu"), folder_);
    const Ends got = run_all(*card, some_requests(temperature));
    expect_alike(got, run_all(*cpu, some_requests(temperature)));
  }
}

TEST_P(CudaMixtureEngine, NewWeightsAndTheirBiasesCountFromTheNextStepOn) {
  testing::TinyModel other = model();
  other.seed = 2;
  const auto snapshot = testing::make_snapshot(other, PolicyVersion(1));
  auto card = made(options_on("cuda:0"), folder_), cpu = made(options_on("cpu"), folder_);
  for (Engine* engine : {card.get(), cpu.get()}) {
    run_all(*engine, some_requests(0));
    apply(*engine, *snapshot);
  }
  auto requests = some_requests(0);
  for (auto& one : requests) one.salt = "main:2";
  expect_alike(run_all(*card, requests), run_all(*cpu, requests));
}

/// The CPU's engine says what tokens that the device drew in bf16 were worth.
TEST_P(CudaMixtureEngine, Bf16InGraphsIsNearTheCpusFp32) {
  EngineOptions options = options_on("cuda:0");
  options.dtype = "bfloat16";
  auto card = made(options, folder_), cpu = made(options_on("cpu"), folder_);
  const auto requests = some_requests(1);
  const Ends drawn = run_all(*card, requests);
  // The kernels are captured, and ATen's operations, which may not be, are not.
  EXPECT_EQ(card->describe().find(", 0 graphs") == std::string::npos, cuda::has_own_kernels())
      << card->describe();
  std::vector<SequenceRequest> scored;
  for (const auto& request : requests) {
    scored.push_back(request);
    const auto& tokens = drawn.at(request.id.value).tokens;
    auto& prompt = scored.back().prompt_tokens;
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
    scored.back().sampling.prompt_logprobs = true;
    scored.back().sampling.max_tokens = 1;
  }
  const Ends want = run_all(*cpu, scored);
  double squares = 0, spread = 0;
  for (const auto& [id, end] : drawn) {
    const auto& all = want.at(id).prompt_logprobs;
    const size_t before = all.size() - end.logprobs.size();
    for (size_t i = 0; i < end.logprobs.size(); ++i) {
      squares += std::pow(end.logprobs[i] - all[before + i], 2);
      spread += std::pow(all[before + i], 2);
    }
  }
  // A near choice of experts may fall otherwise, which is more than rounding.
  EXPECT_LT(std::sqrt(squares), 0.1 * std::sqrt(spread));
  EXPECT_GT(squares, 0);
}

TEST_P(CudaMixtureEngine, AdaptersOfAttentionAreTheCpusAndThoseOfExpertsAreRefused) {
  const std::vector<AdapterTraining> tenants = {
      {TenantSlot(0), {.rank = 8, .targets = {"q_proj", "k_proj", "o_proj"}}},
      {TenantSlot(1), {.rank = 16, .targets = {"v_proj"}}},
      {TenantSlot(2), {.rank = 4}}};
  auto learner = testing::make_adapter_learner(folder_, tenants);
  std::vector<SequenceRequest> requests = some_requests(0);
  for (auto& one : requests) one.tenant = TenantSlot(static_cast<uint32_t>(one.id.value % 2));
  std::vector<std::unique_ptr<Engine>> engines;
  for (const std::string device : {"cuda:0", "cpu"}) {
    EngineOptions options = options_on(device);
    options.adapter_slots = 3;
    engines.push_back(made(options, folder_,
                           {testing::adapter_of(*learner, TenantSlot(0), 1),
                            testing::adapter_of(*learner, TenantSlot(1), 1)}));
  }
  expect_alike(run_all(*engines[0], requests), run_all(*engines[1], requests));
  const auto refused = engines[0]->apply(*testing::adapter_of(*learner, TenantSlot(2), 1));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(), HasSubstr("an expert's linear"));
}

INSTANTIATE_TEST_SUITE_P(Families, CudaMixtureEngine, ::testing::Values("qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

TEST(CudaMixtureEngineRefuses, WidthsThatGroupedProductsCannotRead) {
  const auto odd =
      testing::make_folder({.model_type = "qwen3_moe", .hidden_size = 36, .head_dim = 64}, "odd");
  const auto engine = make_torch_engine(options_on("cuda:0"), odd);
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(engine.error().text(), HasSubstr("a mixture of widths 36 and 36"));
}

}  // namespace
}  // namespace primerl
