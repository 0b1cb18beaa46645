// More adapters than slots: which sequences wait, which adapter is evicted, and that every sequence
// is admitted at some time.
#include "kernels/engine/adapter_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "graph/base/random.h"
#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kNone = AdapterSlots::kNone;

bool anybody(int32_t) { return true; }
bool nobody(int32_t) { return false; }

TEST(AdapterSlots, ARemovedAdapterLeavesAnEmptySlot) {
  AdapterSlots slots(2);
  ASSERT_TRUE(slots.place(0));
  ASSERT_TRUE(slots.place(1));
  slots.remove(7);
  slots.remove(0);
  EXPECT_EQ(slots.slot_of(0), kNone);
  EXPECT_NE(slots.slot_of(1), kNone);
  ASSERT_TRUE(slots.place(2));
  slots.remove(1);
  slots.begin(0, slots.slot_for(nobody));
  ASSERT_TRUE(slots.coming());
  slots.remove(0);
  EXPECT_FALSE(slots.coming()) << "it was being loaded";
  ASSERT_TRUE(slots.place(3));
  EXPECT_EQ(slots.num_evictions(), 0U);
}

TEST(AdapterSlots, EvictTheLeastRecentlyUsedThatIsNotInUse) {
  AdapterSlots slots(2);
  ASSERT_TRUE(slots.place(0));
  ASSERT_TRUE(slots.place(1));
  EXPECT_FALSE(slots.place(2)) << "there are two";
  EXPECT_EQ(slots.slot_for(anybody), slots.slot_of(0));
  slots.hold(0);
  EXPECT_EQ(slots.slot_for(anybody), slots.slot_of(1)) << "0 is in use";
  slots.release(0);
  EXPECT_EQ(slots.slot_for(anybody), slots.slot_of(1)) << "0 was used later";
  EXPECT_EQ(slots.slot_for(nobody), kNone);
  EXPECT_EQ(slots.slot_for([](int32_t adapter) { return adapter == 0; }), slots.slot_of(0));
}

TEST(AdapterSlots, HaveAnAdapterWhenAllOfItIsThere) {
  AdapterSlots slots(1);
  ASSERT_TRUE(slots.place(4));
  slots.begin(7, 0);
  EXPECT_EQ(slots.slot_of(4), kNone);
  EXPECT_EQ(slots.slot_of(7), kNone) << "it is loading";
  EXPECT_TRUE(slots.is_in_a_slot_or_coming(7));
  EXPECT_EQ(slots.slot_for(anybody), kNone) << "a loading adapter is not evicted";
  slots.finish();
  EXPECT_EQ(slots.slot_of(7), 0);
  EXPECT_EQ(slots.num_loads(), 1U);
  EXPECT_EQ(slots.num_evictions(), 1U);
}

TEST(AdapterSlots, ReportTheAdapterInUseForLongest) {
  AdapterSlots slots(3);
  EXPECT_EQ(slots.longest_held(), kNone);
  for (const int32_t adapter : {0, 1, 2}) ASSERT_TRUE(slots.place(adapter));
  for (const int32_t adapter : {1, 0, 1}) slots.hold(adapter);
  EXPECT_EQ(slots.longest_held(), 0) << "1 was used again";
  slots.release(0);
  EXPECT_EQ(slots.longest_held(), 1);
}

SequenceRequest request_of(uint32_t tenant, uint64_t id, int32_t max_tokens = 6) {
  SequenceRequest made = make_request(id, 4, max_tokens);
  made.tenant = TenantSlot(tenant);
  return made;
}

/// A step as in an engine, which loads one whole adapter before each.
StepPlan take_slot_step(BatchScheduler& scheduler) {
  if (scheduler.next_load()) scheduler.slots().finish();
  return take_step(scheduler);
}

void run_slots_to_end(BatchScheduler& scheduler) {
  for (int i = 0; i < 100'000 && scheduler.has_work(); ++i) {
    take_slot_step(scheduler);
    take_over_all(scheduler);
  }
  EXPECT_FALSE(scheduler.has_work());
}

BatchScheduler with_slots(int32_t slots, EngineOptions options = {}) {
  options.adapter_slots = slots;
  return make_scheduler(options);
}

TEST(SlotsOfAScheduler, AsManyAdaptersAsSlotsWaitForNothingAndOneMoreDoes) {
  for (const uint32_t num_adapters : {2U, 3U}) {
    auto scheduler = with_slots(2);
    for (uint32_t i = 0; i < num_adapters; ++i) {
      scheduler.slots().place(static_cast<int32_t>(i));
      ASSERT_TRUE(scheduler.submit(request_of(i, i), static_cast<int32_t>(i)).ok());
    }
    const auto plan = take_slot_step(scheduler);
    EXPECT_EQ(plan.prefills.size(), 2U) << "the third waits, the others continue";
    take_over_all(scheduler);
    run_slots_to_end(scheduler);
    EXPECT_EQ(scheduler.take_finished().size(), num_adapters);
    EXPECT_EQ(scheduler.state().num_adapter_loads, num_adapters - 2);
    EXPECT_EQ(scheduler.state().num_adapter_evictions, num_adapters - 2);
  }
}

