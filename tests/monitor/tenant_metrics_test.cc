// /metrics and `ps` of a run that is served: tenants come and go, the labels stay bounded.
#include "runtime/monitor/tenant_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/monitor/run_table.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Time kBegin = Time::from_nanoseconds(1'000'000'000'000);

class ServedTenants : public ::testing::Test {
 protected:
  ServedTenants() {
    auto plan = std::make_shared<Plan>();
    plan->settings.name = "hosted";
    plan->settings.tenant_limits.tenants_max = 2;
    plan->free_slots.resize(2);
    plan->free_slots[0].name = "slot-0";
    plan->free_slots[1].name = "slot-1";
    plan->processes.resize(1);
    plan_ = plan;
    store_ = std::make_unique<StatusStore>(plan_, kBegin);
  }
  static ServedTenant tenant(const std::string& name, int slot, const std::string& state,
                             const std::string& why = "") {
    return {slot < 0 ? TenantSlot() : TenantSlot(static_cast<uint32_t>(slot)),
            name,
            state,
            why,
            9,
            0.5};
  }
  void step(uint32_t slot, int64_t step) {
    StepFacts facts;
    facts.step = step;
    facts.values = {{"reward/all/mean", 0.5}, {"progress/tokens", 100}};
    store_->step_taken(TenantSlot(slot), facts, kBegin);
  }
  std::string metrics() const {
    PrometheusText out;
    write_tenant_metrics(out, store_->picture(), kBegin);
    return out.text();
  }
  std::string table() const {
    return run_table(
        status_json(*plan_, *store_->wiring(), store_->facts(), store_->picture(), kBegin));
  }

  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<StatusStore> store_;
};

TEST_F(ServedTenants, ARunWithoutTenantsHasNoSample) {
  EXPECT_THAT(metrics(), Not(HasSubstr("tenant=")));
  EXPECT_THAT(table(), Not(HasSubstr("slot-0"))) << "a free slot is no tenant";
}

TEST_F(ServedTenants, AJoinedTenantIsShownWithItsStateAndStep) {
  store_->serve({tenant("alice", 1, "training")});
  step(1, 3);
  EXPECT_THAT(metrics(),
              AllOf(HasSubstr("primerl_tenant_state{tenant=\"alice\",state=\"training\"} 1\n"),
                    HasSubstr("primerl_tenant_policy_version{tenant=\"alice\"} 3\n"),
                    HasSubstr("primerl_tenant_max_steps{tenant=\"alice\"} 9\n"),
                    HasSubstr("primerl_tenants{state=\"training\"} 1\n")));
  EXPECT_THAT(table(), HasSubstr("alice   training   3/9"));
}

TEST_F(ServedTenants, TheNextTenantOfASlotBeginsAnew) {
  store_->serve({tenant("alice", 0, "training"), tenant("bo", 1, "training")});
  step(0, 3);
  step(1, 5);
  store_->serve({tenant("alice", -1, "failed", "its disk is full\nsince noon"),
                 tenant("alice-1", 0, "starting"), tenant("bo", 1, "training")});
  const RunSnapshot picture = store_->picture();
  EXPECT_EQ(picture.tenants[0].newest, nullptr);
  EXPECT_EQ(picture.tenants[0].served.learner.value_or(0), 0) << "bo alone has computed anything";
  EXPECT_EQ(picture.tenants[1].newest->step, 5) << "a neighbour is not touched";
  ASSERT_EQ(picture.left.size(), 1U);
  EXPECT_EQ(store_->tenant("alice")->newest->step, 3);
  EXPECT_EQ(store_->tenant("bo")->newest->step, 5);
  EXPECT_FALSE(store_->tenant("cy").has_value());
  EXPECT_EQ(picture.left[0].newest->step, 3) << "the last step of one that has left stays";
  EXPECT_THAT(metrics(), AllOf(HasSubstr("primerl_tenants{state=\"failed\"} 1\n"),
                               Not(HasSubstr("tenant=\"alice\""))))
      << "labels are those of the slots";
  EXPECT_THAT(table(), HasSubstr("tenant 'alice' failed: its disk is full\n"));
}

TEST_F(ServedTenants, ThoseThatHaveLeftAreBounded) {
  std::vector<ServedTenant> all;
  for (size_t i = 0; i < kLeftTenantsMax; ++i)
    all.push_back(tenant(fmt::format("t{:03}", i), -1, "ended"));
  store_->serve(all);
  EXPECT_EQ(store_->picture().left.size(), kLeftTenantsMax);
  all.push_back(tenant("z", -1, "ended"));
  store_->serve(all);
  EXPECT_EQ(store_->picture().left.size(), kLeftTenantsMax);
  store_->serve({});
  EXPECT_TRUE(store_->picture().left.empty());
}

TEST_F(ServedTenants, TheNextStartOfTheCommandShowsThemAgain) {
  store_->serve({tenant("alice", 0, "training")});
  step(0, 3);
  StatusStore next(plan_, kBegin, store_.get());
  EXPECT_EQ(next.picture().tenants[0].name, "alice");
  next.serve({tenant("alice", 0, "training")});
  EXPECT_EQ(next.picture().tenants[0].newest->step, 3);
}

TEST(TenantLabels, BeyondTheirBoundAreAddedUpAsOthers) {
  RunSnapshot picture;
  const auto add = [&picture](size_t i, double tokens_per_second) {
    TenantPicture& tenant = picture.tenants.emplace_back();
    tenant.name = fmt::format("t{}", i);
    tenant.state = "training";
    tenant.share = 0.01;
    tenant.served.tokens_per_second = tokens_per_second;
  };
  const auto text = [&picture] {
    PrometheusText out;
    write_tenant_metrics(out, picture, kBegin);
    return out.text();
  };
  picture.tenants.emplace_back();  // a free slot
  for (size_t i = 0; i < kTenantLabelsMax; ++i) add(i, static_cast<double>(i) + 2);
  EXPECT_THAT(text(), Not(HasSubstr(kOtherTenants)));
  EXPECT_THAT(text(), HasSubstr("primerl_tenant_tokens_per_second{tenant=\"t0\"} 2\n"));
  add(kTenantLabelsMax, 100);
  EXPECT_THAT(
      text(),
      AllOf(HasSubstr("primerl_tenant_tokens_per_second{tenant=\"t64\"} 100\n"),
            HasSubstr("primerl_tenant_tokens_per_second{tenant=\"~other\"} 2\n"),
            HasSubstr("primerl_tenant_promised_share_ratio{tenant=\"~other\"} 0.01\n"),
            HasSubstr("primerl_tenants{state=\"training\"} 65\n"), Not(HasSubstr("tenant=\"t0\""))))
      << "the one that computed least has no label";
}

}  // namespace
}  // namespace primerl
