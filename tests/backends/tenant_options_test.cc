// What tenants write over the values of a learner and an engine.
#include "runtime/backends/tenant_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

Tenant tenant_with_rank(const std::string& name, int64_t rank) {
  Tenant tenant;
  tenant.name = name;
  tenant.adapter.rank = rank;
  return tenant;
}

TEST(TenantOptions, WhatIsNotWrittenIsTheLearners) {
  LearnerOptions options;
  options.loss = {"dppo", 0.1, 0.3, 2, 0.25};
  Tenant tenant = tenant_with_rank("a", 4);
  EXPECT_EQ(rules_of(tenant, options).loss.clip_low, 0.1);
  EXPECT_EQ(rules_of(tenant, options).loss.kl_weight, 0.25);
  tenant.loss.clip_low = 0;
  tenant.loss.clip_high = 0.5;
  tenant.loss.advantage_weight = 1;
  tenant.loss.kl_weight = 0;
  tenant.loss.kind = "cross_entropy";
  const LossOptions own = rules_of(tenant, options).loss;
  EXPECT_EQ(own.kind, "cross_entropy");
  EXPECT_EQ(own.clip_low, 0) << "0 is a number";
  EXPECT_EQ(own.clip_high, 0.5);
  EXPECT_EQ(own.advantage_weight, 1);
  EXPECT_EQ(own.kl_weight, 0);
  EXPECT_EQ(options.loss.clip_low, 0.1);
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

TEST(TenantOptions, AnEngineHasRoomForTheTargetsOfAllAdapters) {
  std::vector<Tenant> two = {tenant_with_rank("a", 4), tenant_with_rank("b", 16)};
  two[0].adapter.targets = {"v_proj", "q_proj"};
  two[1].adapter.targets = {"q_proj", "down_proj"};
  const std::vector<std::string> wanted = {"down_proj", "q_proj", "v_proj"};
  EXPECT_EQ(engine_for({}, two).adapter_targets, wanted);
  two[1].adapter.targets = {"all-linear"};
  EXPECT_EQ(engine_for({}, two).adapter_targets.size(), 7U);
}

}  // namespace
}  // namespace primerl
