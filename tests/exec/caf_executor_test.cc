#include "runtime/exec/caf_executor.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <mutex>

#include "runtime/exec/caf_actors.h"
#include "tests/base/patience.h"
#include "tests/conformance/executor_conformance.h"

namespace primerl {
namespace {

using testing::HasSubstr;

class CafExecutorTest : public testing::Test {
 protected:
  void TearDown() override {
    Gate::get().open();
    executor_.reset();
  }
  Status start(std::shared_ptr<const Plan> plan) {
    CafExecutorSetup setup;
    setup.plan = std::move(plan);
    setup.process_services = &process_services_;
    setup.factory = conformance_factory();
    setup.bytes_saved = &bytes_saved_;
    executor_ = std::make_unique<CafExecutor>(std::move(setup));
    return executor_->start();
  }
  TestHostServices process_services_;
  std::atomic<uint64_t> bytes_saved_ = 0;
  std::unique_ptr<CafExecutor> executor_;
};

constexpr std::string_view kImpatient = "environment_timeout = \"50ms\"";

TEST_F(CafExecutorTest, LeavesAStuckHandlerBehindAndAnswersForIt) {
  Gate::get().close();
  ASSERT_TRUE(
      start(conformance_plan(conversation(10, "blocking_answerer", "stick_at = 4"), {}, kImpatient))
          .ok());
  const auto outcome = executor_->wait();
  EXPECT_EQ(outcome.end, RunEnd::kFinished);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().text();
  EXPECT_EQ(process_services_.count("all answered"), 1u);
  EXPECT_EQ(outcome.ledger[0].failed, 1u);
  for (const auto& edge : outcome.ledger) EXPECT_TRUE(edge.balances());
  EXPECT_TRUE(executor_->has_lost_threads());
}

TEST_F(CafExecutorTest, LosesNoThreadWhenTheHandlerReturnsAfterAll) {
  Gate::get().close();
  ASSERT_TRUE(
      start(conformance_plan(conversation(1'000'000'000, "blocking_answerer", "stick_at = 4"), {},
                             kImpatient))
          .ok());
  Gate::get().wait_for(1);
  // The refusal of question 4 shows that the handler was abandoned.
  while (process_services_.count("refused: the handler took longer than 50ms") == 0 &&
         executor_->views()[1].num_steps < 6) {
    std::this_thread::yield();
  }
  Gate::get().open();
  // Until the late handler has returned, a stop would count it as lost; it returns without help.
  while (num_actors_alive() > 2) std::this_thread::yield();
  executor_->request_stop();
  EXPECT_EQ(executor_->wait().end, RunEnd::kInterrupted);
  EXPECT_FALSE(executor_->has_lost_threads());
}

/// Commands that arrive while a handler runs wait, up to the limit; one more is refused at once.
TEST_F(CafExecutorTest, KeepsCommandsForABusyActorAndAnswersEach) {
  Gate::get().close();
  std::mutex mutex;
  std::vector<CommandAnswer> answers;  // guarded by mutex
  const auto num_answers = [&] {
    const std::lock_guard lock(mutex);
    return answers.size();
  };
  CafExecutorSetup setup;
  setup.plan = conformance_plan(
      conversation(1'000'000'000, "blocking_answerer", "stick_at = 4\nswallow_from = 2000000000"));
  setup.process_services = &process_services_;
  setup.factory = conformance_factory();
  setup.on_command = [&](const CommandAnswer& answer) {
    const std::lock_guard lock(mutex);
    answers.push_back(answer);
  };
  executor_ = std::make_unique<CafExecutor>(std::move(setup));
  ASSERT_TRUE(executor_->start().ok());
  Gate::get().wait_for(1);
  for (uint64_t i = 1; i <= kCommandsMax; ++i)
    executor_->command({i, {}, Payload::of(Number{2'000'000'000})});
  EXPECT_EQ(num_answers(), 0U);
  executor_->command({1000, {}, Payload::of(Number{2'000'000'000})});
  ASSERT_EQ(num_answers(), 1U);
  EXPECT_EQ(answers[0].number, 1000U);
  EXPECT_EQ(answers[0].status.error().code(), Code::kExhausted);
  Gate::get().open();
  while (num_answers() < 1 + kCommandsMax) std::this_thread::yield();
  executor_->request_stop();
  EXPECT_EQ(executor_->wait().end, RunEnd::kInterrupted);
  for (uint64_t i = 1; i <= kCommandsMax; ++i) {
    EXPECT_EQ(answers[i].number, i) << "in order";
    EXPECT_TRUE(answers[i].status.ok());
  }
}

TEST_F(CafExecutorTest, GivesUpAsManyHandlersAsAllowedAndNoMore) {
  Gate::get().close();
  // Two answerers that both get stuck; one may be abandoned.
  ASSERT_TRUE(start(conformance_plan(R"(
[node.asker]
actor = "asker"
[node.answerer]
actor = "blocking_answerer"
stick_at = 0
[node.asker_too]
actor = "asker"
[node.answerer_too]
actor = "blocking_answerer"
stick_at = 0
[edges]
forward = ["asker.question -> answerer.question", "asker_too.question -> answerer_too.question"]
feedback = ["answerer.reply -> asker.reply", "answerer_too.reply -> asker_too.reply"]
)",
                                     "abandoned_max = 1", kImpatient))
                  .ok());
  const auto outcome = executor_->wait();
  EXPECT_EQ(outcome.end, RunEnd::kFailed);
  ASSERT_FALSE(outcome.status.ok());
  EXPECT_EQ(outcome.status.error().code(), Code::kExhausted);
  EXPECT_THAT(outcome.status.error().message(),
              testing::ContainsRegex("been in one handler for ([0-9]+ms|[0-9]+s), and 1 stuck "
                                     "handler was given up before"));
}

TEST_F(CafExecutorTest, StopsWhileAHandlerApartIsStuck) {
  Gate::get().close();
  ASSERT_TRUE(start(conformance_plan(conversation(10, "blocking_answerer", "stick_at = 0"))).ok());
  Gate::get().wait_for(1);
  executor_->request_stop();
  const auto outcome = executor_->wait();
  EXPECT_EQ(outcome.end, RunEnd::kInterrupted);
  EXPECT_TRUE(executor_->has_lost_threads());
}

TEST_F(CafExecutorTest, NamesTheHandlerThatDoesNotStop) {
  Gate::get().close();
  ASSERT_TRUE(
      start(conformance_plan(conversation(10, "answerer", "stick_at = 0"), "drain_max = \"100ms\""))
          .ok());
  Gate::get().wait_for(1);
  executor_->request_stop();
  const auto outcome = executor_->wait();
  EXPECT_EQ(outcome.end, RunEnd::kFailed);
  ASSERT_FALSE(outcome.status.ok());
  EXPECT_THAT(outcome.status.error().message(), HasSubstr("'answerer' handles a 'Number'"));
  EXPECT_TRUE(executor_->has_lost_threads());
}

TEST_F(CafExecutorTest, DrainsLongerThanDrainMaxWhileACheckpointIsWritten) {
  Gate::get().close();
  ASSERT_TRUE(
      start(conformance_plan(conversation(10, "answerer", "stick_at = 0"), "drain_max = \"1s\""))
          .ok());
  Gate::get().wait_for(1);
  executor_->request_drain();
  auto ended = std::async(std::launch::async, [this] { return executor_->wait(); });
  // Each wait lasts a part of drain_max, and all of them twice as long.
  for (int i = 0; i < 200; ++i) {
    ++bytes_saved_;
    ASSERT_EQ(ended.wait_for(std::chrono::milliseconds(10)), std::future_status::timeout);
  }
  Gate::get().open();
  const auto outcome = ended.get();
  EXPECT_EQ(outcome.end, RunEnd::kInterrupted);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().text();
}

TEST_F(CafExecutorTest, RunsOtherHostsWhileOneBlocks) {
  Gate::get().close();
  // One pool thread; the blocking answerer has its own.
  ASSERT_TRUE(start(conformance_plan(R"(
[node.stuck_asker]
actor = "asker"
[node.stuck]
actor = "blocking_answerer"
stick_at = 0
[node.asker]
actor = "asker"
count = 100
[node.answerer]
actor = "answerer"
[edges]
forward = ["stuck_asker.question -> stuck.question", "asker.question -> answerer.question"]
feedback = ["stuck.reply -> stuck_asker.reply", "answerer.reply -> asker.reply"]
)",
                                     "pool_threads = 1"))
                  .ok());
  Gate::get().wait_for(1);
  // The other conversation finishes the tenant although this one waits; then the gate opens.
  while (!executor_->status().is_draining) std::this_thread::yield();
  EXPECT_EQ(process_services_.count("all answered"), 1u);
  Gate::get().open();
  EXPECT_EQ(executor_->wait().end, RunEnd::kFinished);
}

TEST_F(CafExecutorTest, ReportsAStuckHandlerWhileOthersContinue) {
  Gate::get().close();
  ASSERT_TRUE(start(conformance_plan(conversation(10, "answerer", "stick_at = 4"),
                                     "handler_alarm_after = \"1ms\""))
                  .ok());
  const auto told = [this](std::string_view words) {
    const auto lines = process_services_.logged();
    return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(words) != std::string::npos;
    });
  };
  constexpr std::string_view kStuck =
      "'answerer' has been handling message 5 of 'asker.question -> answerer.question' (Number, "
      "step 5) for ";
  while (told(kStuck) == 0) std::this_thread::yield();
  Gate::get().open();
  EXPECT_EQ(executor_->wait().end, RunEnd::kFinished);
  EXPECT_EQ(told(kStuck), 1);
}

TEST_F(CafExecutorTest, KeepsMemoryFlatBeforeASlowConsumer) {
  if (kSlowness > 1) GTEST_SKIP() << "a sanitizer keeps freed memory for a while";
  const auto run = [this](int64_t count) {
    EXPECT_TRUE(start(conformance_plan(pipeline(count, 32, 64, "spin = 500"))).ok());
    EXPECT_EQ(executor_->wait().end, RunEnd::kFinished);
    executor_.reset();
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // KiB
  };
  const auto before = run(10'000);
  EXPECT_LT(run(1'000'000) - before, 8 * 1024);
}

TEST_F(CafExecutorTest, RefusesAPlanOfTwoProcesses) {
  const auto plan = conformance_plan(pipeline(10, 1, 4) + R"(
[place]
here = { nodes = ["source", "relay"] }
there = { nodes = ["sink"] }
)");
  const auto started = start(plan);
  ASSERT_FALSE(started.ok());
  EXPECT_THAT(started.error().message(), HasSubstr("relay.out -> sink.in"));
}

TEST_F(CafExecutorTest, EndsWhereverItIs) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(start(conformance_plan(pipeline(1'000'000'000, 1 + i % 5, 1 + i % 7))).ok());
    if (i % 3 == 0) executor_->request_drain();
    while (i % 3 == 1 && executor_->status().num_steps < static_cast<uint64_t>(i * 10)) {
      std::this_thread::yield();
    }
    executor_->request_stop();
    const auto outcome = executor_->wait();
    EXPECT_EQ(outcome.end, RunEnd::kInterrupted);
    for (const auto& edge : outcome.ledger) ASSERT_TRUE(edge.balances());
    executor_.reset();
    ASSERT_EQ(num_actors_alive(), 0);
  }
}

TEST(CafActors, RunsEveryTurnThatAWakeUpAskedFor) {
  auto actors = CafActors::make(1);
  ASSERT_TRUE(actors.ok()) << actors.error().text();
  EXPECT_EQ((*actors)->pool_threads(), 1);
  std::promise<void> done;
  int num_turns = 0;
  auto wake_up = (*actors)->spawn(
      [&] {
        if (++num_turns < 1000) return TurnEnd::kMore;
        done.set_value();
        return TurnEnd::kQuit;
      },
      false);
  wake_up();
  done.get_future().wait();
  EXPECT_EQ(num_turns, 1000);
}

TEST(CafActors, GivesSmallMachinesOnePoolThread) {
  EXPECT_EQ(default_pool_threads(1), 1);
  EXPECT_EQ(default_pool_threads(4), 1);
  EXPECT_EQ(default_pool_threads(5), 1);
  EXPECT_EQ(default_pool_threads(8), 2);
  EXPECT_EQ(default_pool_threads(64), 16);
}

}  // namespace
}  // namespace primerl
