// Commands of a person: which actors get them, how they are answered, and what a group saves of
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ActorCommand number(int64_t value, uint64_t question = 1, TenantSlot tenant = {}) {
  return {question, tenant, Payload::of(Number{value, {}})};
}

/// Two nodes that remember their commands, one of them with an instance per tenant. They get no
/// messages.
struct Listeners {
  explicit Listeners(int num_tenants = 1) : graph(num_tenants) {
    Strings common, own;
    common.on_in = [this](Puppet& puppet, const Number& number) {
      told.push_back(fmt::format("{} {}", puppet.world().self_name(), number.value));
      return number.value < 0 ? Status(error(Code::kInvalid, "{} is below 0", number.value)) : ok();
    };
    own.on_in = common.on_in;
    graph.node("shared", {.strings = common, .on_error = OnError::kStop})
        .node("own", {.strings = own, .per_tenant = num_tenants > 1});
  }
  SmallGraph graph;
  std::vector<std::string> told;
};

TEST(Commands, ReachEveryActorThatTakesTheMessageAndAreAnswered) {
  Listeners listeners;
  SmallRun run(listeners.graph);
  run->command(number(7, 3));
  run->settle();
  EXPECT_THAT(listeners.told, ::testing::UnorderedElementsAre("shared 7", "own 7"));
  const auto answers = run->take_answers();
  ASSERT_THAT(answers, SizeIs(2));
  for (const auto& answer : answers) {
    EXPECT_EQ(answer.number, 3U);
    EXPECT_TRUE(answer.status.ok());
  }
  EXPECT_THAT(run->take_answers(), IsEmpty());
}

TEST(Commands, ForOneTenantReachNoActorOfAnotherTenant) {
  Listeners listeners(2);
  SmallRun run(listeners.graph);
  run->command(number(7, 1, TenantSlot(1)));
  run->settle();
  ASSERT_THAT(listeners.told, SizeIs(1));
  EXPECT_THAT(listeners.told[0], HasSubstr("own"));
  EXPECT_THAT(run->take_answers(), SizeIs(1));
}

/// on_error = "stop" applies to messages of the graph: a wrong command of a person must not end the
/// run.
TEST(Commands, RefusedByAnActorAreAnsweredWithTheReasonAndEndNothing) {
  Listeners listeners;
  SmallRun run(listeners.graph);
  run->command(number(-1));
  run->settle();
  for (const auto& answer : run->take_answers()) {
    ASSERT_FALSE(answer.status.ok());
    EXPECT_THAT(answer.status.error().text(), HasSubstr("-1 is below 0"));
  }
  listeners.told.clear();
  run->command(number(8));
  run->settle();
  EXPECT_THAT(listeners.told, SizeIs(2));
}

TEST(Commands, BeyondAsManyAsMayWaitAreRefused) {
  Listeners listeners;
  SmallRun run(listeners.graph);
  for (size_t i = 0; i < kCommandsMax; ++i) run->command(number(static_cast<int64_t>(i)));
  EXPECT_THAT(run->take_answers(), IsEmpty());
  run->command(number(1000, 99));
  const auto refused = run->take_answers();
  ASSERT_THAT(refused, SizeIs(2));
  EXPECT_EQ(refused[0].number, 99U);
  EXPECT_EQ(refused[0].status.error().code(), Code::kExhausted);
  run->settle();
  EXPECT_THAT(run->take_answers(), SizeIs(2 * kCommandsMax)) << "there is room again";
  run->command(number(1));
  run->settle();
  EXPECT_THAT(run->take_answers(), SizeIs(2));
}

TEST(Commands, WaitingOnesAreSavedInTheStateOfTheGroup) {
  Listeners listeners;
  SmallRun run(listeners.graph);
  run->command(number(5, 12));
  for (const auto* name : {"shared", "own"}) {
    ASSERT_TRUE(run->may_remake(run.group(name)));
    const Status made = run->remake(run.group(name));
    ASSERT_TRUE(made.ok()) << made.error().text();
  }
  run->settle();
  EXPECT_THAT(listeners.told, ::testing::UnorderedElementsAre("shared 5", "own 5"));
  const auto answers = run->take_answers();
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(answers[0].number, 12U);
}

}  // namespace
}  // namespace primerl::testing
