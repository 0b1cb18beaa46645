// The order of the requests of Tinker clients, their repeats, and their answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/tinker/answer_store.h"
#include "actors/tinker/request_order.h"
#include "actors/tinker/tenant_limit.h"
#include "runtime/wire/msgpack_codec.h"

namespace primerl::tinker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

Time at_seconds(int64_t seconds) { return Time::from_nanoseconds(seconds * 1'000'000'000); }

OfferedRequest offered_request(int64_t seq, std::string digest = "a", uint64_t num_bytes = 1) {
  return {"m", seq, std::move(digest), num_bytes, 100 + static_cast<uint64_t>(seq)};
}

Admission::Kind kind_of(const Result<Admission>& admission) {
  EXPECT_TRUE(admission.ok()) << admission.error().text();
  return admission->kind;
}

constexpr auto kRuns = Admission::Kind::kRun;
constexpr auto kWaits = Admission::Kind::kWait;
constexpr auto kRepeats = Admission::Kind::kRepeat;

/// Writes a state to the bytes of a cut and reads it into `read`.
template <class T>
void resume_into(const T& state, T& read) {
  MsgpackWriter writer;
  wire::write(writer, state);
  const auto body = writer.take_body();
  MsgpackReader reader(body, {});
  wire::read(reader, read);
  EXPECT_TRUE(reader.finish().ok());
}

TEST(TinkerOrder, ARestoredOneContinuesLikeTheOriginal) {
  RequestOrder before;
  EXPECT_EQ(kind_of(before.offer(offered_request(1), at_seconds(0))), kRuns);
  EXPECT_EQ(kind_of(before.offer(offered_request(3, "a", 5), at_seconds(7))), kWaits);
  RequestOrder order;
  resume_into(before, order);
  EXPECT_EQ(order.waiting_bytes(), 5u) << "of the lane's tenant";
  EXPECT_EQ(order.next_expiry(), at_seconds(67));
  EXPECT_EQ(kind_of(order.offer(offered_request(1), at_seconds(8))), kRepeats);
  EXPECT_FALSE(order.offer(offered_request(3, "b"), at_seconds(8)).ok());
  EXPECT_EQ(kind_of(order.offer(offered_request(2), at_seconds(8))), kRuns);
  EXPECT_THAT(order.pop_ready("m"), ElementsAre(103));
}

TEST(TinkerOrder, RunsRequestsByTheirNumberHoweverTheyCome) {
  RequestOrder order;
  EXPECT_EQ(kind_of(order.offer(offered_request(3), at_seconds(0))), kWaits);
  EXPECT_EQ(kind_of(order.offer(offered_request(2), at_seconds(0))), kWaits);
  EXPECT_EQ(kind_of(order.offer(offered_request(5), at_seconds(0))), kWaits);
  EXPECT_THAT(order.pop_ready("m"), IsEmpty());
  EXPECT_EQ(kind_of(order.offer(offered_request(1), at_seconds(0))), kRuns);
  EXPECT_THAT(order.pop_ready("m"), ElementsAre(102, 103));
  EXPECT_THAT(order.pop_ready("m"), IsEmpty());
  EXPECT_EQ(order.num_waiting("m"), 1u);
  EXPECT_EQ(kind_of(order.offer(offered_request(4), at_seconds(0))), kRuns);
  EXPECT_THAT(order.pop_ready("m"), ElementsAre(105));
  EXPECT_EQ(order.waiting_bytes(), 0u);
}

TEST(TinkerOrder, ARepeatIsToldByItsBody) {
  RequestOrder order;
  EXPECT_EQ(kind_of(order.offer(offered_request(1), at_seconds(0))), kRuns);
  EXPECT_EQ(kind_of(order.offer(offered_request(3), at_seconds(0))), kWaits);
  for (const int64_t seq : {1, 3}) {
    OfferedRequest again = offered_request(seq);
    again.request = 999;
    const auto repeat = order.offer(again, at_seconds(1));
    EXPECT_EQ(kind_of(repeat), kRepeats);
    EXPECT_EQ(repeat->request, 100u + static_cast<uint64_t>(seq));
    const auto other = order.offer(offered_request(seq, "b"), at_seconds(1));
    ASSERT_FALSE(other.ok());
    EXPECT_EQ(other.error().code(), Code::kExists);
    EXPECT_THAT(other.error().text(), HasSubstr("with another body"));
  }
}

TEST(TinkerOrder, LanesDoNotWaitForEachOther) {
  RequestOrder order;
  OfferedRequest other = offered_request(1);
  other.lane = "n";
  EXPECT_EQ(kind_of(order.offer(offered_request(2), at_seconds(0))), kWaits);
  EXPECT_EQ(kind_of(order.offer(other, at_seconds(0))), kRuns);
  EXPECT_THAT(order.pop_ready("n"), IsEmpty());
  EXPECT_THAT(order.drop("m"), ElementsAre(102));
  EXPECT_THAT(order.drop("m"), IsEmpty());
  EXPECT_EQ(order.waiting_bytes(), 0u);
}

TEST(TinkerOrder, AtMost256WaitInALane) {
  RequestOrder order;
  for (int64_t seq = 2; seq < 2 + 256; ++seq)
    ASSERT_EQ(kind_of(order.offer(offered_request(seq), at_seconds(0))), kWaits);
  const auto beyond = order.offer(offered_request(2 + 256), at_seconds(0));
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code(), Code::kExhausted);
  EXPECT_EQ(kind_of(order.offer(offered_request(1), at_seconds(0))), kRuns);
  EXPECT_EQ(order.pop_ready("m").size(), 256u);
}

TEST(TinkerOrder, WaitingBodiesHaveABoundInBytes) {
  RequestOrder order({.waiting_bytes_max = 10});
  EXPECT_EQ(kind_of(order.offer(offered_request(2, "a", 4), at_seconds(0))), kWaits);
  const auto beyond = order.offer(offered_request(3, "a", 7), at_seconds(0));
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code(), Code::kExhausted);
  EXPECT_EQ(kind_of(order.offer(offered_request(3, "a", 6), at_seconds(0))), kWaits);
  EXPECT_EQ(order.waiting_bytes(), 10u);
}

