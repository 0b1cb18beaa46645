// A process of a served run carries out the orders about tenants and answers them.
#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>

#include "graph/base/real_clock.h"
#include "runtime/worker/run_member.h"
#include "tests/base/patience.h"
#include "tests/exec/small_graph.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr TenantSlot kFree(1);
using Kind = TenantChange::Kind;

/// A run of one process with two slots, of which the second is free. Its actors start when the test
/// says so.
class HostedMember : public ::testing::Test {
 protected:
  HostedMember() : graph_(2) {
    graph_.num_free_slots = 1;
    graph_.settings.tenant_limits.tenants_max = 2;
    testing::Strings strings;
    strings.on_start = [this](testing::Puppet&) {
      may_start_.wait();
      return ok();
    };
    graph_.node("actor", {.strings = std::move(strings), .per_tenant = true});
    CafExecutorSetup setup;
    setup.plan = graph_.plan();
    setup.process_services = &process_services_;
    setup.make_tenant = [this](
                            const Plan& plan,
                            const TenantChange& change) -> Result<std::shared_ptr<const Tenant>> {
      if (!why_not_.empty()) return error(Code::kExhausted, "{}", why_not_);
      auto tenant = std::make_shared<Tenant>(plan.in_slot(change.slot));
      tenant->name = change.name;
      tenant->slot = change.slot;
      tenant->tenancy = change.tenancy;
      begun_at_ = change.begins_at;
      return std::shared_ptr<const Tenant>(std::move(tenant));
    };
    setup.begins_from = [](const TenantChange& change) -> int64_t {
      return change.tenancy == 3 ? 7 : 0;
    };
    setup.events.tenant_changed = [this](const TenantChange& change, const Status&) {
      const std::lock_guard lock(mutex_);
      heard_.push_back(std::string(to_string(change.kind)));
    };
    member_ = std::make_unique<RunMember>(std::move(setup), nullptr,
                                          [this](const Payload& message) { note(message); });
  }
  ~HostedMember() override { start_actors(); }

  void note(const Payload& message) {
    const std::lock_guard lock(mutex_);
    if (const auto* answered = as_if<TenantAnswered>(message)) answers_.push_back(*answered);
  }
  Status obey(Payload message) { return member_->obey(message); }
  Status change(Kind kind, uint32_t tenancy = 3, TenantSlot slot = kFree) {
    return obey(Payload::of(ChangeTenant{{kind, slot, tenancy, "alice", "[tenant.alice]\n"}}));
  }
  void begin() { ASSERT_TRUE(obey(Payload::of(StartRun{1, 0, true})).ok()); }
  void start_actors() {
    if (!std::exchange(is_let_, true)) let_.set_value();
  }
  size_t num_answers() {
    const std::lock_guard lock(mutex_);
    return answers_.size();
  }
  /// The next `count` answers.
  std::vector<TenantAnswered> take(size_t count) {
    const Time give_up = steady_now() + kPatience;
    while (num_answers() < count && steady_now() < give_up) {
      member_->poll(steady_now());
      std::this_thread::yield();
    }
    const std::lock_guard lock(mutex_);
    EXPECT_GE(answers_.size(), count);
    return std::exchange(answers_, {});
  }
  static std::string text_of(const TenantAnswered& one) {
    return one.round > 0
               ? fmt::format("drained {}~{} round {}", one.slot.value, one.tenancy, one.round)
               : fmt::format("{} {}~{}", to_string(static_cast<Kind>(one.change)), one.slot.value,
                             one.tenancy);
  }
  std::vector<std::string> texts(size_t count) {
    std::vector<std::string> texts;
    for (const TenantAnswered& one : take(count)) texts.push_back(text_of(one));
    return texts;
  }

  std::promise<void> let_;
  std::shared_future<void> may_start_{let_.get_future()};
  bool is_let_ = false;
  std::string why_not_;  // set before the actors start
  std::atomic<int64_t> begun_at_ = -1;
  testing::SmallGraph graph_;
  testing::MemoryHostServices process_services_;
  std::mutex mutex_;
  std::vector<TenantAnswered> answers_;  // guarded by mutex_
  std::vector<std::string> heard_;       // guarded by mutex_
  std::unique_ptr<RunMember> member_;
};

TEST_F(HostedMember, OrdersWaitUntilTheActorGroupsAreMade) {
  begin();
  ASSERT_TRUE(change(Kind::kJoin).ok());
  member_->poll(steady_now());
  EXPECT_EQ(num_answers(), 0U) << "nothing is made yet";
  start_actors();
  EXPECT_THAT(texts(1), ElementsAre("join 1~3"));
  EXPECT_THAT(heard_, ElementsAre("join"));
}

