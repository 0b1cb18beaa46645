// Reports about slow handlers: one at the limit, one at the end, on a clock of the test.
#include "runtime/exec/handler_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/exec/small_graph.h"

namespace primerl::testing {
namespace {

using ::testing::HasSubstr;

constexpr Duration kLimit = Duration::seconds(10);
constexpr Duration kMoment = Duration::nanoseconds(1);

/// a -> b; the test sets what b is doing.
class HandlerWatchTest : public ::testing::Test {
 protected:
  HandlerWatchTest() {
    graph_.node("a").node("b", {.contract = [](Contract& contract) { contract.works = true; }});
    graph_.edge("a.out", "b.in");
    plan_ = graph_.plan();
    wiring_ = make_wiring(*plan_);
    watch_ = std::make_unique<HandlerWatch>(*plan_, *wiring_, kLimit);
    view_.group = plan_->instances[1].group;
    view_.num_steps = 4411;
    view_.is_running = true;
    view_.running_since = at(Duration::seconds(100));
    view_.handling = InstanceId(1);
    view_.handling_type = &message_type<Number>();
    view_.handling_kind = StepKind::kMessage;
    view_.handling_link = 0;
    view_.handling_sequence = 812;
  }
  static Time at(Duration since_epoch) {
    return Time::from_nanoseconds(since_epoch.to_nanoseconds());
  }
  /// The report `after` the handler has begun; "" for none.
  std::string told_after(Duration after, bool has_deadline = false) {
    const auto news = watch_->check(view_, view_.running_since + after, has_deadline);
    return news ? news->text : std::string();
  }

  SmallGraph graph_;
  std::shared_ptr<const Plan> plan_;
  std::shared_ptr<const Wiring> wiring_;
  std::unique_ptr<HandlerWatch> watch_;
  GroupView view_;
};

TEST_F(HandlerWatchTest, TellsAtTheLimitOnceAndOnceMoreWhenItReturned) {
  EXPECT_EQ(told_after(kLimit + Duration::nanoseconds(-1)), "");
  EXPECT_EQ(told_after(kLimit),
            "'b' has been handling message 812 of 'a.out -> b.in' (Number, step 4411) for 10s");
  EXPECT_EQ(told_after(kLimit + kMoment), "");
  EXPECT_EQ(told_after(Duration::seconds(1000)), "");
  EXPECT_EQ(watch_->num_alarms(view_.group), 1u);
  view_.is_running = false;
  EXPECT_EQ(told_after(Duration::milliseconds(1'234'567)),
            "'b' has returned from message 812 of 'a.out -> b.in' (Number, step 4411) after 1234s");
  EXPECT_EQ(told_after(Duration::seconds(2000)), "");
}

TEST_F(HandlerWatchTest, TheNextHandlerOfTheHostIsAnotherOne) {
  EXPECT_THAT(told_after(kLimit), HasSubstr("step 4411"));
  view_.num_steps = 4412;
  view_.running_since = at(Duration::seconds(200));
  EXPECT_THAT(told_after(kMoment), HasSubstr("returned from message 812"));
  EXPECT_EQ(told_after(Duration::seconds(9)), "");
  EXPECT_THAT(told_after(kLimit), HasSubstr("step 4412"));
  EXPECT_EQ(watch_->num_alarms(view_.group), 2u);
}

TEST_F(HandlerWatchTest, AHandlerThatGivesSignsOfLifeIsNotStuck) {
  for (int i = 1; i <= 5; ++i) {
    view_.num_progress = static_cast<uint64_t>(i);
    EXPECT_EQ(told_after(Duration::seconds(9) * i), "");
    EXPECT_EQ(watch_->last_activity(view_.group), view_.running_since + Duration::seconds(9) * i);
  }
  EXPECT_EQ(told_after(Duration::seconds(45) + kLimit),
            "'b' has been handling message 812 of 'a.out -> b.in' (Number, step 4411) for 55s, "
            "without a sign of life for 10s");
}

TEST_F(HandlerWatchTest, NamesTimersAndWorkTurns) {
  view_.handling_kind = StepKind::kTimer;
  view_.handling_type = nullptr;
  view_.handling_link = 1;
  EXPECT_THAT(told_after(kLimit), HasSubstr("'b' has been handling timer 'tock' (step 4411)"));
  view_.num_steps = 4412;
  view_.handling = InstanceId::none();
  view_.handling_kind = StepKind::kWork;
  EXPECT_THAT(told_after(kLimit), HasSubstr("returned from timer 'tock'"));
  EXPECT_THAT(told_after(kLimit), HasSubstr("'b' has been handling a work call (step 4412)"));
}

TEST_F(HandlerWatchTest, AHandlerWithADeadlineIsNotReported) {
  EXPECT_EQ(told_after(Duration::seconds(1000), true), "");
  EXPECT_EQ(watch_->last_activity(view_.group), view_.running_since);
}

TEST_F(HandlerWatchTest, NothingIsToldWithoutALimit) {
  watch_ = std::make_unique<HandlerWatch>(*plan_, *wiring_, Duration());
  EXPECT_EQ(told_after(Duration::seconds(1000)), "");
  view_.num_progress = 1;
  EXPECT_EQ(told_after(Duration::seconds(2000)), "");
  EXPECT_EQ(watch_->last_activity(view_.group), view_.running_since + Duration::seconds(2000));
}

TEST_F(HandlerWatchTest, AReportOfAnotherPlanHasWordsToo) {
  view_.handling_link = 10'000;
  EXPECT_EQ(handling_text(*plan_, *wiring_, view_), "step 4411");
  view_.handling_kind = StepKind::kTimer;
  EXPECT_EQ(handling_text(*plan_, *wiring_, view_), "step 4411");
}

}  // namespace
}  // namespace primerl::testing
