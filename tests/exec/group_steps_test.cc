// The steps of a group by themselves: order, work calls, failures, abandoned and recorded steps.
#include "runtime/exec/group_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/group_stage.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Time after_seconds(int64_t seconds) { return Time() + Duration::seconds(seconds); }

/// A source that feeds `node`; the test plays the source.
struct Fed {
  explicit Fed(NodeSetup setup, StepSource* source = nullptr) {
    graph.node("source", {.contract = make_source})
        .node("node", std::move(setup))
        .edge("source.out", "node.in", {.capacity = 8});
    stage = std::make_unique<GroupStage>(graph, "node", source);
    EXPECT_TRUE(stage->steps.make_resources().ok());
    EXPECT_TRUE(stage->actors.start(Time()).ok());
  }
  GroupStage* operator->() const { return stage.get(); }
  SmallGraph graph;
  std::unique_ptr<GroupStage> stage;
};

TEST(GroupSteps, ControlComesFirstThenTheOrderOfArrival) {
  std::vector<std::string> order;
  Strings strings;
  strings.on_in = [&order](Puppet&, const Number& number) {
    order.push_back(fmt::format("message {}", number.value));
    return ok();
  };
  strings.on_tick = [&order](Puppet&) {
    order.push_back("tick");
    return ok();
  };
  strings.on_drain = [&order](Puppet&) {
    order.push_back("drain");
    return ok();
  };
  Fed fed({.strings = strings});
  EXPECT_FALSE(fed->steps.ready());
  EXPECT_FALSE(fed->step());
  fed->puppet().world().set_timer("tick", Duration::seconds(1));
  fed->actors.apply_effects(fed->actors.running(0));
  ASSERT_TRUE(fed->receive(0, 1, 1).ok());
  ASSERT_TRUE(fed->actors.wake(after_seconds(1)));
  ASSERT_TRUE(fed->receive(0, 2, 2).ok());
  fed->actors.begin_drain(after_seconds(1));
  while (fed->step(after_seconds(1))) continue;
  EXPECT_THAT(order, ElementsAre("drain", "message 1", "tick", "message 2"));
  EXPECT_EQ(fed->steps.num_steps(), 4U);
}

TEST(GroupSteps, ValuesOfATenantOfTheFileMayRaiseABurst) {
  SmallGraph graph;
  Strings strings;
  strings.on_in = [](Puppet& puppet, const Number& number) {
    for (int i = 0; i < 3; ++i) puppet.out.send({.value = number.value, .bulk = {}});
    return ok();
  };
  const auto sends_as_many = [](Contract& contract) {
    contract.outputs[0].burst = {[](const void*, std::span<const Tenant> tenants) {
                                   return std::max<int64_t>(tenants[0].inflight, 1);
                                 },
                                 "inflight"};
  };
  graph.node("source", {.contract = make_source})
      .node("node", {.strings = strings, .contract = sends_as_many})
      .node("sink")
      .edge("source.out", "node.in")
      .edge("node.out", "sink.in", {.capacity = 8});
  GroupStage stage(graph, "node");
  ASSERT_TRUE(stage.steps.make_resources().ok());
  ASSERT_TRUE(stage.actors.start(Time()).ok());
  Input input;
  input.kind = StepKind::kTenant;
  input.tenant_change = std::make_shared<const TenantChange>(
      TenantChange{TenantChange::Kind::kSet, TenantSlot(0), 0, "t0", "inflight = 3\n"});
  stage.links.inbox().push_control(std::move(input), Time());
  ASSERT_TRUE(stage.step());
  ASSERT_TRUE(stage.receive(0, 1, 1).ok());
  ASSERT_TRUE(stage.step());
  std::vector<int64_t> sent;  // another batch may have grants alone
  for (const SentBatch& each : stage.flushed())
    sent.insert(sent.end(), each.values.begin(), each.values.end());
  EXPECT_THAT(sent, ElementsAre(1, 1, 1));
}

TEST(GroupSteps, ATimerThatWasCancelledMakesNoStep) {
  Fed fed({});
  fed->puppet().world().set_timer("tick", Duration::seconds(1));
  fed->actors.apply_effects(fed->actors.running(0));
  ASSERT_TRUE(fed->actors.wake(after_seconds(1)));
  fed->puppet().world().cancel_timer("tick");
  fed->actors.apply_effects(fed->actors.running(0));
  EXPECT_FALSE(fed->step(after_seconds(1)));
  EXPECT_EQ(fed->steps.num_steps(), 0U);
}

