#include "runtime/outside/answer_queue.h"

#include <gmock/gmock.h>
#include <poll.h>

#include <thread>

#include "runtime/outside/order_queue.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

OutsideAnswer answer_to(uint64_t call) { return {call, OutsideEnd::kDone, "{}"}; }

std::vector<uint64_t> calls_of(const std::vector<OutsideAnswer>& answers) {
  std::vector<uint64_t> calls;
  for (const auto& answer : answers) calls.push_back(answer.id);
  return calls;
}

TEST(AnswerQueue, CallsAreRefusedOnePastTheirLimitUntilAnAnswerIsReceived) {
  AnswerQueue queue;
  for (uint64_t id = 1; id <= kOutsideCallsMax; ++id) ASSERT_TRUE(queue.open(id).ok());
  const Status refused = queue.open(kOutsideCallsMax + 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  EXPECT_THAT(refused.error().text(), HasSubstr("65536 calls wait for an answer"));
  queue.add(answer_to(7));
  EXPECT_FALSE(queue.open(kOutsideCallsMax + 1).ok()) << "the answer was not received yet";
  EXPECT_THAT(calls_of(queue.receive()), ElementsAre(7));
  EXPECT_TRUE(queue.open(kOutsideCallsMax + 1).ok());
  EXPECT_EQ(queue.num_open(), kOutsideCallsMax);
}

TEST(AnswerQueue, AnswersComeInOrderAndAtMost64AtOnce) {
  AnswerQueue queue;
  std::vector<OutsideAnswer> answers;
  for (uint64_t id = 1; id <= kOutsideAnswersMax + 1; ++id) answers.push_back(answer_to(id));
  queue.add_all(std::move(answers));
  const auto first = calls_of(queue.receive());
  ASSERT_EQ(first.size(), kOutsideAnswersMax);
  EXPECT_EQ(first.front(), 1U);
  EXPECT_EQ(first.back(), kOutsideAnswersMax);
  EXPECT_TRUE(queue.has_work());
  EXPECT_THAT(calls_of(queue.receive()), ElementsAre(kOutsideAnswersMax + 1));
  EXPECT_FALSE(queue.has_work());
}

TEST(AnswerQueue, WakesOnceUntilTheAnswersAreReceived) {
  AnswerQueue queue;
  int num_wakes = 0;
  queue.set_wake([&] { ++num_wakes; });
  queue.add_all({});
  EXPECT_EQ(num_wakes, 0);
  queue.add(answer_to(1));
  queue.add(answer_to(2));
  EXPECT_EQ(num_wakes, 1);
  queue.receive();
  queue.add(answer_to(3));
  EXPECT_EQ(num_wakes, 2);
}

TEST(AnswerQueue, KeepsItsFirstFaultAsWork) {
  AnswerQueue queue;
  int num_wakes = 0;
  queue.set_wake([&] { ++num_wakes; });
  EXPECT_TRUE(queue.fault().ok());
  queue.fail(error(Code::kUnavailable, "no worker starts"));
  queue.fail(error(Code::kUnavailable, "another reason"));
  queue.receive();
  EXPECT_TRUE(queue.has_work());
  EXPECT_THAT(queue.fault().error().text(), HasSubstr("no worker starts"));
  EXPECT_EQ(num_wakes, 1);
}

TEST(AnswerQueue, AStoppedQueueHasNoWorkAndTakesNothing) {
  AnswerQueue queue;
  int num_wakes = 0;
  ASSERT_TRUE(queue.open(1).ok());
  queue.add(answer_to(1));
  queue.stop();
  queue.set_wake([&] { ++num_wakes; });
  queue.add(answer_to(2));
  queue.fail(error(Code::kUnavailable, "too late"));
  EXPECT_FALSE(queue.has_work());
  EXPECT_TRUE(queue.receive().empty());
  EXPECT_TRUE(queue.fault().ok());
  EXPECT_EQ(queue.num_open(), 0U);
  EXPECT_EQ(num_wakes, 0);
}

TEST(AnswerQueue, NoAnswerOfAnotherThreadIsLost) {
  constexpr uint64_t kCalls = 10000;
  AnswerQueue queue;
  std::jthread outside([&] {
    for (uint64_t id = 1; id <= kCalls; ++id) queue.add(answer_to(id));
  });
  uint64_t last = 0;
  while (last < kCalls) {
    for (const uint64_t id : calls_of(queue.receive())) EXPECT_EQ(id, std::exchange(last, id) + 1);
    std::this_thread::yield();
  }
  outside.join();
  EXPECT_FALSE(queue.has_work());
}

TEST(OrderQueue, ItsDescriptorIsReadableWhileThereIsAnOrderOrANotice) {
  OrderQueue<int> queue;
  const auto is_readable = [&] {
    pollfd poll = {queue.descriptor(), POLLIN, 0};
    return ::poll(&poll, 1, 0) == 1;
  };
  EXPECT_FALSE(is_readable());
  queue.add(1);
  queue.add(2);
  EXPECT_TRUE(is_readable());
  EXPECT_THAT(queue.receive(), ElementsAre(1, 2));
  EXPECT_FALSE(is_readable());
  queue.notify();
  EXPECT_TRUE(is_readable());
  EXPECT_TRUE(queue.receive().empty());
}

}  // namespace
}  // namespace primerl
