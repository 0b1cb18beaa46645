#include "graph/testing/node_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/messages/policy.h"
#include "actors/messages/rollout.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

struct EchoOptions {
  int64_t copies = 1;
};

/// Sends each task again, `copies` times; pauses on task 100; fails on task 13; its timer sends 7.
class Echo final : public Actor {
 public:
  using Options = EchoOptions;
  static Contract contract() {
    return ContractOf<Echo, EchoOptions>("echo", "says what it hears")
        .option("copies", &EchoOptions::copies, at_least(0), "how often")
        .in("hear", &Echo::on_hear, "anything", refuse_with(&Echo::refuse))
        .in("live", &Echo::on_live, "resumes")
        .timer("alarm", &Echo::on_alarm, "rings")
        .out("say", &Echo::say_, "the echo", burst(2), work_burst(1))
        .works()
        .stateless();
  }
  explicit Echo(const EchoOptions& options) : options_(options) {}
  Result<bool> work() override {
    say_.send({.ordinal = 1000, .prompt = ""}, for_tenant(TenantSlot(0)));
    return false;
  }

 private:
  Status on_hear(const Task& task) {
    for (int64_t i = 0; i < options_.copies; ++i) say_.send(task);
    if (task.ordinal == 13) return error(Code::kInvalid, "unlucky");
    if (task.ordinal == 100) services().pause("hear");
    services().set_timer("alarm", Duration::seconds(2));
    return ok();
  }
  void refuse(const Task&, const Error& error) {
    say_.send({.ordinal = 99, .prompt = error.text()});
  }
  Status on_live(const PolicyLive&) {
    services().resume("hear");
    return ok();
  }
  Status on_alarm() {
    say_.send({.ordinal = 7, .prompt = ""}, for_tenant(TenantSlot(0)));
    return ok();
  }
  const EchoOptions options_;
  Out<Task> say_;
};

std::vector<uint64_t> said(const NodeRunner<Echo>& echo) {
  std::vector<uint64_t> ordinals;
  for (const auto& task : echo.sent<Task>("say")) ordinals.push_back(task.ordinal);
  return ordinals;
}

TEST(NodeRunnerDeathTest, EndsAnActorThatSendsMoreThanItsContract) {
  EXPECT_DEATH(
      {
        NodeRunner<Echo> echo({.copies = 3});
        (void)echo.give("hear", Task{});
      },
      "sent 3 times in one step, its contract says 2");
}

TEST(NodeRunner, AFailedHandlerSendsOnlyItsRefusal) {
  NodeRunner<Echo> echo;
  EXPECT_FALSE(echo.give("hear", Task{.ordinal = 13, .prompt = ""}).ok());
  ASSERT_THAT(said(echo), ElementsAre(99));
  EXPECT_EQ(echo.sent<Task>("say").front().prompt, "unlucky");
}

TEST(NodeRunner, KeepsMessagesForAPausedInput) {
  NodeRunner<Echo> echo;
  ASSERT_TRUE(echo.give("hear", Task{.ordinal = 100, .prompt = ""}).ok());
  ASSERT_TRUE(echo.give("hear", Task{.ordinal = 5, .prompt = ""}).ok());
  EXPECT_TRUE(echo.is_paused("hear"));
  EXPECT_EQ(echo.num_waiting("hear"), 1U);
  EXPECT_THAT(said(echo), ElementsAre(100));
  ASSERT_TRUE(echo.give("live", PolicyLive{}).ok());
  EXPECT_THAT(said(echo), ElementsAre(100, 5));
}

TEST(NodeRunner, TimersFireOnceAndOnTime) {
  NodeRunner<Echo> echo({.copies = 0});
  ASSERT_TRUE(echo.give("hear", Task{}).ok());
  ASSERT_TRUE(echo.advance(Duration::milliseconds(1999)).ok());
  EXPECT_THAT(said(echo), SizeIs(0));
  ASSERT_TRUE(echo.advance(Duration::milliseconds(1)).ok());
  ASSERT_TRUE(echo.advance(Duration::seconds(10)).ok());
  EXPECT_THAT(said(echo), ElementsAre(7));
}

TEST(NodeRunner, CompletesWhatAnEmissionInherits) {
  NodeRunner<Echo> echo;
  ASSERT_TRUE(echo.give("hear", Task{}, {.tenant = TenantSlot(0), .origin = InstanceId(3)}).ok());
  const Emission& emission = echo.emissions("say").front();
  EXPECT_EQ(emission.options.tenant, TenantSlot(0));
  EXPECT_EQ(emission.options.origin, InstanceId(3));
  EXPECT_EQ(emission.options.cause.instance, NodeRunnerCore::kSelf);
  ASSERT_TRUE(echo.run_work().ok());
  EXPECT_EQ(echo.emissions("say").back().options.origin, NodeRunnerCore::kSelf);
}

}  // namespace
}  // namespace primerl
