#include "tests/conformance/client_steps_conformance.h"
#include "tests/conformance/engine_conformance.h"
#include "tests/conformance/learner_conformance.h"
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
INSTANTIATE_TEST_SUITE_P(Torch, ClientSteps,
                         ::testing::Values(torch_learner("qwen3"), torch_learner("qwen3_moe")),
                         [](const auto& one) { return one.param.name; });

}  // namespace primerl
