// Messages that a process may send to another, and messages that are removed from its batches.
#include "runtime/exec/arrival_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;

struct Other {
  static constexpr std::string_view kName = "Other";
  static constexpr uint32_t kVersion = 1;
  uint64_t value = 0;
  template <class F>
  static void fields(F& f) {
    f("value", &Other::value);
  }
};

/// Process 0 has `rollout`, one per tenant; process 1 has `server`, shared; process 2 has `other`,
/// one per tenant.
class ArrivalCheckTest : public ::testing::Test {
 protected:
  ArrivalCheckTest() : graph_(2) {
    graph_.node("other", {.per_tenant = true, .process = 2})
        .node("rollout", {.per_tenant = true})
        .node("server", {.process = 1});
    graph_.edge("rollout.out", "server.in");
    graph_.edge("other.out", "server.side");
    graph_.edge("server.many", "other.back", {.at_most = 2});
    plan_ = graph_.plan();
    wiring_ = make_wiring(*plan_);
  }
  /// The first link from a node's instance for `slot` to the other node.
  uint32_t link_of(std::string_view from, uint32_t slot, std::string_view to) const {
    for (uint32_t i = 0; i < wiring_->links.size(); ++i) {
      const auto& link = wiring_->links[i];
      const auto has = [&](InstanceId id, std::string_view node) {
        const PlanInstance& instance = plan_->instance(id);
        return plan_->node(instance.node).name == node &&
               (instance.tenant.is_none() || instance.tenant == TenantSlot(slot));
      };
      if (has(link.sender, from) && has(link.target, to)) return i;
    }
    return UINT32_MAX;
  }
  MessageBatch batch_on(uint32_t link, uint32_t tenant, uint64_t count = 1) const {
    const auto& wire = wiring_->links[link];
    MessageBatch batch;
    batch.from = wire.sender_group;
    batch.to = wire.target_group;
    batch.incarnation = 1;
    for (uint64_t i = 1; i <= count; ++i) {
      Envelope envelope;
      envelope.edge = wire.edge;
      envelope.sender = envelope.origin = wire.sender;
      envelope.target = wire.target;
      envelope.tenant = TenantSlot(tenant);
      envelope.incarnation = 1;
      envelope.sequence = i;
      envelope.payload = Payload::of(Number{static_cast<int64_t>(i), {}});
      batch.messages.push_back({LinkId(link), envelope});
    }
    return batch;
  }
  /// The first fault in a batch from process `from` that arrives in `here`; "ok" without a fault.
  std::string filter(MessageBatch& batch, uint32_t from, uint32_t here) const {
    const ArrivalCheck check(plan_, wiring_, ProcessId(here));
    const Status status = check.filter(ProcessId(from), batch);
    return status.ok() ? "ok" : status.error().message();
  }
  /// The fault of a valid message from rollout to server that `change` made invalid; the batch must
  /// be empty then.
  std::string fault_of(const std::function<void(BatchedMessage&)>& change) const {
    MessageBatch batch = batch_on(link_of("rollout", 1, "server"), 1, 3);
    change(batch.messages[1]);
    const std::string fault = filter(batch, 0, 1);
    EXPECT_EQ(batch.messages.size(), 2u) << "the others stay";
    EXPECT_EQ(batch.messages[0].envelope.sequence, 1u);
    EXPECT_EQ(batch.messages.back().envelope.sequence, 3u);
    return fault;
  }

  SmallGraph graph_;
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const Wiring> wiring_;
};

TEST_F(ArrivalCheckTest, LetsWhatThePlanSaysThroughUntouched) {
  for (const uint32_t tenant : {0, 1}) {
    MessageBatch batch = batch_on(link_of("rollout", tenant, "server"), tenant, 4);
    batch.grants.push_back({LinkId(0), 1, 0, 1});
    EXPECT_EQ(filter(batch, 0, 1), "ok");
    EXPECT_EQ(batch.messages.size(), 4u);
    EXPECT_EQ(batch.grants.size(), 1u);
  }
}

