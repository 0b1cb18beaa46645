// Tenants' values that override those of a learner and an engine.
#include "runtime/backends/tenant_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "graph/catalog.h"
#include "graph/config/tables.h"
#include "kernels/train/objective.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

Tenant tenant_with_rank(const std::string& name, int64_t rank) {
  Tenant tenant;
  tenant.name = name;
  tenant.adapter.rank = rank;
  return tenant;
}

TEST(TenantOptions, OfTheSameOptimizerTakeItsNumbersAndOfAnotherOnlyWhatAllHave) {
  LearnerOptions options;
  options.optimizer.lr = 0.25;
  options.optimizer.beta1 = 0.5;
  options.optimizer.max_norm = 3;
  options.optimizer.moments_dtype = "bfloat16";
  Tenant tenant = tenant_with_rank("a", 4);
  tenant.optimizer.beta2 = 0.75;
  const OptimizerOptions same = rules_of(tenant, options).optimizer;
  EXPECT_EQ(same.beta1, 0.5);
  EXPECT_EQ(same.beta2, 0.75);
  EXPECT_EQ(same.moments_dtype, "bfloat16");
  tenant.optimizer = {};
  tenant.optimizer.kind = "sgd";
  tenant.optimizer.momentum = 0;
  const OptimizerOptions other = rules_of(tenant, options).optimizer;
  EXPECT_EQ(other.kind, "sgd");
  EXPECT_EQ(other.lr, 0.25);
  EXPECT_EQ(other.max_norm, 3);
  EXPECT_EQ(other.beta1, -1);
  EXPECT_EQ(other.momentum, 0) << "0 is a number";
  EXPECT_EQ(other.moments_dtype, "float32");
  EXPECT_TRUE(check_tenant(options, tenant).ok());
}

TEST(TenantOptions, ThatDoNotFitTheLearnersAreRefusedByName) {
  LearnerOptions options;
  Tenant tenant = tenant_with_rank("a", 4);
  tenant.optimizer.momentum = 0.5;
  EXPECT_THAT(check_tenant(options, tenant).error().text(),
              HasSubstr("'optimizer.momentum' is not an option of 'adamw'"));
  tenant.optimizer.kind = "lion";
  EXPECT_THAT(check_tenant(options, tenant).error().text(), HasSubstr("unknown optimizer 'lion'"));
  tenant.optimizer = {};
  tenant.max_steps = 20;
  options.schedule.kind = "wsd";
  EXPECT_THAT(check_tenant(options, tenant).error().text(), HasSubstr("'schedule': "));
  options.schedule.decay_steps = 12;
  options.schedule.warmup_steps = 8;
  EXPECT_TRUE(check_tenant(options, tenant).ok());
  tenant.schedule.warmup_steps = 9;
  EXPECT_THAT(check_tenant(options, tenant).error().text(), HasSubstr("exceed max_steps 20"));
  options.loss.kind = "cispo";
  options.loss.kl_weight = 1;
  EXPECT_THAT(validate_learner(options).error().text(), HasSubstr("'loss': "));
}

TEST(TenantOptions, UnwrittenValuesAreTheLearners) {
  LearnerOptions options;
  options.loss.clip_low = 0.1;
  options.loss.clip_high = 0.3;
  options.loss.advantage_weight = 2;
  options.loss.kl_weight = 0.25;
  Tenant tenant = tenant_with_rank("a", 4);
  EXPECT_EQ(rules_of(tenant, options).loss.clip_low, 0.1);
  EXPECT_EQ(rules_of(tenant, options).loss.kl_weight, 0.25);
  tenant.loss.clip_low = 0;
  tenant.loss.clip_high = 0.5;
  tenant.loss.advantage_weight = 1;
  tenant.loss.kl_weight = 0;
  const LossOptions own = rules_of(tenant, options).loss;
  EXPECT_EQ(own.kind, "dppo");
  EXPECT_EQ(own.clip_low, 0) << "0 is a number";
  EXPECT_EQ(own.clip_high, 0.5);
  EXPECT_EQ(own.advantage_weight, 1);
  EXPECT_EQ(own.kl_weight, 0);
  EXPECT_EQ(options.loss.clip_low, 0.1);
}