TEST(TinkerOrder, ARequestWaitsForSixtySeconds) {
  RequestOrder order;
  EXPECT_EQ(kind_of(order.offer(offered_request(2), at_seconds(5))), kWaits);
  EXPECT_EQ(order.next_expiry(), at_seconds(65));
  EXPECT_THAT(order.expire(at_seconds(65) + Duration::nanoseconds(-1)), IsEmpty());
  EXPECT_THAT(order.expire(at_seconds(65)), ElementsAre(Pair(102, 1)));
  EXPECT_THAT(order.expire(at_seconds(65)), IsEmpty());
  // Sent again, it waits again, also with another body: it never ran.
  EXPECT_EQ(kind_of(order.offer(offered_request(2, "b"), at_seconds(66))), kWaits);
}

TEST(TinkerOrder, RemembersSoManyNumbers) {
  RequestOrder order({.seen_max = 2});
  for (int64_t seq = 1; seq <= 3; ++seq)
    ASSERT_EQ(kind_of(order.offer(offered_request(seq), at_seconds(0))), kRuns);
  EXPECT_EQ(kind_of(order.offer(offered_request(2), at_seconds(0))), kRepeats);
  const auto old = order.offer(offered_request(1), at_seconds(0));
  ASSERT_FALSE(old.ok());
  EXPECT_EQ(old.error().code(), Code::kCancelled);
}

TEST(TinkerOrder, SamplesHaveNoOrderButRepeats) {
  RequestOrder order({.seen_max = 2});
  for (const int64_t seq : {7, 0, 9})
    EXPECT_EQ(kind_of(order.offer_unordered(offered_request(seq))), kRuns);
  EXPECT_EQ(kind_of(order.offer_unordered(offered_request(9))), kRepeats);
  EXPECT_FALSE(order.offer_unordered(offered_request(7, "b")).ok());
  const auto old = order.offer_unordered(offered_request(0));
  ASSERT_FALSE(old.ok());
  EXPECT_EQ(old.error().code(), Code::kCancelled);
}

TEST(TinkerOrder, ProgramsThatShareASamplerDoNotMakeEachOthersNumbersOld) {
  RequestOrder order({.seen_max = 2});
  uint64_t next = 100;
  const auto sampled = [&](int64_t seq) {
    OfferedRequest offered = offered_request(seq);
    offered.request = next++;
    offered.may_run_again = true;
    return kind_of(order.offer_unordered(offered));
  };
  constexpr int64_t kOtherProgram = 1'000'000'000;
  EXPECT_EQ(sampled(0), kRuns);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(sampled(kOtherProgram + i), kRuns);
  EXPECT_EQ(sampled(1), kRuns);
  EXPECT_EQ(sampled(1), kRepeats) << "the other program's numbers are larger, and older";
  EXPECT_EQ(sampled(kOtherProgram + 2), kRepeats);
  EXPECT_EQ(sampled(0), kRuns) << "it is forgotten";
}