TEST(SlotsOfAScheduler, OneThatFindsNoSlotIsCountedAmongThoseThatWait) {
  EngineOptions options;
  options.max_waiting = 3;
  auto scheduler = with_slots(1, options);
  ASSERT_TRUE(scheduler.slots().place(0));
  ASSERT_TRUE(scheduler.submit(request_of(0, 0, 30), 0).ok());
  take_slot_step(scheduler);
  take_over_all(scheduler);
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(scheduler.submit(request_of(1, id), 1).ok());
  take_slot_step(scheduler);
  EXPECT_EQ(scheduler.state().num_room, 0);
  const Status refused = scheduler.submit(request_of(1, 4), 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kExhausted);
  scheduler.abort(SequenceId(2));
  EXPECT_EQ(scheduler.state().num_room, 1);
  run_slots_to_end(scheduler);
  EXPECT_EQ(scheduler.take_finished().size(), 4U);
}

/// Prompts of one tenant arrive without pause; another tenant's adapter still gets its slot.
TEST(SlotsOfAScheduler, AFloodDoesNotKeepAnotherFromItsSlot) {
  auto scheduler = with_slots(1);
  ASSERT_TRUE(scheduler.slots().place(0));
  uint64_t next = 0;
  const auto flood = [&] {
    while (scheduler.state().num_waiting < 5)
      ASSERT_TRUE(scheduler.submit(request_of(0, next++), 0).ok());
  };
  flood();
  take_slot_step(scheduler);
  ASSERT_TRUE(scheduler.submit(request_of(1, 1'000'000), 1).ok());
  bool is_done = false;
  for (int step = 0; step < 200 && !is_done; ++step) {
    take_slot_step(scheduler);
    take_over_all(scheduler);
    flood();
    for (const auto& event : scheduler.take_finished())
      is_done = is_done || event.id == SequenceId(1'000'000);
  }
  EXPECT_TRUE(is_done);
}

/// A waiting prompt does not lose its adapter's slot to a later one: the adapter whose prompts come
/// first keeps it.
TEST(SlotsOfAScheduler, AnAdapterWhosePromptComesFirstKeepsItsSlot) {
  EngineOptions options;
  options.max_running = 1;
  auto scheduler = with_slots(1, options);
  ASSERT_TRUE(scheduler.slots().place(0));
  ASSERT_TRUE(scheduler.submit(request_of(0, 0), 0).ok());
  ASSERT_TRUE(scheduler.submit(request_of(1, 1), 1).ok());
  EXPECT_FALSE(scheduler.next_load().has_value());
  run_slots_to_end(scheduler);
  std::vector<uint64_t> order;
  for (const auto& event : scheduler.take_finished()) order.push_back(event.id.value);
  EXPECT_THAT(order, ElementsAre(0, 1));
}

/// Every row's slot has the adapter of its sequence, slots in use are not evicted, every sequence
/// ends.
TEST(SlotsOfAScheduler, EndEveryHistoryOfRandomPrompts) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomStream random(seed);
    EngineOptions options;
    options.kv_blocks = static_cast<int32_t>(6 + random.below(30));
    options.block_size = 4;
    options.max_running = static_cast<int32_t>(1 + random.below(6));
    options.max_batched_tokens = static_cast<int32_t>(4 + random.below(30));
    options.max_sequence_tokens = 20;
    const auto num_slots = static_cast<int32_t>(1 + random.below(3));
    const auto num_adapters = static_cast<uint32_t>(num_slots) + 1 + random.below(4);
    auto scheduler = with_slots(num_slots, options);
    std::map<int32_t, uint32_t> lies_in;  // adapter by slot, as loaded by the engine
    for (uint32_t i = 0; i < num_adapters; ++i)
      if (scheduler.slots().place(static_cast<int32_t>(i)))
        lies_in[scheduler.slots().slot_of(static_cast<int32_t>(i))] = i;
    uint64_t num_submitted = 0;
    std::set<uint64_t> ended;
    for (int step = 0; step < 400 || ended.size() < num_submitted; ++step) {
      ASSERT_LT(step, 20'000) << "it does not end";
      if (step < 400 && random.below(3) == 0) {
        const auto tenant = static_cast<uint32_t>(random.below(num_adapters));
        SequenceRequest made = request_of(tenant, num_submitted);
        made.prompt_tokens.resize(1 + random.below(4), 12);
        made.sampling.max_tokens = static_cast<int32_t>(1 + random.below(12));
        ASSERT_TRUE(scheduler.submit(std::move(made), static_cast<int32_t>(tenant)).ok());
        ++num_submitted;
      }
      if (num_submitted > 0 && random.below(20) == 0)
        scheduler.abort(SequenceId(random.below(num_submitted)));
      if (const auto load = scheduler.next_load(); load && random.below(2) == 0) {
        lies_in[load->slot] = static_cast<uint32_t>(load->adapter);
        scheduler.slots().finish();
      }
      const auto plan = take_step(scheduler);
      std::map<int32_t, int64_t> rows_by_slot;
      for (const auto& span : plan.rows.spans) rows_by_slot[span.adapter] += span.num_queries;
      for (const auto& [slot, rows] : rows_by_slot) EXPECT_TRUE(lies_in.contains(slot));
      if (random.below(3) != 0) take_over_all(scheduler);
      if (step >= 400) take_over_all(scheduler);
      for (const auto& event : scheduler.take_finished())
        EXPECT_TRUE(ended.insert(event.id.value).second);
    }
    EXPECT_FALSE(scheduler.has_work());
    EXPECT_EQ(scheduler.slots().longest_held(), kNone) << "no slot is in use any more";
    expect_all_free(scheduler);
  }
}

}  // namespace
}  // namespace primerl
