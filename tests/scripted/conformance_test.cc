/// The scripted engine and learner have the same guarantees as the torch ones.
#include "kernels/scripted/scripted_engine.h"
#include "kernels/scripted/scripted_learner.h"
#include "kernels/scripted/scripted_weights.h"
#include "tests/conformance/client_steps_conformance.h"
#include "tests/conformance/engine_conformance.h"
#include "tests/conformance/learner_conformance.h"
#include "tests/conformance/learner_tenants_conformance.h"

namespace primerl {
namespace {

EngineUnderTest scripted_engine() {
  EngineUnderTest engine;
  engine.name = "scripted";
  engine.tenants_max = kWeightsKeysMax;
  engine.has_logits = false;
  engine.vocab_size = ScriptedEngineOptions().vocab_size;
  engine.make = [](const EngineOptions& options, std::shared_ptr<const Tokenizer> tokenizer) {
    ScriptedEngineOptions scripted;
    static_cast<EngineOptions&>(scripted) = options;
    return *make_scripted_engine(scripted, std::move(tokenizer));
  };
  engine.snapshot = [](PolicyVersion version) { return scripted_snapshot(version, 99); };
  return engine;
}

LearnerUnderTest scripted_learner() {
  LearnerUnderTest learner;
  learner.name = "scripted";
  learner.vocab_size = ScriptedLearnerOptions().vocab_size;
  learner.make = [](const LearnerOptions& options) {
    ScriptedLearnerOptions scripted;
    static_cast<LearnerOptions&>(scripted) = options;
    return *make_scripted_learner(scripted);
  };
  return learner;
}

TenantsUnderTest scripted_tenants() {
  TenantsUnderTest learner;
  learner.name = "scripted";
  learner.vocab_size = ScriptedLearnerOptions().vocab_size;
  learner.has_adapters = false;
  learner.num_uses = 10'000;
  learner.make = [](const LearnerOptions& options, const std::vector<AdapterTraining>& tenants) {
    ScriptedLearnerOptions scripted;
    static_cast<LearnerOptions&>(scripted) = options;
    for (const AdapterTraining& tenant : tenants) {
      scripted.rules_of_tenant.push_back(tenant.rules);
      if (tenant.is_free) scripted.free_slots.push_back(tenant.tenant);
    }
    return *make_scripted_learner(scripted);
  };
  return learner;
}

INSTANTIATE_TEST_SUITE_P(Scripted, EngineConformance, ::testing::Values(scripted_engine()));
INSTANTIATE_TEST_SUITE_P(Scripted, EngineCache, ::testing::Values(scripted_engine()));
// It has no logits.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EngineLogits);
INSTANTIATE_TEST_SUITE_P(Scripted, LearnerConformance, ::testing::Values(scripted_learner()));
INSTANTIATE_TEST_SUITE_P(Scripted, LearnerTenants, ::testing::Values(scripted_tenants()));
INSTANTIATE_TEST_SUITE_P(Scripted, ClientSteps, ::testing::Values(scripted_learner()));

}  // namespace
}  // namespace primerl
