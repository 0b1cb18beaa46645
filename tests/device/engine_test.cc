// The engine on a CUDA device compared with the CPU's, with the same weights: in fp32 the same
// tokens and, except for rounding, the same log-probabilities. Heads of 64 channels use the decode
// operation and its graphs, heads of 16 use gathered keys.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/conformance/engine_conformance.h"
#include "tests/cpu/tiny_model.h"
#include "tests/device/engine_checks.h"

namespace primerl {
namespace {

using device_test::Ends;
using device_test::expect_alike;
using device_test::kLogprobTolerance;
using device_test::made;
using device_test::options_on;
using device_test::request_of;
using device_test::run_all;
using ::testing::HasSubstr;
using testing::TinyModel;

TinyModel model_of(int32_t head_dim) { return {.head_dim = head_dim}; }

std::string refusal(const EngineOptions& options, const std::filesystem::path& folder) {
  auto engine = make_torch_engine(options, folder);
  return engine.ok() ? "" : engine.error().text();
}

/// 19 sequences, some of which arrive while others decode: batches of 1 to 19 rows.
std::vector<SequenceRequest> many_requests(double temperature) {
  std::vector<SequenceRequest> all;
  for (uint64_t id = 1; id <= 19; ++id) {
    const auto number = static_cast<int32_t>(id);
    all.push_back(request_of(id, 1 + 5 * (number % 9), 20 + number % 13, temperature));
  }
  return all;
}

using Floats = std::vector<float>;

/// bf16 has 8 bits: a rounding of 1/512 of each of about ten values that a logit depends on.
void expect_near_in_bf16(const Floats& got, const Floats& want) {
  ASSERT_EQ(got.size(), want.size());
  double squares = 0, spread = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += std::pow(got[i] - want[i], 2.0);
    spread += std::pow(want[i], 2.0);
  }
  EXPECT_LT(std::sqrt(squares), 0.02 * std::sqrt(spread));
  EXPECT_GT(squares, 0);
}

class CudaEngineTest : public ::testing::TestWithParam<int32_t> {
 protected:
  CudaEngineTest() : folder_(testing::make_folder(model_of(GetParam()))) {}

  /// Both engines on the same requests.
  void compare(const std::vector<SequenceRequest>& requests, EngineOptions options) {
    auto device_engine = made(options, folder_);
    const Ends got = run_all(*device_engine, requests);
    options.device = "cpu";
    options.numerics = "invariant";
    auto cpu = made(options, folder_);
    expect_alike(got, run_all(*cpu, requests));
  }

