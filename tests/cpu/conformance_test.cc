#include "tests/conformance/client_steps_conformance.h"
#include "tests/conformance/engine_conformance.h"
#include "tests/conformance/learner_conformance.h"
#include "tests/conformance/learner_tenants_conformance.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

EngineUnderTest torch_engine(const std::string& model_type) {
  const testing::TinyModel model{.model_type = model_type};
  return {model_type, model.vocab_size,
          [model](const EngineOptions& options, std::shared_ptr<const Tokenizer> tokenizer) {
            auto engine =
                make_torch_engine(options, testing::make_folder(model), std::move(tokenizer));
            CHECK(engine.ok(), engine.error().text());
            return std::move(engine).value();
          },
          [model](PolicyVersion version) {
            testing::TinyModel other = model;
            other.seed = 2;
            return testing::make_snapshot(other, version);
          }};
}

LearnerUnderTest torch_learner(const std::string& model_type) {
  const testing::TinyModel model{.model_type = model_type};
  return {model_type, model.vocab_size, [model](const LearnerOptions& options) {
            auto learner = make_torch_learner(options, testing::make_folder(model));
            CHECK(learner.ok(), learner.error().text());
            return std::move(learner).value();
          }};
}

TenantsUnderTest torch_tenants(const std::string& model_type, const std::string& numerics) {
  const testing::TinyModel model{.model_type = model_type};
  TenantsUnderTest learner;
  learner.name = model_type + "_" + numerics;
  learner.vocab_size = model.vocab_size;
  learner.divides_steps = numerics == "invariant";
  learner.make = [=](LearnerOptions options, const std::vector<AdapterTraining>& tenants) {
    options.numerics = numerics;
    auto made = make_torch_adapter_learner(options, tenants, testing::make_folder(model));
    CHECK(made.ok(), made.error().text());
    return std::move(made).value();
  };
  return learner;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Torch, EngineConformance,
                         ::testing::Values(torch_engine("qwen3"), torch_engine("llama"),
                                           torch_engine("qwen3_moe"), torch_engine("glm4_moe")),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(Torch, EngineCache,
                         ::testing::Values(torch_engine("qwen3"), torch_engine("llama"),
                                           torch_engine("qwen3_moe"), torch_engine("glm4_moe")),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(Torch, EngineLogits,
                         ::testing::Values(torch_engine("qwen3"), torch_engine("glm4_moe")),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(Torch, LearnerConformance,
                         ::testing::Values(torch_learner("qwen3"), torch_learner("llama"),
                                           torch_learner("qwen3_moe"), torch_learner("glm4_moe")),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(Torch, LearnerTenants,
                         ::testing::Values(torch_tenants("qwen3", "invariant"),
                                           torch_tenants("qwen3_moe", "invariant"),
                                           torch_tenants("llama", "fast")),
                         [](const auto& one) { return one.param.name; });
INSTANTIATE_TEST_SUITE_P(Torch, ClientSteps,
                         ::testing::Values(torch_learner("qwen3"), torch_learner("qwen3_moe")),
                         [](const auto& one) { return one.param.name; });

}  // namespace primerl