TEST_F(HostedMember, ATenantJoinsDrainsAndLeaves) {
  start_actors();
  begin();
  ASSERT_TRUE(change(Kind::kJoin).ok());
  ASSERT_TRUE(change(Kind::kStart).ok());
  EXPECT_THAT(texts(2), ElementsAre("join 1~3", "start 1~3"));
  ASSERT_TRUE(obey(Payload::of(DrainTenant{kFree, 3, 1})).ok());
  EXPECT_THAT(texts(1), ElementsAre("drained 1~3 round 1"));
  ASSERT_TRUE(obey(Payload::of(DrainTenant{kFree, 3, 2})).ok());
  EXPECT_THAT(texts(1), ElementsAre("drained 1~3 round 2")) << "each round is answered";
  ASSERT_TRUE(change(Kind::kLeave).ok());
  EXPECT_THAT(texts(1), ElementsAre("leave 1~3"));
}

/// The record has the step, so a start that follows it begins at the same checkpoint.
TEST_F(HostedMember, AJoinHasTheStepAtWhichItsTenantContinues) {
  start_actors();
  begin();
  ASSERT_TRUE(change(Kind::kJoin).ok());
  EXPECT_THAT(texts(1), ElementsAre("join 1~3"));
  EXPECT_EQ(begun_at_, 7);
}

TEST_F(HostedMember, ARepeatedOrderIsAnsweredAndChangesNothing) {
  start_actors();
  begin();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(change(Kind::kJoin).ok());
    for (const TenantAnswered& one : take(1)) EXPECT_EQ(one.text, "");
  }
  ASSERT_TRUE(change(Kind::kLeave, 2).ok()) << "of an earlier tenant";
  for (const TenantAnswered& one : take(1)) EXPECT_EQ(one.text, "");
  ASSERT_TRUE(change(Kind::kJoin, 4).ok());
  EXPECT_THAT(take(1)[0].text, HasSubstr("alice")) << "the tenant is still there";
}

TEST_F(HostedMember, AJoinThatFailsSaysWhy) {
  why_not_ = "its data set is gone";
  start_actors();
  begin();
  ASSERT_TRUE(change(Kind::kJoin).ok());
  const auto answers = take(1);
  EXPECT_THAT(answers[0].text, HasSubstr("its data set is gone"));
  EXPECT_EQ(answers[0].code, static_cast<uint8_t>(Code::kExhausted));
}

TEST_F(HostedMember, ASlotThatThePlanDoesNotHaveIsAFault) {
  start_actors();
  begin();
  EXPECT_EQ(change(Kind::kJoin, 3, TenantSlot(2)).error().code(), Code::kCorrupt);
  EXPECT_EQ(obey(Payload::of(DrainTenant{TenantSlot(), 3, 1})).error().code(), Code::kCorrupt);
  EXPECT_EQ(obey(Payload::of(SetTenantAside{TenantSlot(2)})).error().code(), Code::kCorrupt);
  EXPECT_TRUE(obey(Payload::of(SetTenantAside{kFree})).ok()) << "a tenant may have joined it";
}

// The control plane repeats an order every dead_after. A join that took long filled the queue, and
// the process ended.
TEST_F(HostedMember, AnOrderThatIsRepeatedWhileItWaitsWaitsOnce) {
  begin();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(change(Kind::kJoin).ok()) << i;
  ASSERT_TRUE(change(Kind::kStart).ok());
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(change(Kind::kPause).ok()) << i;
    ASSERT_TRUE(change(Kind::kResume).ok()) << i;
  }
  for (uint32_t round = 1; round <= 100; ++round)
    ASSERT_TRUE(obey(Payload::of(DrainTenant{kFree, 3, round})).ok()) << round;
  start_actors();
  EXPECT_THAT(texts(4),
              UnorderedElementsAre("join 1~3", "start 1~3", "resume 1~3", "drained 1~3 round 100"));
}

TEST_F(HostedMember, WaitingOrdersAreBounded) {
  begin();
  for (uint32_t i = 0; i < 32; ++i) ASSERT_TRUE(change(Kind::kPause, i).ok()) << i;
  const Status past = change(Kind::kPause, 32);
  ASSERT_FALSE(past.ok());
  EXPECT_THAT(past.error().text(), HasSubstr("32 orders about tenants wait already"));
}

}  // namespace
}  // namespace primerl
