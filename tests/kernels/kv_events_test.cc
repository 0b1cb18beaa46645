// batch_scheduler_random_test.cc checks that an engine's KV events match its prefix cache. The
// tests here are about the log's bound, and when it is empty.
#include "kernels/engine/kv_events.h"

#include <gtest/gtest.h>

#include "tests/kernels/kv_follower.h"
#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

constexpr BlockName kFirst{1, 0}, kSecond{2, 0}, kThird{3, 0};

std::vector<std::string> kinds_of(const KvEvents& taken) {
  std::vector<std::string> kinds;
  for (const KvEvent& event : taken.events)
    kinds.push_back(fmt::format("{} {}", event.number, to_string(event.kind)));
  return kinds;
}

using Kinds = std::vector<std::string>;

TEST(KvEventLog, IsFullAtItsBoundAndSaysThatSomethingIsMissing) {
  KvEventLog log(3);
  log.stored(kFirst, std::nullopt, std::vector<int32_t>{7}, {});
  log.removed(kFirst);
  log.stored(kSecond, std::nullopt, std::vector<int32_t>{8}, {});  // one past it
  const KvEvents full = log.take();
  EXPECT_EQ(kinds_of(full), (Kinds{"1 AllBlocksCleared", "2 BlockStored", "3 BlockRemoved"}));
  EXPECT_EQ(full.num_dropped, 1U);
  log.stored(kThird, std::nullopt, std::vector<int32_t>{9}, {});
  const KvEvents after = log.take();
  EXPECT_EQ(kinds_of(after), (Kinds{"4 AllBlocksCleared", "5 BlockStored"}));
  EXPECT_EQ(after.num_dropped, 1U);
  log.removed(kThird);
  EXPECT_EQ(kinds_of(log.take()), Kinds{"6 BlockRemoved"});
}

TEST(KvEventLog, WithoutRoomForBothNothingFollowsAGap) {
  KvEventLog log(1);  // the one event is kAllBlocksCleared
  log.removed(kFirst);
  EXPECT_EQ(log.take().events.size(), 1U);
  log.removed(kFirst);  // it would need space for two
  const KvEvents taken = log.take();
  EXPECT_TRUE(taken.events.empty());
  EXPECT_EQ(taken.num_dropped, 2U);
}

EngineOptions small_options(int64_t kv_events_bytes_max) {
  EngineOptions options;
  options.kv_blocks = 8;
  options.block_size = 4;
  options.max_batched_tokens = 16;
  options.kv_events_bytes_max = kv_events_bytes_max;
  return options;
}

TEST(KvEvents, AreOfNoSchedulerThatWasNotAsked) {
  BatchScheduler scheduler = make_scheduler(small_options(0));
  ASSERT_TRUE(scheduler.submit(make_request(1, 9, 2)).ok());
  run_to_end(scheduler);
  EXPECT_FALSE(names_in(scheduler.blocks()).empty());
  EXPECT_TRUE(scheduler.take_kv_events().events.empty());
}

TEST(KvEvents, TellTheChainOfAPromptAndItsEviction) {
  BatchScheduler scheduler = make_scheduler(small_options(1));
  ASSERT_TRUE(scheduler.submit(make_request(1, 9, 1, "salt")).ok());
  run_to_end(scheduler);
  const KvEvents told = scheduler.take_kv_events();
  ASSERT_EQ(kinds_of(told), (Kinds{"1 AllBlocksCleared", "2 BlockStored", "3 BlockStored"}));
  EXPECT_EQ(told.events[1].parent, std::nullopt);
  EXPECT_EQ(told.events[1].tokens, (std::vector<int32_t>{10, 11, 12, 13}));
  EXPECT_EQ(told.events[2].parent, told.events[1].name);
  EXPECT_EQ(told.events[2].tokens, (std::vector<int32_t>{14, 15, 16, 17}));
  // Another prompt needs all eight blocks.
  ASSERT_TRUE(scheduler.submit(make_request(2, 31, 1, "other")).ok());
  run_to_end(scheduler);
  KvFollower follower(4, {"salt", "other"});
  follower.take(told);
  follower.take(scheduler.take_kv_events());
  EXPECT_EQ(follower.names(), names_in(scheduler.blocks()));
  EXPECT_EQ(follower.names().size(), 7U);
  EXPECT_EQ(follower.names().count({told.events[1].name.low, told.events[1].name.high}), 0U);
}

// The log stays within its bound, and later followers are not misled.
TEST(KvEvents, ThatAreNotReadAreDroppedAndCounted) {
  const EngineOptions options = small_options(1);
  BatchScheduler scheduler = make_scheduler(options);
  for (uint64_t id = 1; id <= 40; ++id) {
    ASSERT_TRUE(scheduler.submit(make_request(id, 20, 1)).ok());
    run_to_end(scheduler);
  }
  const KvEvents late = scheduler.take_kv_events();
  EXPECT_EQ(late.events.size(), static_cast<size_t>(8 + 2 * 16 + 2));
  EXPECT_GT(late.num_dropped, 0U);
  ASSERT_TRUE(scheduler.submit(make_request(99, 20, 1)).ok());
  run_to_end(scheduler);
  const KvEvents next = scheduler.take_kv_events();
  ASSERT_FALSE(next.events.empty());
  EXPECT_EQ(next.events.front().kind, KvEventKind::kAllBlocksCleared);
  NameSet known;
  for (const KvEvent& event : next.events)
    if (event.kind == KvEventKind::kBlockStored) known.emplace(event.name.low, event.name.high);
  EXPECT_FALSE(known.empty());
  for (const auto& name : known) EXPECT_EQ(names_in(scheduler.blocks()).count(name), 1U);
}

}  // namespace
}  // namespace primerl
