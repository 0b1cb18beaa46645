/// The guarantees of every Executor, as tests over a factory
///
///   struct MyFactory {
///     static std::unique_ptr<Executor> make(std::shared_ptr<const Plan> plan,
///                                           ProcessServices& process_services, ResourceFactory
///                                           factory);
///   };
///   INSTANTIATE_TYPED_TEST_SUITE_P(My, ExecutorConformance, MyFactory);
///
/// No test reads a clock: a run ends by itself, or the test's own deadline ends the test.
#pragma once

#include <gmock/gmock.h>

#include "tests/conformance/executor_actors.h"

namespace primerl {

template <class Factory>
class ExecutorConformance : public testing::Test {
 protected:
  void SetUp() override { ResourceDiary::get().clear(); }
  /// Nothing of a run may remain.
  void TearDown() override {
    executor_.reset();
    EXPECT_EQ(num_actors_alive(), 0);
  }

  Status start(std::shared_ptr<const Plan> plan) {
    plan_ = std::move(plan);
    executor_ = Factory::make(plan_, process_services_, conformance_factory());
    return executor_->start();
  }
  RunOutcome run(std::shared_ptr<const Plan> plan) {
    const Status started = start(std::move(plan));
    EXPECT_TRUE(started.ok()) << started.error().text();
    return executor_->wait();
  }
  void expect_clean_end(const RunOutcome& outcome, RunEnd end) {
    EXPECT_EQ(outcome.end, end);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error().text();
    ASSERT_EQ(outcome.ledger.size(), plan_->edges.size());
    for (size_t i = 0; i < outcome.ledger.size(); ++i) {
      const auto& edge = outcome.ledger[i];
      EXPECT_TRUE(edge.balances()) << plan_->edges[i].name;
      EXPECT_EQ(edge.in_flight, 0u) << plan_->edges[i].name;
      EXPECT_LE(edge.waiting_max, static_cast<uint64_t>(plan_->edges[i].bound));
    }
  }

  TestHostServices process_services_;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Executor> executor_;
};

/// source -> relay -> sink; `more` adds lines to the sink.
inline std::string pipeline(int64_t count, int64_t per_turn, int64_t capacity,
                            std::string_view more = {}) {
  return fmt::format(R"(
[node.source]
actor = "source"
count = {0}
per_turn = {1}
[node.relay]
actor = "relay"
[node.sink]
actor = "sink"
count = {0}
{3}
[edges]
forward = [
  {{ path = "source.out -> relay.in", capacity = {2} }},
  {{ path = "relay.out -> sink.in", capacity = {2} }},
]
)",
                     count, per_turn, capacity, more);
}

/// asker -> answerer and back; `more` adds lines to the answerer.
inline std::string conversation(int64_t count, std::string_view answerer = "answerer",
                                std::string_view more = {}) {
  return fmt::format(R"(
[node.asker]
actor = "asker"
count = {}
[node.answerer]
actor = "{}"
{}
[edges]
forward = ["asker.question -> answerer.question"]
feedback = ["answerer.reply -> asker.reply"]
)",
                     count, answerer, more);
}

TYPED_TEST_SUITE_P(ExecutorConformance);

TYPED_TEST_P(ExecutorConformance, DeliversEverythingOnceAndInOrder) {
  const auto outcome = this->run(conformance_plan(pipeline(5000, 1, 64)));
  this->expect_clean_end(outcome, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[0].handled, 5000u);
  EXPECT_EQ(outcome.ledger[1].handled, 5000u);
  // A gap or a repetition would add a line.
  EXPECT_THAT(this->process_services_.journal(),
              testing::UnorderedElementsAre("sink has 5000", "source drains", "sink drains"));
}

TYPED_TEST_P(ExecutorConformance, HoldsEdgesToTheirBoundWhenAStepSaysMuch) {
  const auto outcome = this->run(conformance_plan(pipeline(3000, 32, 8)));
  this->expect_clean_end(outcome, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[1].handled, 3000u);
  EXPECT_GT(outcome.ledger[0].waiting_max, 8u);
}

TYPED_TEST_P(ExecutorConformance, WorksWithRoomForASingleMessage) {
  const auto outcome = this->run(conformance_plan(pipeline(300, 1, 1)));
  this->expect_clean_end(outcome, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[1].handled, 300u);
}

TYPED_TEST_P(ExecutorConformance, AnswersEveryQuestionOverFeedback) {
  const auto outcome = this->run(conformance_plan(conversation(1000)));
  this->expect_clean_end(outcome, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[0].handled, 1000u);
  EXPECT_EQ(outcome.ledger[1].handled, 1000u);
  EXPECT_EQ(this->process_services_.count("all answered"), 1u);
}

