// The engines and the learner of a process get one set of frozen bases: the factory's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "runtime/backends/backends.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/backends/torch_backends.h"

namespace primerl {
namespace {

/// The bases that each made engine and learner got.
std::vector<FrozenBases*>& given() {
  static std::vector<FrozenBases*> all;
  return all;
}

Error not_here() { return error(Code::kUnavailable, "only who asks is looked at"); }

/// An engine and a learner of adapters on the torch backend.
Plan plan_of_two() {
  Plan plan;
  plan.tenants.emplace_back().adapter.rank = 4;
  for (const char* kind : {"engine", "learner"}) {
    PlanResource resource;
    resource.name = resource.kind = kind;
    resource.backend = "torch";
    resource.contract = full_catalog().find_resource(kind, "torch");
    resource.options = resource.contract->options.make();
    plan.resources.push_back(std::move(resource));
  }
  return plan;
}

TEST(FrozenBasesOfAFactory, AreThoseOfAllThatItMakes) {
  given().clear();
  const Plan plan = plan_of_two();
  const ResourceFactory factory = resource_factory();
  const ResourceFactory copy = factory;
  EXPECT_FALSE(factory(plan, 0).ok());
  EXPECT_FALSE(copy(plan, 1).ok());
  EXPECT_FALSE(factory(plan, 0).ok()) << "made again";
  ASSERT_EQ(given().size(), 3U);
  EXPECT_NE(given().front(), nullptr);
  EXPECT_THAT(given(), ::testing::Each(given().front()));
  const ResourceFactory of_another_process = resource_factory();
  EXPECT_FALSE(of_another_process(plan, 0).ok());
  EXPECT_NE(given().back(), given().front());
}

}  // namespace

/// Replaces torch_backends.cc; functions that the test does not need are null.
const TorchBackends* torch_backends() {
  static const TorchBackends all = [] {
    TorchBackends made{};
    made.make_engine = [](const EngineOptions&, const std::string&,
                          std::shared_ptr<const Tokenizer>,
                          FrozenBases* bases) -> Result<std::unique_ptr<Engine>> {
      given().push_back(bases);
      return not_here();
    };
    made.make_adapter_learner = [](const LearnerOptions&, std::span<const AdapterTraining>,
                                   const std::string&,
                                   FrozenBases* bases) -> Result<std::unique_ptr<Learner>> {
      given().push_back(bases);
      return not_here();
    };
    return made;
  }();
  return &all;
}

}  // namespace primerl