  const std::filesystem::path folder_;
};

TEST_P(CudaEngineTest, GreedyTokensAreTheCpus) { compare(many_requests(0), options_on("cuda:0")); }

TEST_P(CudaEngineTest, SoAreSampledOnes) { compare(many_requests(1), options_on("cuda:0")); }

TEST_P(CudaEngineTest, AndKeptSets) {
  auto requests = many_requests(0.8);
  for (auto& one : requests) {
    one.sampling.top_p = one.id.value % 3 == 0 ? 0.9 : 1;
    one.sampling.top_k = one.id.value % 3 == 1 ? 7 : 0;
  }
  compare(requests, options_on("cuda:0"));
}

TEST_P(CudaEngineTest, AndOptionsThatTheDevicesSamplerDoesNotSupport) {
  auto requests = many_requests(1);
  for (auto& one : requests) {
    if (one.id.value % 2 == 0) continue;  // sampled on the device, in the same step
    one.sampling.repetition_penalty = 1.3;
    one.sampling.frequency_penalty = 0.5;
    one.sampling.logit_bias = {{5, -1.5}, {11, 1}};
    one.sampling.num_top_logprobs = 4;
    one.sampling.prompt_logprobs = true;
  }
  compare(requests, options_on("cuda:0"));
}

TEST_P(CudaEngineTest, PreemptionAndChunksChangeNoToken) {
  EngineOptions options = options_on("cuda:0");
  options.kv_blocks = 13;  // enough for the longest sequence only
  options.max_batched_tokens = 17;
  options.max_prefill_tokens = 11;
  compare(many_requests(0), options);
}

TEST_P(CudaEngineTest, AndForOtherBlockSizes) {
  for (const int32_t block_size : {1, 3, 32}) {
    SCOPED_TRACE(block_size);
    EngineOptions options = options_on("cuda:0");
    options.block_size = block_size;
    options.kv_blocks = 2000 / block_size;
    compare(many_requests(0), options);
  }
}

TEST_P(CudaEngineTest, NewWeightsCountFromTheNextStepOn) {
  TinyModel other = model_of(GetParam());
  other.seed = 2;
  const auto snapshot = testing::make_snapshot(other, PolicyVersion(1));
  auto requests = many_requests(0);
  auto device_engine = made(options_on("cuda:0"), folder_), cpu = made(options_on("cpu"), folder_);
  for (Engine* engine : {device_engine.get(), cpu.get()}) {
    run_all(*engine, requests);  // graphs exist, and read the new weights
    const auto applied = engine->apply(*snapshot);
    ASSERT_TRUE(applied.ok()) << applied.error().text();
    EXPECT_EQ(*applied, snapshot->tensors.size());
    EXPECT_EQ(engine->apply(*snapshot).value(), 0U);
  }
  for (auto& one : requests) one.salt = "main:2";
  expect_alike(run_all(*device_engine, requests), run_all(*cpu, requests));
}

TEST_P(CudaEngineTest, WeightsThatWerePreparedAreTheSame) {
  const auto snapshot_of = [](int64_t seed, int64_t version, int32_t head_dim) {
    TinyModel other = model_of(head_dim);
    other.seed = seed;
    return testing::make_snapshot(other, PolicyVersion(version));
  };
  const auto second = snapshot_of(2, 1, GetParam()), third = snapshot_of(3, 2, GetParam());
  auto requests = many_requests(0);
  auto device_engine = made(options_on("cuda:0"), folder_), cpu = made(options_on("cpu"), folder_);
  // Steps continue with the old weights, even after the new ones have arrived.
  while (!device_engine->prepare(second)) ASSERT_TRUE(device_engine->step().ok());
  expect_alike(run_all(*device_engine, requests), run_all(*cpu, requests));

  const auto apply = [&](const WeightSnapshot& snapshot, const std::string& salt) {
    for (Engine* engine : {device_engine.get(), cpu.get()}) {
      const auto applied = engine->apply(snapshot);
      ASSERT_TRUE(applied.ok()) << applied.error().text();
    }
    EXPECT_TRUE(
        // already prepared
        device_engine->prepare(std::make_shared<const WeightSnapshot>(snapshot)));
    for (auto& one : requests) one.salt = salt;
    expect_alike(run_all(*device_engine, requests), run_all(*cpu, requests));
  };
  apply(*second, "main:2");
  // Another snapshot replaces it before it may be complete; apply() does not depend on prepare().
  device_engine->prepare(snapshot_of(4, 5, GetParam()));
  device_engine->prepare(third);
  apply(*third, "main:3");
  // The prepared snapshot is not the applied one.
  device_engine->prepare(third);
  device_engine->prepare(snapshot_of(5, 6, GetParam()));
  apply(*snapshot_of(6, 4, GetParam()), "main:4");
  // Tensors of another model are refused when they are applied, and the weights stay.
  const auto misfit = snapshot_of(7, 8, GetParam() == 64 ? 16 : 64);
  EXPECT_TRUE(device_engine->prepare(misfit));
  EXPECT_FALSE(device_engine->apply(*misfit).ok());
  expect_alike(run_all(*device_engine, requests), run_all(*cpu, requests));
}

TEST_P(CudaEngineTest, Bf16IsNearTheCpusFp32) {
  std::vector<SequenceRequest> requests;
  for (uint64_t id = 1; id <= 8; ++id) {
    requests.push_back(request_of(id, 60, 1, 0));
    requests.back().sampling.prompt_logprobs = true;
  }
  EngineOptions options = options_on("cuda:0");
  options.dtype = "bfloat16";
  auto device_engine = made(options, folder_), cpu = made(options_on("cpu"), folder_);
  const Ends got = run_all(*device_engine, requests), want = run_all(*cpu, requests);
  Floats got_all, want_all;
  for (const auto& [id, end] : want) {
    const Floats& from = got.at(id).prompt_logprobs;
    got_all.insert(got_all.end(), from.begin(), from.end());
    want_all.insert(want_all.end(), end.prompt_logprobs.begin(), end.prompt_logprobs.end());
  }
  expect_near_in_bf16(got_all, want_all);
}

TEST_P(CudaEngineTest, ANanIsNamed) {
  TinyModel other = model_of(GetParam());
  const auto snapshot = testing::make_snapshot(other, PolicyVersion(1));
  auto broken = *snapshot;
  for (auto& tensor : broken.tensors)
    if (tensor.name == "model.layers.1.mlp.down_proj.weight") {
      std::vector<std::byte> bytes(tensor.bytes.bytes().begin(), tensor.bytes.bytes().end());
      const float nan = std::nanf("");
      std::memcpy(bytes.data(), &nan, sizeof nan);
      tensor.bytes = Blob(std::move(bytes));
    }
  EngineOptions options = options_on("cuda:0");
  options.debug.check_finite = true;
  auto engine = made(options, folder_);
  ASSERT_TRUE(engine->apply(broken).ok());
  const Ends ends = run_all(*engine, {request_of(1, 5, 4, 0)});
  EXPECT_EQ(ends.at(1).reason, FinishReason::kFailed);
  EXPECT_THAT(ends.at(1).detail, HasSubstr("'layers.1.mlp.output' is nan at row 0, column 0"));
}

INSTANTIATE_TEST_SUITE_P(HeadDim, CudaEngineTest, ::testing::Values(64, 16),
                         [](const auto& one) { return std::to_string(one.param); });

/// Decode steps compute GEMMs of these widths in parts, in steps of 1 to 19 rows: the CPU scores
/// what the device has sampled.
TEST(CudaEngineProducts, OfDecodeStepsAreCloseToTheCpus) {
  const auto folder = testing::make_folder(
      {.hidden_size = 384, .head_dim = 64, .deviation = 0.05});  // 256 and 768 terms
  EngineOptions options = options_on("cuda:0");
  options.dtype = "bfloat16";
  const auto requests = many_requests(1);
  const Ends drawn = run_all(*made(options, folder), requests);
  std::vector<SequenceRequest> scored;
  for (SequenceRequest one : requests) {
    const auto& tokens = drawn.at(one.id.value).tokens;
    one.prompt_tokens.insert(one.prompt_tokens.end(), tokens.begin(), tokens.end());
    one.sampling.max_tokens = 1;
    one.sampling.prompt_logprobs = true;
    scored.push_back(std::move(one));
  }
  const Ends scores = run_all(*made(options_on("cpu"), folder), scored);
  Floats got, want;
  for (const auto& [id, end] : drawn) {
    const Floats& all = scores.at(id).prompt_logprobs;
    ASSERT_GE(all.size(), end.logprobs.size());
    got.insert(got.end(), end.logprobs.begin(), end.logprobs.end());
    want.insert(want.end(), all.end() - std::ssize(end.logprobs), all.end());
  }
  expect_near_in_bf16(got, want);
}

TEST(CudaEngineRefuses, UnsupportedOptionsByName) {
  const auto folder = testing::make_folder(model_of(64));
  EngineOptions options = options_on("cuda:0");
  options.numerics = "invariant";
  EXPECT_THAT(refusal(options, folder), HasSubstr("write numerics = \"fast\""));
  options = options_on("cuda:0");
  options.kv_blocks = 100'000'000;
  EXPECT_THAT(refusal(options, folder), HasSubstr("GB free"));
  options = options_on("cuda:99");
  EXPECT_THAT(refusal(options, folder), HasSubstr("which is not available: this machine has "));
  options = options_on("cpu");
  options.dtype = "bfloat16";
  EXPECT_THAT(refusal(options, folder), HasSubstr("computes in float32"));
}

EngineUnderTest cuda_engine(const std::string& model_type) {
  const TinyModel model{.model_type = model_type, .head_dim = 64};
  return {model_type + "_on_a_device",
          model.vocab_size,
          [model](EngineOptions options, std::shared_ptr<const Tokenizer> tokenizer) {
            options.device = "cuda:0";
            options.numerics = "fast";
            options.dtype = "float32";
            auto engine =
                make_torch_engine(options, testing::make_folder(model), std::move(tokenizer));
            CHECK(engine.ok(), engine.error().text());
            return std::move(engine).value();
          },
          [model](PolicyVersion version) {
            TinyModel other = model;
            other.seed = 2;
            return testing::make_snapshot(other, version);
          },
          1,
          true,
          kLogprobTolerance};
}

}  // namespace

// These tests need equal bits in batches of other sizes, which engines with fast numerics do not
// have.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EngineCache);
INSTANTIATE_TEST_SUITE_P(Cuda, EngineConformance,
                         ::testing::Values(cuda_engine("qwen3"), cuda_engine("llama")),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(Cuda, EngineLogits, ::testing::Values(cuda_engine("qwen3")),
                         [](const auto& one) { return one.param.name; });

}  // namespace primerl