TEST(TinkerOrder, WaitingBodiesOfOneTenantLeaveSpaceForAnother) {
  RequestOrder order({.waiting_bytes_max = 100});
  const auto offered = [](uint32_t tenant, int64_t seq, uint64_t num_bytes) {
    return OfferedRequest{tenant == 0 ? "m" : "n", seq, "a", num_bytes, 100, TenantSlot(tenant), 2};
  };
  EXPECT_EQ(kind_of(order.offer(offered(0, 2, 75), at_seconds(0))), kWaits);
  const auto beyond = order.offer(offered(0, 3, 1), at_seconds(0));
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code(), Code::kExhausted);
  EXPECT_EQ(kind_of(order.offer(offered(1, 2, 25), at_seconds(0))), kWaits);
  EXPECT_EQ(order.waiting_bytes(), 100u);
  EXPECT_EQ(order.drop("m").size(), 1u);
  EXPECT_EQ(order.waiting_bytes(), 25u);
  EXPECT_EQ(kind_of(order.offer(offered(1, 3, 50), at_seconds(0))), kWaits);
}

TEST(TinkerLimit, OneTenantAloneUsesAllOfIt) {
  TenantLimit limit(10);
  EXPECT_TRUE(limit.has_space(TenantSlot(0), 10, 1));
  limit.add(TenantSlot(0), 10);
  EXPECT_FALSE(limit.has_space(TenantSlot(0), 1, 1));
  limit.subtract(TenantSlot(0), 1);
  EXPECT_TRUE(limit.has_space(TenantSlot(0), 1, 1));
}

TEST(TinkerLimit, EachOfSeveralHasItsPartWhateverTheOthersDo) {
  TenantLimit limit(80);  // 10 for each of four, 40 for all
  const auto fill = [&limit](TenantSlot tenant) {
    while (limit.has_space(tenant, 1, 4)) limit.add(tenant, 1);
    return limit.used_by(tenant);
  };
  EXPECT_EQ(fill(TenantSlot(0)), 50u);
  EXPECT_EQ(fill(TenantSlot(1)), 10u);
  EXPECT_EQ(fill(TenantSlot(2)), 10u);
  EXPECT_EQ(fill(TenantSlot(3)), 10u);
  EXPECT_EQ(limit.used(), 80u);
  limit.subtract(TenantSlot(0), 40);
  EXPECT_EQ(fill(TenantSlot(3)), 50u);
}

TEST(TinkerLimit, ATenantThatJoinsWaitsUntilTheOthersUseLess) {
  TenantLimit limit(8);
  limit.add(TenantSlot(0), 8);
  EXPECT_FALSE(limit.has_space(TenantSlot(1), 1, 2));
  limit.subtract(TenantSlot(0), 1);
  EXPECT_FALSE(limit.has_space(TenantSlot(0), 1, 2)) << "the space is the other's";
  EXPECT_TRUE(limit.has_space(TenantSlot(1), 1, 2));
}

Code code_of(const AnswerStore& store, uint64_t request, uint32_t tenant = 0) {
  const auto found = store.find(request, TenantSlot(tenant));
  return found.ok() ? Code::kInternal : found.error().code();
}

AnswerStore with_open(AnswerLimits limits, int count) {
  AnswerStore store(limits);
  for (int i = 0; i < count; ++i) store.open(static_cast<uint64_t>(i), TenantSlot(0));
  return store;
}

TEST(TinkerAnswers, AreFetchedOnceByTheirTenant) {
  AnswerStore store = with_open({}, 1);
  EXPECT_EQ(store.find(0, TenantSlot(0)).value(), nullptr);
  ASSERT_TRUE(store.complete(0, std::string("a\0b", 3), true, at_seconds(1)).ok());
  const StoredAnswer* answer = store.find(0, TenantSlot(0)).value();
  ASSERT_NE(answer, nullptr);
  EXPECT_THAT(answer->body, ElementsAre('a', 0, 'b'));
  EXPECT_TRUE(answer->is_protobuf);
  EXPECT_EQ(code_of(store, 0, 1), Code::kNotFound);
  store.forget(0);
  EXPECT_EQ(code_of(store, 0), Code::kCancelled);
  EXPECT_EQ(code_of(store, 0, 1), Code::kNotFound);
  EXPECT_EQ(code_of(store, 8), Code::kNotFound);
  EXPECT_EQ(store.num_bytes(), 0u);
}

