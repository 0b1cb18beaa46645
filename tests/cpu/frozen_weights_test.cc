// Frozen weights that the engine and the learner of a process share: the same bits, stored once.
#include "kernels/cpu/weights/frozen_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <latch>
#include <thread>

#include "kernels/devices/make.h"
#include "kernels/sizing/memory.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using testing::bytes_of;
using ::testing::HasSubstr;
using testing::make_folder;
using testing::never;
using testing::two_groups;

constexpr TenantSlot kTenant(0);

EngineOptions with_slots() {
  EngineOptions options;
  options.adapter_slots = 2;
  options.kv_blocks = 16;
  options.threads = 1;
  return options;
}

std::vector<AdapterTraining> training() { return {{kTenant, {.rank = 4, .alpha = 8}, {}, {}}}; }

/// The adapter after some steps, and the gradient of the last step.
std::vector<std::byte> trained(TorchLearner& learner) {
  for (int step = 0; step < 3; ++step) {
    const auto report = learner.step(two_groups(kTenant), never);
    CHECK(report.ok(), report.error().text());
  }
  auto all = bytes_of(learner.snapshot(kTenant, PolicyVersion(1)).value()->tensors);
  const auto gradients = bytes_of(learner.gradients());
  all.insert(all.end(), gradients.begin(), gradients.end());
  return all;
}

std::unique_ptr<TorchLearner> learner_of(const std::filesystem::path& folder, FrozenBases* bases,
                                         const LearnerOptions& options = {}) {
  auto made = make_torch_adapter_learner(options, training(), folder, bases);
  CHECK(made.ok(), made.error().text());
  std::unique_ptr<TorchLearner> learner(dynamic_cast<TorchLearner*>(made->release()));
  const AdapterTable table(TensorTable(read_model_config(folder).value()), training()[0].adapter);
  CHECK(learner->fill_adapter(kTenant, testing::random_adapter(table, 5)).ok(), "no fill");
  return learner;
}

/// The log-probabilities that an engine samples after a prompt.
std::vector<float> sampled(Engine& engine, uint64_t number) {
  SequenceRequest request;
  request.id = SequenceId(number);
  request.tenant = kTenant;
  request.prompt_tokens = {3, 9, 40, 22, 5, 17};
  request.sampling.max_tokens = 8;
  request.sampling.ignore_eos = true;
  request.seed = 7;
  CHECK(engine.submit(std::move(request)).ok(), "refused");
  std::vector<float> logprobs;
  while (engine.has_work()) {
    CHECK(engine.step().ok(), "a step failed");
    for (const auto& event : engine.take_prefilled())
      CHECK(engine.take_over(event.id).ok(), "nothing to take over");
    for (auto& event : engine.take_finished()) logprobs = event.logprobs;
  }
  return logprobs;
}

/// With the initial adapter of learner_of().
std::unique_ptr<Engine> engine_of(const std::filesystem::path& folder, FrozenBases* bases) {
  auto engine = make_torch_engine(with_slots(), folder, nullptr, bases);
  CHECK(engine.ok(), engine.error().text());
  auto learner = learner_of(folder, nullptr);
  CHECK((*engine)->apply(*testing::adapter_of(*learner, kTenant, 1)).ok(), "not applied");
  return std::move(engine).value();
}

class FrozenWeightsOf : public ::testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path folder() const { return make_folder({.model_type = GetParam()}); }
};

// Every GEMM of a decoder, forward and backward, from packed as from flat weights.
TEST_P(FrozenWeightsOf, ALearnerTrainsTheSameBitsOnPackedWeightsAsOnFlatOnes) {
  const auto base = folder();
  const auto config = read_model_config(base).value();
  const auto flat =
      std::make_shared<FrozenWeights>(config, Numerics::kInvariant, DecoderWeights::Use::kLearner);
  ASSERT_TRUE(flat->weights().load(read_model_tensors(base).value()).ok());
  for (const char* recompute : {"none", "keep_attention", "full"}) {
    LearnerOptions options;
    options.recompute = recompute;
    auto packed = learner_of(base, nullptr, options);
    TorchLearner other(options, read_model_folder(base).value(), base.string(), flat, training());
    const AdapterTable table(TensorTable(config), training()[0].adapter);
    ASSERT_TRUE(other.fill_adapter(kTenant, testing::random_adapter(table, 5)).ok());
    EXPECT_EQ(trained(*packed), trained(other)) << recompute;
  }
}

