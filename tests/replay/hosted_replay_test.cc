// A run whose tenants come and go, on the virtual clock: recorded, replayed, and followed after it
// was cut off at every step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/replay/forked_graph.h"
#include "runtime/replay/recovery.h"
#include "runtime/replay/tenant_choice.h"
#include "runtime/trace/read/trace_prefix.h"
#include "runtime/trace/record/recorder.h"
#include "tests/exec/small_graph.h"
#include "tests/replay/replay_run.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr TenantSlot kFree{1};
constexpr int64_t kNumbers = 5;  // that the source of a tenant gives

Result<bool> gives_numbers(Puppet& puppet) {
  if (puppet.count == kNumbers || puppet.out.room() <= 0) return false;
  const TenantSlot tenant = puppet.world().tenants().front();
  // A value that is set changes the numbers, so a replay without it differs.
  const int64_t added = 100 * puppet.world().tenant(tenant).inflight;
  puppet.out.send({.value = ++puppet.count + added, .bulk = {}}, for_tenant(tenant));
  return true;
}

/// source.T -> middle.T -> sink, with two slots of which the second is free.
class Hosted {
 public:
  Hosted() : graph_(2) {
    graph_.num_free_slots = 1;
    Strings middle;
    middle.on_in = [](Puppet& puppet, const Number& number) {
      puppet.out.send({.value = number.value * 2, .bulk = {}});
      return ok();
    };
    graph_
        .node("source",
              {.strings = {.on_work = gives_numbers}, .contract = make_source, .per_tenant = true})
        .node("middle", {.strings = middle, .per_tenant = true})
        .node("sink")
        .edge("source.out", "middle.in")
        .edge("middle.out", "sink.in");
    auto plan = std::make_shared<Plan>(*graph_.plan());
    for (Tenant& slot : plan->free_slots) slot.name = fmt::format("slot-{}", slot.slot);
    plan_ = plan;
  }

  static TenantMaker maker() {
    return
        [](const Plan& plan, const TenantChange& change) -> Result<std::shared_ptr<const Tenant>> {
          auto tenant = std::make_shared<Tenant>(plan.in_slot(change.slot));
          tenant->name = change.name;
          tenant->slot = change.slot;
          tenant->tenancy = change.tenancy;
          return std::shared_ptr<const Tenant>(std::move(tenant));
        };
  }
  static ResourceFactory no_resources() {
    return [](const Plan&, int32_t) -> Result<std::shared_ptr<Resource>> {
      return error(Code::kInternal, "this graph has no resources");
    };
  }

  /// Alice has the free slot, then bob, and then carl, who stays.
  void record(const std::filesystem::path& folder) {
    sim::VirtualRecord record(*plan_, folder / "trace");
    Recorder recorder(record.catalog(), record.writer());
    sim::StepOrder order(recorder, steps_);
    VirtualOptions options;
    options.observer = &order;
    options.is_hosted = true;
    options.make_tenant = maker();
    options.events.tenant_changed = [this](const TenantChange&, const Status& status) {
      EXPECT_TRUE(status.ok()) << status.error().text();
      ++num_changed_;
    };
    options.events.tenant_drained = [this](TenantSlot) { ++num_drained_; };
    MemoryHostServices services;
    VirtualExecutor run(plan_, no_resources(), services, options);
    ASSERT_TRUE(run.start().ok());
    uint32_t tenancy = 0;
    for (const char* name : {"alice", "bob", "carl"}) {
      const bool stays = std::string_view(name) == "carl";
      change(run, TenantChange::Kind::kJoin, name, tenancy);
      if (stays) change(run, TenantChange::Kind::kSet, name, tenancy);
      change(run, TenantChange::Kind::kStart, name, tenancy);
      // Alice's source has given all of its numbers, bob's some.
      const uint64_t enough = steps_.size() + (tenancy == 1 ? 6 : 40);
      (void)run.run_until([&] { return steps_.size() >= enough; }, 1000);
      if (stays) break;
      run.drain_tenant(kFree);
      const int drained = num_drained_ + 1;
      ASSERT_TRUE(run.run_until([&] { return num_drained_ == drained; }));
      change(run, TenantChange::Kind::kLeave, name, tenancy);
      ++tenancy;
    }
    record.close();
    trace_ = Trace::open(folder / "trace").value();
  }

  ReplaySetup replay() const {
    ReplaySetup setup;
    setup.plan = plan_;
    setup.trace = trace_;
    setup.factory = [](const Plan&, int32_t,
                       ReplayedAnswers&) -> Result<std::shared_ptr<Resource>> {
      return error(Code::kInternal, "this graph has no resources");
    };
    setup.make_tenant = maker();
    return setup;
  }
  GroupId group(std::string_view name) const {
    for (uint32_t i = 0; i < plan_->groups.size(); ++i)
      if (plan_->groups[i].name == name) return GroupId(i);
    return {};
  }
  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  const std::shared_ptr<const Trace>& trace() const { return trace_; }
  const std::vector<GroupId>& steps() const { return steps_; }