TYPED_TEST_P(ExecutorConformance, AnswersFromAThreadOfItsOwn) {
  const auto outcome = this->run(conformance_plan(conversation(200, "blocking_answerer")));
  this->expect_clean_end(outcome, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[1].handled, 200u);
}

TYPED_TEST_P(ExecutorConformance, RefusesForAHandlerThatFailed) {
  const auto outcome = this->run(conformance_plan(conversation(10, "answerer", "fail_at = 4")));
  this->expect_clean_end(outcome, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[0].failed, 1u);
  EXPECT_EQ(this->process_services_.count("refused: no answer to 4"), 1u);
  EXPECT_EQ(this->process_services_.count("all answered"), 1u);
}

TYPED_TEST_P(ExecutorConformance, FiresTimers) {
  const auto outcome = this->run(conformance_plan(conversation(20, "answerer", "delay = \"1ms\"")));
  this->expect_clean_end(outcome, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[1].handled, 20u);
}

TYPED_TEST_P(ExecutorConformance, ContinuesAfterAnException) {
  const auto outcome = this->run(conformance_plan(pipeline(50, 1, 4, "throw_at = 7")));
  this->expect_clean_end(outcome, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[1].failed, 1u);
  EXPECT_THAT(this->process_services_.logged(),
              testing::Contains(testing::HasSubstr("thrown in anger")));
}

TYPED_TEST_P(ExecutorConformance, EndsTheRunWhereOnErrorSaysStop) {
  const auto outcome =
      this->run(conformance_plan(pipeline(50, 1, 4, "fail_at = 7\non_error = \"stop\"")));
  EXPECT_EQ(outcome.end, RunEnd::kFailed);
  ASSERT_FALSE(outcome.status.ok());
  EXPECT_THAT(outcome.status.error().message(), testing::HasSubstr("did not want 7"));
  EXPECT_THAT(outcome.status.error().message(), testing::HasSubstr("sink"));
}