TEST(TenantOptions, AnotherObjectiveTakesNoNumberOfTheLearners) {
  LearnerOptions options;
  options.loss.clip_low = 0.1;
  options.loss.clip_high = 0.3;
  options.loss.advantage_weight = 2;
  options.loss.kl_weight = 0.25;
  Tenant tenant = tenant_with_rank("a", 4);
  tenant.loss.kind = "dr_grpo";
  tenant.loss.clip_high = 0.5;
  tenant.seq_len = 77;
  const LossOptions own = rules_of(tenant, options).loss;
  EXPECT_EQ(own.kind, "dr_grpo");
  EXPECT_EQ(own.clip_low, -1);
  EXPECT_EQ(own.clip_high, 0.5);
  EXPECT_EQ(own.kl_weight, -1);
  EXPECT_EQ(own.mean_tokens, 77) << "the divisor of a sequence";
  EXPECT_TRUE(validate(own).ok());
  tenant.loss.mean_tokens = 9;
  EXPECT_EQ(rules_of(tenant, options).loss.mean_tokens, 9);
}

TEST(TenantOptions, AnotherMeanTakesNoDivisorOfTheLearners) {
  LearnerOptions options;
  options.loss.mean = "constant";
  options.loss.mean_tokens = 100;
  Tenant tenant = tenant_with_rank("a", 4);
  EXPECT_EQ(rules_of(tenant, options).loss.mean_tokens, 100);
  tenant.loss.mean_tokens = 50;
  EXPECT_EQ(rules_of(tenant, options).loss.mean_tokens, 50);
  tenant.loss.mean_tokens = 0;
  tenant.loss.mean = "constant";
  EXPECT_EQ(rules_of(tenant, options).loss.mean_tokens, 100);
  tenant.loss.mean = "token";
  const LossOptions own = rules_of(tenant, options).loss;
  EXPECT_EQ(own.mean_tokens, 0);
  EXPECT_TRUE(validate(own).ok());
}

/// Each number of the learner's loss has one of the tenant's, which replaces it.
TEST(TenantOptions, ReplaceEveryNumberOfTheLoss) {
  for (const ObjectiveSpec& spec : objectives())
    for (const auto& number : spec.numbers) {
      LearnerOptions options;
      options.loss.kind = spec.name;
      const OptionSet& tables = *tenant_options().find("loss")->table;
      const OptionField* field = tables.find(number.name);
      ASSERT_NE(field, nullptr) << number.name;
      Tenant tenant = tenant_with_rank("a", 4);
      field->assign(&tenant.loss, Value(0.75, Span()));
      EXPECT_EQ(rules_of(tenant, options).loss.*number.member, 0.75) << number.name;
    }
}

TEST(TenantOptions, AnAdapterIsSeededByTheTenantsName) {
  Tenant tenant = tenant_with_rank("a", 4);
  tenant.adapter.dropout = 0.25;
  const AdapterConfig config = adapter_of(tenant, 17);
  EXPECT_EQ(config.alpha, 8) << "twice the rank";
  EXPECT_EQ(config.dropout, 0.25);
  tenant.slot = TenantSlot(3);
  EXPECT_EQ(adapter_of(tenant, 17), config) << "whatever its slot";
  tenant.name = "b";
  EXPECT_NE(adapter_of(tenant, 17).init_seed, config.init_seed);
}

TEST(TenantOptions, ALearnerHasAnAdapterForEachTenantAndAPlaceForEachFreeSlot) {
  Plan plan;
  plan.settings.seed = 7;
  plan.tenants = {tenant_with_rank("a", 4), tenant_with_rank("b", 8)};
  plan.free_slots = {tenant_with_rank("slot-2", 64)};
  for (uint32_t slot = 0; slot < 2; ++slot) plan.tenants[slot].slot = TenantSlot(slot);
  plan.free_slots[0].slot = TenantSlot(2);
  const auto adapters = adapters_of(plan, {});
  ASSERT_EQ(adapters.size(), 3U);
  for (uint32_t slot = 0; slot < 3; ++slot) {
    EXPECT_EQ(adapters[slot].tenant, TenantSlot(slot));
    EXPECT_EQ(adapters[slot].is_free, slot == 2);
  }
  EXPECT_EQ(adapters[1].adapter, adapter_of(plan.tenants[1], 7));
  EXPECT_EQ(adapters[2].adapter.rank, 64);
  plan.free_slots.clear();
  EXPECT_EQ(adapters_of(plan, {}).size(), 2U);
}

