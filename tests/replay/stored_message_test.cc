// The number of messages that a receiver of a latest_wins edge has received: those counted by its
// cut, and those in its record after the cut.
#include "runtime/trace/read/stored_message.h"

#include <gtest/gtest.h>

#include "tests/replay/replay_run.h"

namespace primerl::sim {
namespace {

/// The plan with one process per group.
std::shared_ptr<const Plan> plan_with_a_process_each(const Plan& whole) {
  auto plan = std::make_shared<Plan>(whole);
  plan->processes.clear();
  for (uint32_t i = 0; i < plan->groups.size(); ++i) {
    PlanProcess& process = plan->processes.emplace_back();
    process.name = plan->groups[i].name;
    process.groups = {GroupId(i)};
    plan->groups[i].process = ProcessId(i);
  }
  return plan;
}

/// The first messages that a group of the demo's run handled on a latest_wins edge.
class LatestWins : public ::testing::Test {
 protected:
  void SetUp() override {
    const DemoCase demo{.seed = 5};
    plan_ = plan_with_a_process_each(*demo_plan(demo));
    wiring_ = make_wiring(*plan_);
    DemoResult run;
    trace_ = Trace::open(record_demo(demo, run)).value();
    group_ = host_of(*plan_, "router");
    for (uint64_t step = 1; step <= trace_->last_step(group_); ++step) {
      const auto each = trace_->step(group_, step);
      if (each->kind != StepKind::kMessage || !wiring_->links[each->link.index()].latest_wins)
        continue;
      if (link_.is_none()) link_ = each->link;
      if (each->link == link_) handled_.push_back(*each);
    }
    ASSERT_TRUE(wiring_->links[link_.index()].is_remote);
    ASSERT_GE(handled_.size(), 4U);
  }

  /// The router's state just before it handled the third message. If `is_here`, it had received
  /// that message, too.
  GroupState cut(bool is_here) const {
    GroupState state;
    state.group = group_;
    state.num_steps = handled_[2].step - 1;
    for (const LinkId id : wiring_->groups[group_.index()].in) {
      SavedInLink& in = state.in_links.emplace_back();
      if (id != link_) continue;
      in.incarnation = 1;
      in.num_received_incarnation = is_here ? 3 : 2;
      in.last_sequence = handled_[is_here ? 2 : 1].sequence;
    }
    return state;
  }
  std::optional<uint64_t> num_received(const GroupState& state, uint64_t sequence) const {
    const auto state_of = [&](GroupId group) { return group == group_ ? &state : nullptr; };
    const RecordedInputs inputs(*plan_, *wiring_, *trace_, 1,
                                std::vector<bool>(plan_->groups.size(), false), true, state_of);
    return inputs.num_received(link_, sequence);
  }

  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const Wiring> wiring_;
  std::shared_ptr<const Trace> trace_;
  GroupId group_;
  LinkId link_;
  std::vector<TraceStep> handled_;
};

TEST_F(LatestWins, CountsWhatTheCutAndTheRecordHave) {
  EXPECT_EQ(num_received(cut(false), handled_[2].sequence), 3U);
  EXPECT_EQ(num_received(cut(false), handled_[3].sequence), 4U);
}

// If it were counted twice, the sender would believe that one more had arrived. Then the number of
// messages in flight would never be 0 again, and no drain would end.
TEST_F(LatestWins, AMessageThatWaitedWhenTheGroupWasCutCountsOnce) {
  EXPECT_EQ(num_received(cut(true), handled_[3].sequence), 4U);
}

TEST_F(LatestWins, CountsOfTheCutAreUsedWhenItHasMoreMessages) {
  EXPECT_EQ(num_received(cut(true), handled_[2].sequence), std::nullopt);
}

}  // namespace
}  // namespace primerl::sim