TEST_P(FrozenWeightsOf, EngineAndLearnerShareOneSetAndComputeWhatTheyComputeApart) {
  const auto base = folder();
  const auto trained_apart = trained(*learner_of(base, nullptr));
  const auto sampled_apart = sampled(*engine_of(base, nullptr), 1);
  FrozenBases bases;
  std::vector<std::byte> trained_together;
  std::vector<float> sampled_together;
  std::latch both_there(2);
  {
    const std::jthread learning([&] {
      auto learner = learner_of(base, &bases);
      both_there.arrive_and_wait();
      EXPECT_EQ(bases.size(), 1U);
      trained_together = trained(*learner);
    });
    const std::jthread serving([&] {
      auto engine = engine_of(base, &bases);
      both_there.arrive_and_wait();
      sampled_together = sampled(*engine, 1);
    });
  }
  EXPECT_EQ(trained_together, trained_apart);
  EXPECT_EQ(sampled_together, sampled_apart);
  EXPECT_EQ(bases.size(), 0U) << "both are gone";
}

TEST_P(FrozenWeightsOf, AnEngineThatIsMadeAgainFindsWhatTheLearnerKept) {
  const auto base = folder();
  FrozenBases bases;
  auto learner = learner_of(base, &bases);
  auto engine = engine_of(base, &bases);
  const auto before = sampled(*engine, 1);
  engine.reset();
  EXPECT_EQ(bases.size(), 1U);
  // The folder is not read again.
  for (const auto& each : std::filesystem::directory_iterator(base))
    if (each.path().extension() == ".safetensors") std::ofstream(each.path()) << "broken";
  auto again = make_torch_engine(with_slots(), base, nullptr, &bases);
  ASSERT_TRUE(again.ok()) << again.error().text();
  ASSERT_TRUE((*again)->apply(*testing::adapter_of(*learner, kTenant, 1)).ok());
  EXPECT_EQ(sampled(**again, 2), before);
  learner.reset();
  EXPECT_EQ(sampled(**again, 3), before) << "the learner is gone, the engine keeps it";
  again->reset();
  EXPECT_EQ(bases.size(), 0U);
  EXPECT_FALSE(make_torch_engine(with_slots(), base, nullptr, &bases).ok());
  EXPECT_EQ(bases.size(), 0U) << "what cannot be loaded leaves nothing";
}

TEST_P(FrozenWeightsOf, WhoChangesOrDoesNotPackItsWeightsHasItsOwn) {
  const auto base = folder();
  FrozenBases bases;
  const auto whole = make_torch_engine({.threads = 1}, base, nullptr, &bases);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(bases.size(), 0U) << "each version replaces them";
  LearnerOptions fast;
  fast.numerics = "fast";
  const auto learner = learner_of(base, &bases, fast);
  EXPECT_EQ(bases.size(), 0U);
  const auto shared = learner_of(base, &bases);
  EXPECT_EQ(bases.size(), 1U);
  EXPECT_THAT(learner->fill({}).error().text(), HasSubstr("frozen"));
}

TEST_P(FrozenWeightsOf, TheirBytesAreThoseThatCheckCounts) {
  const TensorTable table(read_model_config(folder()).value());
  const DecoderWeights packed(table, Numerics::kInvariant, DecoderWeights::Use::kEngine);
  EXPECT_EQ(static_cast<double>(packed.count()) * sizeof(float), packed_bytes(table));
  const AdapterTable adapter(table, {.rank = 5});
  const DecoderWeights slot(adapter.tensors(), Numerics::kInvariant, DecoderWeights::Use::kEngine);
  EXPECT_EQ(static_cast<double>(slot.count()) * sizeof(float), packed_bytes(adapter.tensors()));
}

INSTANTIATE_TEST_SUITE_P(Families, FrozenWeightsOf,
                         ::testing::Values("qwen3", "llama", "qwen3_moe", "glm4_moe"),
                         [](const auto& with) { return with.param; });

/// Memory of this process that is not mapped from a file, in bytes.
double own_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "RssAnon:") {
      double kibibytes = 0;
      status >> kibibytes;
      return 1024 * kibibytes;
    }
  return 0;
}

// Measured by the system: 22 M parameters, 88 MB.
TEST(FrozenWeightsMemory, ALearnerBesideAnEngineAddsNoSecondSet) {
  const auto base = make_folder(
      {.vocab_size = 4096, .hidden_size = 512, .num_layers = 6, .head_dim = 64, .deviation = 0.02});
  const double set = packed_bytes(TensorTable(read_model_config(base).value()));
  ASSERT_GT(set, 60e6);
  FrozenBases bases;
  const auto engine = make_torch_engine(with_slots(), base, nullptr, &bases);
  ASSERT_TRUE(engine.ok()) << engine.error().text();
  const auto added_by = [&](FrozenBases* shared) {
    const double before = own_bytes();
    const auto learner = make_torch_adapter_learner({}, training(), base, shared);
    EXPECT_TRUE(learner.ok());
    return own_bytes() - before;
  };
  ASSERT_GT(own_bytes(), set) << "/proc/self/status says nothing";
  const double together = added_by(&bases), apart = added_by(nullptr);
  EXPECT_LT(together, 0.2 * set) << "the adapter, its gradient and moments";
  EXPECT_GT(apart - together, 0.9 * set);
  EXPECT_LT(apart - together, 1.1 * set + 32e6) << "pages may be large";
}

}  // namespace
}  // namespace primerl