TEST(TenantOptions, AnEngineHasAtMostASlotForEachAdapter) {
  const std::vector<Tenant> three = {tenant_with_rank("a", 4), tenant_with_rank("b", 16),
                                     tenant_with_rank("c", 8)};
  const auto slots = [&](int32_t written) {
    EngineOptions options;
    options.adapter_slots = written;
    options = engine_for(options, three);
    EXPECT_EQ(options.adapters_max, 3);
    EXPECT_EQ(options.max_adapter_rank, 16);
    return options.adapter_slots;
  };
  EXPECT_EQ(slots(0), 3) << "unwritten: one for each";
  EXPECT_EQ(slots(1), 1);
  EXPECT_EQ(slots(3), 3);
  EXPECT_EQ(slots(4), 3);
  const std::vector<Tenant> whole = {tenant_with_rank("a", 0)};
  EngineOptions options;
  options.adapter_slots = 2;
  EXPECT_EQ(engine_for(options, whole).adapter_slots, 0) << "whole weights change";
}

TEST(TenantOptions, AnEngineHasRoomForTheSnapshotsOfAClient) {
  std::vector<Tenant> two = {tenant_with_rank("a", 4), tenant_with_rank("b", 4)};
  two[1].snapshots = 16;
  const EngineOptions options = engine_for({}, two);
  EXPECT_EQ(options.adapters_max, 2 + 17 + 1)
      << "16 snapshots, the base model, and one before the oldest goes";
  EXPECT_EQ(options.adapter_slots, 2 + 2);
}

TEST(TenantOptions, AnEngineHasRoomForTheTargetsOfAllAdapters) {
  std::vector<Tenant> two = {tenant_with_rank("a", 4), tenant_with_rank("b", 16)};
  two[0].adapter.targets = {"v_proj", "q_proj"};
  two[1].adapter.targets = {"q_proj", "down_proj"};
  const std::vector<std::string> wanted = {"down_proj", "q_proj", "v_proj"};
  EXPECT_EQ(engine_for({}, two).adapter_targets, wanted);
  two[1].adapter.targets = {"all-linear"};
  EXPECT_EQ(engine_for({}, two).adapter_targets.size(), 7U);
}

/// An environment with one turn per task and prompts of `bytes` bytes.
EnvironmentContract one_turn(size_t bytes) {
  EnvironmentContract contract;
  contract.first_tasks = [bytes](
                             const void*, uint64_t,
                             size_t count) -> Result<std::vector<EnvironmentContract::SampleTask>> {
    return std::vector<EnvironmentContract::SampleTask>(count, {std::string(bytes, 'p'), 1});
  };
  return contract;
}

TEST(TenantOptions, AMicroBatchHasThePromptOfAGroupOnceAndAtMostTheTokensOfTheLearner) {
  Tenant tenant = tenant_with_rank("a", 0);
  tenant.group_size = 4;
  tenant.batch_size = 8;
  tenant.seq_len = 100;
  tenant.sampling.max_tokens = 16;
  LearnerOptions options;
  options.micro_batch_tokens = 1000;
  const auto rows = [&](int64_t positions = 256) {
    return micro_batch_rows(options, {&tenant, 1}, positions);
  };
  EXPECT_EQ(rows(), 8 * 100) << "without an environment a sample may have all of seq_len";
  EXPECT_EQ(rows(50), 8 * 50) << "or of the model's positions";
  const EnvironmentContract short_prompts = one_turn(9);
  tenant.environment.contract = &short_prompts;
  EXPECT_EQ(rows(), 2 * 10 + 8 * 16) << "a token is a byte at least, and one begins the text";
  options.micro_batch_tokens = 148;
  EXPECT_EQ(rows(), 148);
  options.micro_batch_tokens = 147;
  EXPECT_EQ(rows(), 147);
  options.micro_batch_tokens = 5;
  EXPECT_EQ(rows(), 26) << "a longer sample is a micro-batch of its own";
  EnvironmentContract broken;
  broken.first_tasks = [](const void*, uint64_t,
                          size_t) -> Result<std::vector<EnvironmentContract::SampleTask>> {
    throw std::runtime_error("no");
  };
  tenant.environment.contract = &broken;
  EXPECT_EQ(rows(), 100) << "the rehearsal reports what a plugin throws";
}

}  // namespace
}  // namespace primerl
