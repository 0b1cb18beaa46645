// `ps` and /status per tenant: step, reward, staleness, tokens per second, and the tenant's used
// share of engines and learner beside its promised share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/monitor/run_table.h"
#include "runtime/monitor/status_store.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Time kSharesBegin = Time::from_nanoseconds(1'000'000'000'000);

class TenantShares : public ::testing::Test {
 protected:
  TenantShares() {
    auto plan = std::make_shared<Plan>();
    plan->settings.name = "shared";
    for (const char* name : {"ada", "bo"}) {
      Tenant tenant;
      tenant.name = name;
      tenant.slot = TenantSlot(static_cast<uint32_t>(plan->tenants.size()));
      tenant.max_steps = 8;
      tenant.share = plan->tenants.empty() ? 0.75 : 0.25;
      plan->tenants.push_back(tenant);
    }
    plan->processes.resize(1);
    plan_ = plan;
    board_ = std::make_unique<StatusStore>(plan_, kSharesBegin);
    board_->process_started(ProcessId(0), 1, 100);
  }
  static Time after(int64_t seconds) { return kSharesBegin + Duration::seconds(seconds); }
  /// The engine reports the tokens computed for each tenant since the process began.
  void engine_says(uint64_t ada, uint64_t bo, Time now) {
    Heartbeat beat;
    beat.engines = {{.tenant = 0, .num_tokens = ada}, {.tenant = 1, .num_tokens = bo}};
    board_->process_said(ProcessId(0), Payload::of(std::move(beat)), now);
  }
  void step(uint32_t tenant, int64_t step, double num_tokens, Time now) {
    StepFacts facts;
    facts.step = step;
    facts.values = {{"reward/all/mean", 0.8125},
                    {"off_policy/mean", 1.25},
                    {"off_policy/max", 2},
                    {"perf/decode_tokens_per_second", 5210.4},
                    {"perf/train_tokens_per_second", 9100.2},
                    {"progress/tokens", num_tokens}};
    board_->step_taken(TenantSlot(tenant), facts, now);
  }
  Json tenant(size_t slot, Time now) const {
    const Json status =
        status_json(*plan_, *board_->wiring(), board_->facts(), board_->picture(), now);
    return status.find("tenants")->as_array()[slot];
  }
  std::string table(Time now) const {
    return run_table(
        status_json(*plan_, *board_->wiring(), board_->facts(), board_->picture(), now));
  }
  ServedParts parts(size_t slot) const { return board_->picture().tenants[slot].served; }

  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<StatusStore> board_;
};

TEST_F(TenantShares, AreShownBesideThePromisedOnes) {
  engine_says(600, 200, after(1));
  step(0, 3, 300, after(2));
  step(1, 8, 900, after(2));
  EXPECT_THAT(table(after(3)),
              HasSubstr("\n\ntenant  state     step  last  reward  staleness  decode/s  train/s  "
                        "engine  learner  promised\n"
                        "ada     training   3/8  1.0s   0.812    1.2 (2)      5210     9100     "
                        "75%      25%       75%\n"
                        "bo      done       8/8  1.0s   0.812    1.2 (2)      5210     9100     "
                        "25%      75%       25%\n"));
  EXPECT_DOUBLE_EQ(tenant(0, after(3)).find("share")->as_double(), 0.75);
  EXPECT_DOUBLE_EQ(tenant(0, after(3)).find("engine_share")->as_double(), 0.75);
  EXPECT_DOUBLE_EQ(tenant(0, after(3)).find("learner_share")->as_double(), 0.25);
  EXPECT_EQ(*tenant(1, after(3)).get_string("state"), "done");
}

TEST_F(TenantShares, AreUnknownWhereNothingWasServed) {
  EXPECT_EQ(tenant(0, after(1)).find("engine_share"), nullptr);
  EXPECT_EQ(tenant(0, after(1)).find("learner_share"), nullptr);
  EXPECT_THAT(table(after(1)),
              HasSubstr("ada     training   0/8     -       -          -         -        -       "
                        "-        -       75%\n"));
}

TEST_F(TenantShares, AreOfTheLastMinute) {
  engine_says(1000, 0, after(1));
  for (int64_t second = 2; second <= 60; ++second) engine_says(1000, 0, after(second));
  EXPECT_DOUBLE_EQ(*parts(0).engine, 1.0);
  for (int64_t second = 61; second <= 70; ++second) engine_says(1000, 50, after(second));
  EXPECT_DOUBLE_EQ(*parts(1).engine, 1.0) << "the thousand are older";
  for (int64_t second = 71; second <= 140; ++second) engine_says(1000, 50, after(second));
  EXPECT_FALSE(parts(0).engine.has_value()) << "nothing was served for a minute";
}

TEST_F(TenantShares, ContinueWhenTheEnginesRestart) {
  engine_says(100, 100, after(1));
  board_->process_started(ProcessId(0), 2, 101);
  engine_says(0, 200, after(2));
  EXPECT_DOUBLE_EQ(*parts(0).engine, 0.25);
  EXPECT_DOUBLE_EQ(*parts(1).engine, 0.75);
}

TEST_F(TenantShares, ATenantThatIsSetAsideIsNamedWithTheReason) {
  step(0, 3, 300, after(2));
  board_->set_aside({{TenantSlot(0), "'trainer.ada': no\n   the newest checkpoint is of step 2"}});
  const std::string text = table(after(3));
  EXPECT_THAT(text, HasSubstr("\nada     set aside   3/8"));
  EXPECT_THAT(text, HasSubstr("\ntenant 'ada' is set aside: 'trainer.ada': no\n"));
  EXPECT_THAT(text, Not(HasSubstr("newest checkpoint")));
  EXPECT_EQ(*tenant(0, after(3)).get_string("why"),
            "'trainer.ada': no\n   the newest checkpoint is of step 2");
  EXPECT_EQ(*tenant(1, after(3)).get_string("state"), "training");
}

}  // namespace
}  // namespace primerl