TEST(TinkerAnswers, ARestoredStoreHasOpenKeptAndDroppedOnes) {
  AnswerStore before = with_open({}, 3);
  ASSERT_TRUE(before.complete(1, "x", true, at_seconds(3)).ok());
  before.forget(2);
  AnswerStore store;
  resume_into(before, store);
  EXPECT_EQ(store.num_open(), 1u);
  EXPECT_EQ(store.num_bytes(), 1u);
  EXPECT_EQ(store.find(0, TenantSlot(0)).value(), nullptr);
  EXPECT_TRUE(store.find(1, TenantSlot(0)).value()->is_protobuf);
  EXPECT_EQ(code_of(store, 2), Code::kCancelled);
  store.expire(at_seconds(603));
  EXPECT_EQ(code_of(store, 1), Code::kCancelled);
}

TEST(TinkerAnswers, AreKeptForTenMinutes) {
  AnswerStore store = with_open({}, 2);
  ASSERT_TRUE(store.complete(0, "x", false, at_seconds(3)).ok());
  store.expire(at_seconds(603) + Duration::nanoseconds(-1));
  EXPECT_NE(store.find(0, TenantSlot(0)).value(), nullptr);
  store.expire(at_seconds(603));
  EXPECT_EQ(code_of(store, 0), Code::kCancelled);
  EXPECT_EQ(store.find(1, TenantSlot(0)).value(), nullptr);  // open ones have no age
}

TEST(TinkerAnswers, TheOldestMakesSpaceWithinTheBytes) {
  AnswerStore store = with_open({.bytes_max = 10}, 3);
  ASSERT_TRUE(store.complete(1, "12345", false, at_seconds(1)).ok());
  ASSERT_TRUE(store.complete(0, "12345", false, at_seconds(2)).ok());
  EXPECT_EQ(store.num_bytes(), 10u);
  ASSERT_TRUE(store.complete(2, "1", false, at_seconds(3)).ok());
  EXPECT_EQ(code_of(store, 1), Code::kCancelled);
  EXPECT_NE(store.find(0, TenantSlot(0)).value(), nullptr);
  EXPECT_EQ(store.num_bytes(), 6u);
}

TEST(TinkerAnswers, AFloodOfOneTenantDropsNoAnswerOfAnother) {
  AnswerStore store = with_open({.bytes_max = 2000}, 3);
  store.open(9, TenantSlot(1));
  ASSERT_TRUE(store.complete(9, std::string(200, 'b'), false, at_seconds(1)).ok());
  for (uint64_t i = 0; i < 3; ++i)
    ASSERT_TRUE(store.complete(i, std::string(900, 'a'), false, at_seconds(2)).ok());
  EXPECT_EQ(code_of(store, 0), Code::kCancelled) << "the flood's own oldest";
  EXPECT_NE(store.find(9, TenantSlot(1)).value(), nullptr);
  EXPECT_NE(store.find(2, TenantSlot(0)).value(), nullptr);
  EXPECT_EQ(store.num_bytes(), 2000u);
}

TEST(TinkerAnswers, OneAboveTheBytesLeavesItsFutureOpen) {
  AnswerStore store = with_open({.bytes_max = 4}, 1);
  const Status large = store.complete(0, "12345", false, at_seconds(1));
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().code(), Code::kExhausted);
  EXPECT_EQ(store.num_open(), 1u);
  EXPECT_TRUE(store.complete(0, "1234", false, at_seconds(1)).ok());
}

TEST(TinkerAnswers, OpenAndKeptOnesHaveABound) {
  AnswerStore store = with_open({.open_max = 2, .answers_max = 1}, 2);
  const Status beyond = store.check_open(TenantSlot(0), 1);
  ASSERT_FALSE(beyond.ok());
  EXPECT_EQ(beyond.error().code(), Code::kExhausted);
  ASSERT_TRUE(store.complete(0, "", false, at_seconds(1)).ok());
  ASSERT_TRUE(store.check_open(TenantSlot(0), 1).ok());
  store.open(2, TenantSlot(0));
  ASSERT_TRUE(store.complete(1, "", false, at_seconds(2)).ok());
  EXPECT_EQ(code_of(store, 0), Code::kCancelled);
}

TEST(TinkerAnswers, ATenantThatLeavesTakesItsFuturesAlong) {
  AnswerStore store = with_open({}, 2);
  store.open(9, TenantSlot(1));
  ASSERT_TRUE(store.complete(0, "x", false, at_seconds(1)).ok());
  store.drop(TenantSlot(0));
  EXPECT_EQ(code_of(store, 0), Code::kNotFound);
  EXPECT_EQ(store.num_open(), 1u);
  EXPECT_EQ(store.num_bytes(), 0u);
  EXPECT_TRUE(store.complete(1, "late", false, at_seconds(2)).ok());
  EXPECT_EQ(store.find(9, TenantSlot(1)).value(), nullptr);
}

}  // namespace
}  // namespace primerl::tinker