 private:
  void change(VirtualExecutor& run, TenantChange::Kind kind, const char* name, uint32_t tenancy) {
    const char* const table = kind == TenantChange::Kind::kSet ? "inflight = 3\n" : "[tenant.x]\n";
    ASSERT_TRUE(run.change_tenant({kind, kFree, tenancy, name, table}).ok());
    const int changed = num_changed_ + 1;
    ASSERT_TRUE(run.run_until([&] { return num_changed_ == changed; }));
  }

  SmallGraph graph_;
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const Trace> trace_;
  std::vector<GroupId> steps_;
  int num_changed_ = 0, num_drained_ = 0;
};

class HostedReplay : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(run_.record(folder_.path())); }
  ReplayReport replay(ReplaySetup setup) {
    MemoryHostServices services;
    setup.process_services = &services;
    auto made = Replay::make(std::move(setup));
    EXPECT_TRUE(made.ok()) << made.error().text();
    const auto report = (*made)->run();
    EXPECT_TRUE(report.ok()) << report.error().text();
    for (const Divergence& each : report->divergences)
      ADD_FAILURE() << run_.plan()->group(each.group).name << ":" << each.step << " " << each.what;
    return *report;
  }
  ScratchFolder folder_;
  Hosted run_;
};

TEST_F(HostedReplay, MakesAndDestroysActorsAtTheRecordedPositions) {
  const auto& uses = run_.trace()->tenants().all();
  ASSERT_THAT(uses, SizeIs(4));
  ASSERT_THAT(uses[3].values, SizeIs(1)) << "of carl, once for all groups";
  EXPECT_EQ(uses[3].values[0].second, "inflight = 3\n");
  const ReplayReport report = replay(run_.replay());
  EXPECT_EQ(report.total_steps(), run_.trace()->num_steps());
  EXPECT_GT(report.num_messages_compared, 20U);
}

TEST_F(HostedReplay, PlaysOneTenantUpToItsRemoval) {
  const auto use = choose_use(*run_.trace(), "bob~1");
  ASSERT_TRUE(use.ok()) << use.error().text();
  ReplaySetup setup = run_.replay();
  setup.options.is_real = {};
  for (const PlanGroup& group : run_.plan()->groups)
    setup.options.is_real.push_back(run_.plan()->instance(group.instances[0]).tenant == kFree);
  setup.options.last_steps = last_steps_of(*run_.trace(), **use);
  const ReplayReport report = replay(setup);
  for (const char* name : {"source.t1", "middle.t1"}) {
    const GroupId group = run_.group(name);
    EXPECT_EQ(report.num_steps[group.index()], run_.trace()->tenants().left_at(group, **use));
    EXPECT_LT(report.num_steps[group.index()], run_.trace()->last_step(group));
  }
  EXPECT_EQ(report.num_steps[run_.group("sink").index()], 0U);
  EXPECT_EQ(earlier_uses_text(*run_.trace(), **use),
            "the slot's earlier tenants are played before 'bob~1': alice");
}

TEST_F(HostedReplay, ATenantThatStayedIsPlayedToTheEnd) {
  const auto use = choose_use(*run_.trace(), "carl");
  ASSERT_TRUE(use.ok()) << use.error().text();
  EXPECT_TRUE(last_steps_of(*run_.trace(), **use).empty());
  const auto none = choose_use(*run_.trace(), "carl~1");
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.error().text(), HasSubstr("no tenant 'carl~1' in the recorded run"));
  const auto several = choose_use(*run_.trace(), "slot-1");
  ASSERT_FALSE(several.ok());
  EXPECT_THAT(several.error().text(), HasSubstr("name one of alice, bob~1, carl~2"));
}

/// kill -9 after any step: the record is followed, and the run continues with the tenants of that
/// moment.
TEST_F(HostedReplay, IsFollowedFromEveryStep) {
  uint64_t num_dropped_most = 0;
  for (size_t killed = 0; killed <= run_.steps().size(); ++killed) {
    std::vector<uint64_t> last(run_.plan()->groups.size(), 0);
    for (size_t i = 0; i < killed; ++i) last[run_.steps()[i].index()] += 1;
    RecordPrefix prefix = longest_prefix(*run_.plan(), trace_up_to(run_.trace(), last));
    num_dropped_most = std::max(num_dropped_most, prefix.num_dropped);
    Recovery recovery(run_.plan(), std::move(prefix), nullptr);
    VirtualOptions options;
    options.observer = &recovery;
    options.step_source = &recovery;
    options.is_hosted = true;
    options.make_tenant = Hosted::maker();
    MemoryHostServices services;
    VirtualExecutor again(run_.plan(), Hosted::no_resources(), services, options);
    ASSERT_TRUE(again.start().ok());
    ASSERT_TRUE(again.run_until([&] { return recovery.is_live(); })) << killed;
    again.request_drain();
    const RunOutcome outcome = again.wait();
    ASSERT_TRUE(outcome.status.ok()) << killed << ": " << outcome.status.error().text();
  }
  // A drain is followed once its removal is in the record.
  EXPECT_LE(num_dropped_most, 10U);
}

}  // namespace
}  // namespace primerl::testing