TEST(GroupSteps, AWorkCallComesAfterTheInputsThatWaitedWhenItWasArmed) {
  std::vector<std::string> order;
  Strings strings;
  strings.on_in = [&order](Puppet&, const Number&) {
    order.push_back("message");
    return ok();
  };
  strings.on_work = [&order](Puppet&) -> Result<bool> {
    order.push_back("work");
    return false;
  };
  Fed fed({.strings = strings, .contract = [](Contract& contract) { contract.works = true; }});
  ASSERT_TRUE(fed->receive(0, 1, 1).ok());
  fed->steps.arm_work();
  EXPECT_TRUE(fed->steps.is_work_armed());
  ASSERT_TRUE(fed->receive(0, 2, 2).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(fed->step());
  EXPECT_THAT(order, ElementsAre("message", "work"));
}

TEST(GroupSteps, WithoutWorkNothingIsArmed) {
  Fed fed({});
  fed->steps.arm_work();
  EXPECT_FALSE(fed->steps.is_work_armed());
  EXPECT_FALSE(fed->steps.resources_have_work());
}

TEST(GroupSteps, AFailedHandlerSendsNothingButItsRefusal) {
  std::vector<std::string> refused;
  Strings strings;
  strings.on_in = [](Puppet& puppet, const Number& number) {
    puppet.tell.send({.value = number.value, .bulk = {}});
    return fail_at(number, 1);
  };
  strings.on_refuse = [&refused](Puppet&, const Number& number, const Error& error) {
    refused.push_back(fmt::format("{}: {}", number.value, error.message()));
  };
  Fed fed({.strings = strings});
  ASSERT_TRUE(fed->receive(0, 1, 1).ok());
  ASSERT_TRUE(fed->step());
  EXPECT_THAT(refused, ElementsAre("1: no 1 today"));
  EXPECT_EQ(fed->links.inbox().links[0].num_failed.get(), 1U);
  EXPECT_EQ(fed->links.num_emissions(), 0U);
  EXPECT_THAT(fed->services.lines, ElementsAre(HasSubstr("message failed: no 1 today")));
}

TEST(GroupSteps, AnInjectedFailureDoesNotRunTheHandler) {
  Fed fed({});
  ASSERT_TRUE(fed->receive(0, 1, 1).ok());
  ASSERT_TRUE(fed->steps.begin(after_seconds(0)));
  fed->steps.fail(error(Code::kUnavailable, "injected"));
  fed->steps.complete(after_seconds(0));
  EXPECT_EQ(fed->puppet().count, 0);
  EXPECT_EQ(fed->links.inbox().links[0].num_failed.get(), 1U);
}

TEST(GroupSteps, TheStepThatRunsIsDescribed) {
  Fed fed({});
  ASSERT_TRUE(fed->receive(0, 1, 1).ok());
  GroupView view;
  fed->steps.describe(view);
  EXPECT_FALSE(view.is_running);
  ASSERT_TRUE(fed->steps.begin(after_seconds(7)));
  EXPECT_TRUE(fed->steps.is_running());
  EXPECT_FALSE(fed->steps.ready());
  fed->steps.describe(view);
  EXPECT_TRUE(view.is_running);
  EXPECT_EQ(view.running_since, after_seconds(7));
  EXPECT_EQ(view.handling, InstanceId(1));
  EXPECT_EQ(view.handling_sequence, 1U);
  EXPECT_EQ(view.handling_type->name, "Number");
}

TEST(GroupSteps, AStuckHandlerIsReplacedAndItsMessageRefused) {
  std::vector<std::string> refused;
  Strings strings;
  strings.on_refuse = [&refused](Puppet&, const Number&, const Error& error) {
    refused.push_back(error.message());
  };
  Fed fed({.strings = strings, .contract = [](Contract& contract) {
             contract.is_restartable = true;
             contract.thread_class = ThreadClass::kOwnThread;
           }});
  ASSERT_TRUE(fed->receive(0, 1, 1).ok());
  ASSERT_TRUE(fed->steps.begin(after_seconds(0)));
  const auto stuck = fed->actors.share(0);
  ASSERT_TRUE(fed->steps.abandon(after_seconds(2)).ok());
  EXPECT_TRUE(stuck->is_abandoned());
  EXPECT_NE(&fed->actors.running(0), stuck.get());
  EXPECT_THAT(refused, ElementsAre("the handler did not return before its deadline"));
  EXPECT_EQ(fed->steps.num_abandoned().get(), 1U);
  EXPECT_FALSE(fed->steps.is_running());
}

/// A record of given steps.
struct Recorded final : public StepSource {
  const RecordedStep* next() const override { return at < steps.size() ? &steps[at] : nullptr; }
  void diverged(std::string what) override { differences.push_back(std::move(what)); }
  std::vector<RecordedStep> steps;
  size_t at = 0;
  std::vector<std::string> differences;
};

TEST(GroupSteps, ARecordedStepWaitsForItsMessageAndHasItsRecordedTime) {
  std::vector<Time> times;
  Strings strings;
  strings.on_in = [&times](Puppet& puppet, const Number&) {
    times.push_back(puppet.world().now());
    return ok();
  };
  Recorded record;
  RecordedStep step;
  step.link = LinkId(0);
  step.incarnation = 1;
  step.sequence = 1;
  step.began = after_seconds(5);
  record.steps = {step};
  Fed fed({.strings = strings}, &record);
  EXPECT_FALSE(fed->steps.ready());
  EXPECT_FALSE(fed->steps.replay_step());
  ASSERT_TRUE(fed->receive(0, 1, 1).ok());
  EXPECT_TRUE(fed->steps.ready());
  EXPECT_TRUE(fed->steps.replay_step());
  EXPECT_THAT(times, ElementsAre(after_seconds(5)));
  EXPECT_THAT(record.differences, IsEmpty());
}

TEST(GroupSteps, ARecordedTimerThatIsNotArmedIsADifference) {
  Recorded record;
  RecordedStep step;
  step.kind = StepKind::kTimer;
  step.timer = 1;
  record.steps = {step};
  Fed fed({}, &record);
  EXPECT_TRUE(fed->steps.replay_step());
  EXPECT_THAT(record.differences,
              ElementsAre("timer 'tock' of 'node' expired in the recorded run, but is not armed "
                          "here"));
}

}  // namespace
}  // namespace primerl::testing
