// Several resources behind one: each call goes to the one of its pool, and all answers come back.
#include "runtime/outside/outside_pools.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class FakeOutside final : public Outside {
 public:
  explicit FakeOutside(std::string name) : name_(std::move(name)) {}
  Status ask(OutsideCall call) override {
    asked.push_back(call.id);
    return ok();
  }
  void forget(uint32_t, uint64_t session) override { forgotten.push_back(session); }
  std::vector<OutsideAnswer> receive_answers() override {
    std::vector<OutsideAnswer> received;
    for (; !answers.empty() && received.size() < kOutsideAnswersMax; answers.pop_front())
      received.push_back({answers.front(), OutsideEnd::kDone, ""});
    return received;
  }
  void stop() override { is_stopped = true; }
  void set_wake(std::function<void()> wake) override { wakes = std::move(wake); }
  bool has_work() const override { return !answers.empty(); }
  std::string describe() const override { return name_; }

  std::vector<uint64_t> asked, forgotten;
  std::deque<uint64_t> answers;
  std::function<void()> wakes;
  bool is_stopped = false;

 private:
  const std::string name_;
};

struct OutsidePoolsStory : ::testing::Test {
  void ask(uint64_t id, uint32_t pool) {
    OutsideCall call;
    call.id = id;
    call.pool = pool;
    ASSERT_TRUE(pools->ask(std::move(call)).ok());
  }
  std::shared_ptr<FakeOutside> workers = std::make_shared<FakeOutside>("2 workers");
  std::shared_ptr<FakeOutside> servers = std::make_shared<FakeOutside>("1 server");
  std::shared_ptr<Outside> pools = make_outside_pools({servers, workers, workers});
};

TEST_F(OutsidePoolsStory, ACallOfAPoolThatDoesNotExistIsRefused) {
  OutsideCall call;
  call.pool = 3;
  EXPECT_THAT(pools->ask(call).error().text(), HasSubstr("pool 3, there are 3"));
}

TEST_F(OutsidePoolsStory, EachCallGoesToItsPool) {
  ask(1, 0);
  ask(2, 1);
  ask(3, 2);
  pools->forget(2, 7);
  EXPECT_THAT(servers->asked, ElementsAre(1));
  EXPECT_THAT(workers->asked, ElementsAre(2, 3));
  EXPECT_THAT(workers->forgotten, ElementsAre(7));
  EXPECT_EQ(pools->describe(), "1 server; 2 workers");
}

TEST_F(OutsidePoolsStory, NoAnswerIsLostAboveTheBoundOfOneCall) {
  for (uint64_t i = 0; i < kOutsideAnswersMax; ++i) {
    servers->answers.push_back(i);
    workers->answers.push_back(1000 + i);
  }
  workers->answers.push_back(2000);
  std::vector<uint64_t> seen;
  size_t num_calls = 0;
  while (pools->has_work()) {
    const auto received = pools->receive_answers();
    EXPECT_LE(received.size(), kOutsideAnswersMax);
    for (const auto& answer : received) seen.push_back(answer.id);
    ASSERT_LT(++num_calls, 10U);
  }
  EXPECT_THAT(seen, SizeIs(2 * kOutsideAnswersMax + 1));
  EXPECT_EQ(seen.front(), 0U);
}

TEST_F(OutsidePoolsStory, AllAreWokenAndStopped) {
  int num_wakes = 0;
  pools->set_wake([&] { ++num_wakes; });
  workers->wakes();
  servers->wakes();
  EXPECT_EQ(num_wakes, 2);
  pools->stop();
  EXPECT_TRUE(workers->is_stopped && servers->is_stopped);
}

}  // namespace
}  // namespace primerl
