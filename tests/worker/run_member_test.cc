// A process that must end while it starts. The test owns the clock, so nothing waits.
#include "runtime/worker/run_member.h"

#include <gmock/gmock.h>

#include <future>
#include <thread>

#include "graph/base/real_clock.h"
#include "tests/base/patience.h"
#include "tests/exec/small_graph.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

constexpr Duration kMax = RunMember::kStartLeftMax;

/// A process of one actor. The test decides how long its start takes, like a model on a disk that
/// hangs.
class AStart : public ::testing::Test {
 protected:
  AStart() {
    testing::Strings strings;
    strings.on_start = [this](testing::Puppet&) {
      begun_.set_value();
      ended_.get_future().wait();
      return ok();
    };
    graph_.node("slow", {.strings = std::move(strings)});
    CafExecutorSetup setup;
    setup.plan = graph_.plan();
    setup.process_services = &process_services_;
    member_ = std::make_unique<RunMember>(std::move(setup), nullptr, [](Payload) {});
  }
  ~AStart() override { let_it_end(); }

  template <class T>
  void order(T message) {
    ASSERT_TRUE(member_->obey(Payload::of(std::move(message))).ok());
  }
  void begin(int64_t at_ns = 0) {
    order(StartRun{1, at_ns});
    begun_.get_future().wait();
  }
  void let_it_end() {
    if (!std::exchange(is_let_, true)) ended_.set_value();
  }
  void poll_after(Duration since) { member_->poll(Time() + since); }
  void poll_until_it_ends() {
    const Time give_up = steady_now() + kPatience;
    while (!member_->outcome() && steady_now() < give_up) {
      member_->poll(Time());
      std::this_thread::yield();
    }
    ASSERT_TRUE(member_->outcome());
  }

  std::promise<void> begun_, ended_;
  bool is_let_ = false;
  testing::SmallGraph graph_;
  testing::MemoryHostServices process_services_;
  std::unique_ptr<RunMember> member_;
};

TEST_F(AStart, WithoutAnEndIsAbandonedAtTheBoundAfterADrain) {
  begin();
  poll_after(kMax * 5);
  EXPECT_FALSE(member_->outcome()) << "it got no order to end";
  order(DrainRun{"interrupted"});
  const Duration told = kMax * 6;
  poll_after(told);
  poll_after(told + kMax - Duration::nanoseconds(1));
  EXPECT_FALSE(member_->outcome());
  EXPECT_FALSE(member_->has_lost_threads());
  poll_after(told + kMax);
  ASSERT_TRUE(member_->outcome());
  EXPECT_EQ(member_->outcome()->end, RunEnd::kInterrupted);
  EXPECT_TRUE(member_->has_lost_threads()) << "the process exits, it does not wait for the thread";
}

TEST_F(AStart, WithoutAnEndIsAbandonedAtTheBoundAfterAStop) {
  begin();
  order(StopRun{"interrupted"});
  poll_after(Duration());
  poll_after(kMax - Duration::nanoseconds(1));
  EXPECT_FALSE(member_->outcome());
  poll_after(kMax);
  ASSERT_TRUE(member_->outcome());
  EXPECT_EQ(member_->outcome()->end, RunEnd::kInterrupted);
  EXPECT_TRUE(member_->has_lost_threads());
}

TEST_F(AStart, EndingWithinTheBoundIsUndoneInOrder) {
  begin();
  order(StopRun{"interrupted"});
  poll_after(Duration());
  let_it_end();
  poll_until_it_ends();
  EXPECT_EQ(member_->outcome()->end, RunEnd::kInterrupted);
  EXPECT_FALSE(member_->has_lost_threads());
}

/// The drain of the others cannot complete without it, so it must report a failure.
TEST_F(AStart, OfARestartedProcessFailsADrain) {
  begin(1'000'000'000);
  order(DrainRun{"the run drains"});
  poll_after(Duration());
  poll_after(kMax);
  ASSERT_TRUE(member_->outcome());
  EXPECT_EQ(member_->outcome()->end, RunEnd::kFailed);
  EXPECT_THAT(member_->outcome()->status.error().text(),
              HasSubstr("still loading 10s after it was told to end"));
}

TEST_F(AStart, DoesNotBeginAfterAStop) {
  order(StopRun{"another worker failed"});
  order(StartRun{1, 0});
  EXPECT_FALSE(member_->has_begun());
  poll_after(Duration());
  ASSERT_TRUE(member_->outcome());
  EXPECT_EQ(member_->outcome()->end, RunEnd::kInterrupted);
}

}  // namespace
}  // namespace primerl