TYPED_TEST_P(ExecutorConformance, KeepsAResourceOnOneThreadAndStepsIt) {
  const auto outcome = this->run(conformance_plan(R"(
[resource.machine]
kind = "engine"
backend = "diary"
[node.owner]
actor = "owner"
[edges]
)"));
  this->expect_clean_end(outcome, RunEnd::kFinished);
  this->executor_.reset();
  auto& diary = ResourceDiary::get();
  EXPECT_TRUE(diary.is_one_thread);
  EXPECT_THAT(diary.events,
              testing::ElementsAre("made machine", "stepped machine", "stepped machine",
                                   "stepped machine", "destroyed machine"));
}

TYPED_TEST_P(ExecutorConformance, UndoesEverythingWhenOneHostDoesNotStart) {
  const auto started = this->start(conformance_plan(R"(
[resource.one]
kind = "engine"
backend = "diary"
[resource.two]
kind = "engine"
backend = "diary"
[node.owner]
actor = "owner"
engine = "one"
[node.sulker]
actor = "owner"
engine = "two"
fails = true
[edges]
)"));
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.error().message(), "starting 'sulker': the owner does not like it here");
  this->executor_.reset();
  EXPECT_THAT(
      ResourceDiary::get().events,
      testing::UnorderedElementsAre("made one", "made two", "destroyed one", "destroyed two"));
}

TYPED_TEST_P(ExecutorConformance, DrainsWhenAsked) {
  ASSERT_TRUE(this->start(conformance_plan(pipeline(1'000'000'000, 4, 16))).ok());
  this->executor_->request_drain();
  this->executor_->request_drain();
  const auto outcome = this->executor_->wait();
  this->expect_clean_end(outcome, RunEnd::kInterrupted);
  EXPECT_EQ(this->process_services_.count("source drains"), 1u);
  EXPECT_EQ(this->process_services_.count("sink drains"), 1u);
}

TYPED_TEST_P(ExecutorConformance, StopsWhenAsked) {
  ASSERT_TRUE(this->start(conformance_plan(pipeline(1'000'000'000, 4, 16))).ok());
  this->executor_->request_stop();
  const auto outcome = this->executor_->wait();
  EXPECT_EQ(outcome.end, RunEnd::kInterrupted);
  EXPECT_TRUE(outcome.status.ok());
  for (const auto& edge : outcome.ledger) EXPECT_TRUE(edge.balances());
}

TYPED_TEST_P(ExecutorConformance, StaysQuietWhenDestroyedInTheMiddle) {
  ASSERT_TRUE(this->start(conformance_plan(pipeline(1'000'000'000, 4, 16))).ok());
}

TYPED_TEST_P(ExecutorConformance, ReportsAnAnswerThatNeverComes) {
  const auto outcome = this->run(
      conformance_plan(conversation(10, "answerer", "swallow_from = 3"), "stall_after = \"1s\""));
  EXPECT_EQ(outcome.end, RunEnd::kStalled);
  ASSERT_FALSE(outcome.status.ok());
  EXPECT_EQ(outcome.status.error().code(), Code::kDeadline);
}

TYPED_TEST_P(ExecutorConformance, NamesWhoHoldsUpAStalledRun) {
  const auto outcome =
      this->run(conformance_plan(pipeline(100, 1, 4, "pauses = true"), "stall_after = \"1s\""));
  EXPECT_EQ(outcome.end, RunEnd::kStalled);
  const auto report = outcome.stall.text();
  EXPECT_THAT(report, testing::HasSubstr("sink"));
  EXPECT_THAT(report, testing::HasSubstr("relay.out -> sink.in"));
}

TYPED_TEST_P(ExecutorConformance, NamesADrainThatDoesNotEnd) {
  ASSERT_TRUE(
      this->start(conformance_plan(pipeline(100, 1, 4, "pauses = true"), "drain_max = \"100ms\""))
          .ok());
  this->executor_->request_drain();
  const auto outcome = this->executor_->wait();
  EXPECT_NE(outcome.end, RunEnd::kFinished);
  ASSERT_FALSE(outcome.status.ok());
  EXPECT_EQ(outcome.status.error().code(), Code::kDeadline);
}

TYPED_TEST_P(ExecutorConformance, SharesABlobAmongReceiversWithoutCopyingIt) {
  const auto outcome = this->run(conformance_plan(R"(
[node.blob_source]
actor = "blob_source"
num_receivers = 5
[node.blob_sink]
actor = "blob_sink"
replicas = 5
[edges]
forward = ["blob_source.out -> blob_sink.in"]
feedback = ["blob_sink.got -> blob_source.got"]
)"));
  this->expect_clean_end(outcome, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[1].handled, 50u);
  if constexpr (!requires { TypeParam::kSharesMemory; }) {
    EXPECT_EQ(this->process_services_.count("a copy was made"), 0u);
  }
}

TYPED_TEST_P(ExecutorConformance, EndsOnlyWhenEveryTenantHasFinished) {
  const auto outcome = this->run(conformance_plan(R"(
[tenant.other]
environment = { name = "nowhere" }
[node.asker]
actor = "asker"
per_tenant = true
count = 30
[node.answerer]
actor = "answerer"
[edges]
forward = ["asker.question -> answerer.question"]
feedback = ["answerer.reply -> asker.reply"]
)"));
  this->expect_clean_end(outcome, RunEnd::kFinished);
  EXPECT_EQ(outcome.ledger[0].handled, 60u);
  EXPECT_EQ(this->process_services_.count("all answered"), 2u);
}

TYPED_TEST_P(ExecutorConformance, TellsHowFarItIs) {
  ASSERT_TRUE(this->start(conformance_plan(pipeline(100, 1, 4))).ok());
  (void)this->executor_->status();
  const auto outcome = this->executor_->wait();
  this->expect_clean_end(outcome, RunEnd::kFinished);
  const auto status = this->executor_->status();
  EXPECT_GE(status.num_steps, 300u);
  EXPECT_EQ(status.edges[0].handled, 100u);
}

REGISTER_TYPED_TEST_SUITE_P(ExecutorConformance, DeliversEverythingOnceAndInOrder,
                            HoldsEdgesToTheirBoundWhenAStepSaysMuch, WorksWithRoomForASingleMessage,
                            AnswersEveryQuestionOverFeedback, AnswersFromAThreadOfItsOwn,
                            RefusesForAHandlerThatFailed, FiresTimers, ContinuesAfterAnException,
                            EndsTheRunWhereOnErrorSaysStop, KeepsAResourceOnOneThreadAndStepsIt,
                            UndoesEverythingWhenOneHostDoesNotStart, DrainsWhenAsked,
                            StopsWhenAsked, StaysQuietWhenDestroyedInTheMiddle,
                            ReportsAnAnswerThatNeverComes, NamesWhoHoldsUpAStalledRun,
                            NamesADrainThatDoesNotEnd, SharesABlobAmongReceiversWithoutCopyingIt,
                            EndsOnlyWhenEveryTenantHasFinished, TellsHowFarItIs);

}  // namespace primerl
