// The parts of a BatchScheduler alone: who is admitted, who is preempted, the rows of a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/engine/admission.h"
#include "kernels/engine/preemption.h"
#include "kernels/engine/step_builder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SchedulerLimits limits(int32_t kv_blocks, int32_t max_running = 8) {
  SchedulerLimits made;
  made.options.kv_blocks = kv_blocks;
  made.options.block_size = 4;
  made.options.max_running = max_running;
  made.options.max_batched_tokens = 3;
  made.options.max_sequence_tokens = 64;
  made.vocab_size = 50;
  return made;
}

class SchedulerParts : public ::testing::Test {
 protected:
  void make(const SchedulerLimits& of) {
    table_.emplace(of);
    admission_.emplace(*table_);
    preemption_.emplace(*table_);
    builder_.emplace(*table_);
  }
  /// A waiting sequence with a prompt of `num_tokens`, all of them `token`.
  Sequence& wait(size_t num_tokens, int32_t token = 3, int32_t priority = 0) {
    auto sequence = std::make_unique<Sequence>();
    const uint64_t id = table_->sequences.size();
    sequence->request.id = SequenceId(id);
    sequence->request.prompt_tokens.assign(num_tokens, token);
    sequence->request.priority = priority;
    sequence->prompt_hash = num_tokens * 100 + static_cast<uint64_t>(token);
    sequence->arrival = id;
    table_->waiting.enter(sequence->request.tenant);
    table_->run_claims.want(sequence->request.tenant, 1);
    table_->enqueue(*sequence);
    return *table_->sequences.emplace(id, std::move(sequence)).first->second;
  }
  /// Admits the next sequence and lets it run, with all blocks of its prompt.
  Sequence& start() {
    PrefillTask& prefill = admission_->admit();
    Sequence& sequence = *prefill.waiting.front();
    table_->assign_blocks(prefill, sequence, true);
    table_->leave(sequence);
    sequence.tokens = {5};
    table_->run(sequence);
    return sequence;
  }

  std::optional<SequenceTable> table_;
  std::optional<Admission> admission_;
  std::optional<Preemption> preemption_;
  std::optional<StepBuilder> builder_;
};

TEST_F(SchedulerParts, AdmitsNothingThatDoesNotFit) {
  make(limits(2));
  EXPECT_FALSE(admission_->can_admit()) << "no sequence waits";
  wait(9);
  EXPECT_FALSE(admission_->can_admit()) << "three blocks of two";
  make(limits(2));
  wait(8);
  ASSERT_TRUE(admission_->can_admit());
  EXPECT_THAT(admission_->admit().blocks, SizeIs(2));
  EXPECT_EQ(table_->blocks.pool.num_free(), 0);
  make(limits(8, 1));
  wait(4);
  wait(4, 9);
  admission_->admit();
  EXPECT_FALSE(admission_->can_admit()) << "no running slot is free";
}

TEST_F(SchedulerParts, SequencesOfOnePromptComputeItOnce) {
  make(limits(8));
  Sequence& first = wait(5);
  Sequence& second = wait(5);
  Sequence& other = wait(5, 9);
  PrefillTask& prefill = admission_->admit();
  EXPECT_EQ(&admission_->admit(), &prefill);
  EXPECT_NE(&admission_->admit(), &prefill);
  EXPECT_THAT(prefill.waiting, ElementsAre(&first, &second));
  EXPECT_EQ(second.num_cached_tokens, 4);
  EXPECT_EQ(other.prefill->blocks.size(), 2U);
  EXPECT_EQ(table_->num_prefilling, 3);
  EXPECT_FALSE(admission_->can_load()) << "there are no adapters";
}

TEST_F(SchedulerParts, PreemptsTheLastInTheOrderAndNeverTheFirst) {
  make(limits(3));
  wait(4);
  wait(4, 9);
  Sequence& first = start();
  Sequence& second = start();
  EXPECT_EQ(table_->blocks.pool.num_free(), 1);
  EXPECT_EQ(preemption_->grow_running(8), 1U) << "both grow, one block is free";
  EXPECT_TRUE(table_->has_preempted);
  EXPECT_THAT(table_->running, ElementsAre(&first));
  EXPECT_THAT(first.blocks, SizeIs(2));
  EXPECT_EQ(second.state, Sequence::State::kWaiting);
  EXPECT_THAT(second.blocks, IsEmpty());
  EXPECT_EQ(table_->totals.num_preemptions, 1U);
  EXPECT_EQ(table_->blocks.pool.num_free(), 1) << "the block of the preempted one";
}

TEST_F(SchedulerParts, GrowsAheadOnlyIntoFreeBlocks) {
  make(limits(2));
  wait(4);
  Sequence& sequence = start();
  sequence.request.sampling.max_tokens = 8;
  EXPECT_TRUE(preemption_->can_grow_ahead());
  const int32_t taken = table_->blocks.take(TenantSlot(0));
  EXPECT_FALSE(preemption_->can_grow_ahead());
  table_->blocks.release_one(taken, TenantSlot(0));
  EXPECT_TRUE(preemption_->can_grow_ahead());
  EXPECT_THAT(table_->running, ElementsAre(&sequence)) << "nothing is preempted";
}

TEST_F(SchedulerParts, AStepHasRowsInTheBlocksOfASequence) {
  make(limits(8));
  wait(6);
  PrefillTask& prefill = admission_->admit();
  StepPlan plan;
  builder_->begin(plan);
  builder_->add_chunk(plan, prefill, 5);
  EXPECT_THAT(plan.samples, IsEmpty()) << "the last token is missing";
  builder_->add_chunk(plan, prefill, 1);
  EXPECT_THAT(plan.rows.positions, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(plan.rows.cache_rows[4], prefill.blocks[1] * 4);
  ASSERT_THAT(plan.samples, SizeIs(1));
  EXPECT_EQ(plan.samples[0].row, 5);
  EXPECT_EQ(builder_->samples_left(plan), 2);
  EXPECT_EQ(table_->totals.num_prefill_tokens, 6U);
}

TEST_F(SchedulerParts, AStepSamplesAtMostItsTokens) {
  make(limits(8));
  for (int i = 0; i < 4; ++i) wait(2);
  PrefillTask& prefill = admission_->admit();
  for (int i = 0; i < 3; ++i) admission_->admit();
  StepPlan plan;
  builder_->begin(plan);
  builder_->add_chunk(plan, prefill, 2);
  EXPECT_THAT(plan.samples, SizeIs(3)) << "max_batched_tokens";
  EXPECT_EQ(prefill.num_sampled, 3U);
  EXPECT_EQ(builder_->samples_left(plan), 0);
}

TEST_F(SchedulerParts, ASequenceThatLeavesReturnsWhatItOwns) {
  make(limits(8));
  Sequence& waiting = wait(4);
  table_->leave(waiting);
  EXPECT_TRUE(table_->waiting.empty());
  table_->enqueue(waiting);
  admission_->admit();
  EXPECT_EQ(table_->run_claims.num_taken(), 1);
  table_->leave(waiting);
  EXPECT_THAT(table_->prefilling, IsEmpty());
  EXPECT_EQ(table_->run_claims.num_taken(), 0);
  EXPECT_EQ(table_->blocks.pool.num_free(), 8);
}

}  // namespace
}  // namespace primerl