TEST_F(ArrivalCheckTest, TakesNothingOfHostsThatAreNotTheSenders) {
  const uint32_t link = link_of("rollout", 0, "server");
  // Process 2 sends for a group of process 0, and for a group that does not exist.
  MessageBatch posing = batch_on(link, 0), unknown = batch_on(link, 0), astray = batch_on(link, 0);
  posing.grants.push_back({LinkId(0), 1, 0, 1});
  EXPECT_THAT(filter(posing, 2, 1), HasSubstr("which is not its sender's"));
  EXPECT_TRUE(posing.empty());
  unknown.from = GroupId(static_cast<uint32_t>(plan_->groups.size()));
  EXPECT_THAT(filter(unknown, 0, 1), HasSubstr("which is not its sender's"));
  EXPECT_THAT(filter(astray, 0, 2), HasSubstr("arrived, which is not in 'p2'"));
  MessageBatch beyond = batch_on(link, 0);
  beyond.to = GroupId::none();
  EXPECT_THAT(filter(beyond, 0, 1), HasSubstr("which is not in"));
}

TEST_F(ArrivalCheckTest, RemovesMessagesWhoseEndsDifferFromTheirLink) {
  const auto ends = HasSubstr("has other ends than its link");
  const uint32_t others = link_of("other", 1, "server");
  EXPECT_THAT(fault_of([&](auto& message) { message.link = LinkId(others); }), ends);
  EXPECT_THAT(fault_of([](auto& message) { message.envelope.edge = EdgeId(1); }), ends);
  EXPECT_THAT(fault_of([](auto& message) { message.envelope.sender = InstanceId(99); }), ends);
  EXPECT_THAT(fault_of([](auto& message) { message.envelope.target = InstanceId::none(); }), ends);
  const auto past = static_cast<uint32_t>(wiring_->links.size());
  EXPECT_THAT(fault_of([&](auto& message) { message.link = LinkId(past); }),
              HasSubstr("which does not exist"));
  EXPECT_THAT(fault_of([](auto& message) { message.link = LinkId::none(); }),
              HasSubstr("which does not exist"));
}

TEST_F(ArrivalCheckTest, TakesOutMessagesOfAnotherType) {
  EXPECT_EQ(fault_of([](auto& message) { message.envelope.payload = Payload::of(Other{7}); }),
            "a message of edge 'rollout.out -> server.in' is of another type (Other)");
}

TEST_F(ArrivalCheckTest, TakesOutTenantsThatTheLinkDoesNotServe) {
  const auto tenant = HasSubstr("is for a tenant that the edge does not serve");
  // The sender belongs to tenant 1; 2 is one past the last tenant; every message must have a
  // tenant.
  for (const TenantSlot slot : {TenantSlot(0), TenantSlot(2), TenantSlot::none()})
    EXPECT_THAT(fault_of([&](auto& message) { message.envelope.tenant = slot; }), tenant);
  // A shared sender may send for every tenant, but to an instance of one tenant only for that
  // tenant.
  const uint32_t link = link_of("server", 0, "other");
  MessageBatch fits = batch_on(link, 0), differs = batch_on(link, 1);
  EXPECT_EQ(filter(fits, 1, 2), "ok");
  EXPECT_THAT(filter(differs, 1, 2), tenant);
}

/// Which tenants are there is known to the group: they join at its steps.
TEST_F(ArrivalCheckTest, LeavesMessagesForFreeSlotsToTheGroup) {
  graph_.num_free_slots = 1;
  plan_ = graph_.plan();
  MessageBatch batch = batch_on(link_of("rollout", 1, "server"), 1);
  EXPECT_EQ(filter(batch, 0, 1), "ok");
  EXPECT_FALSE(batch.messages.empty());
}

TEST_F(ArrivalCheckTest, TakesOutInstancesThatThereAreNot) {
  const auto instance = HasSubstr("names an instance that there is not");
  const auto past = InstanceId(static_cast<uint32_t>(plan_->instances.size()));
  EXPECT_THAT(fault_of([&](auto& message) { message.envelope.origin = past; }), instance);
  EXPECT_THAT(fault_of([&](auto& message) { message.envelope.cause.instance = past; }), instance);
  EXPECT_THAT(fault_of([](auto& message) { message.envelope.incarnation = 2; }),
              HasSubstr("is of another incarnation than its batch"));
}

}  // namespace
}  // namespace primerl::testing
