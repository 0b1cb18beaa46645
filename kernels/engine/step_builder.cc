#include "kernels/engine/step_builder.h"

#include <algorithm>

namespace primerl {

void StepBuilder::begin(StepPlan& plan) {
  plan.rows.clear();
  plan.rows.block_size = table_.limits.options.block_size;
  plan.samples.clear();
  plan.scores.clear();
  plan.copies.clear();
  plan.prefills.clear();
  table_.has_preempted = false;
  table_.run_claims.step();
  table_.blocks.claims.step();
}

int32_t StepBuilder::samples_left(const StepPlan& plan) const {
  return table_.limits.options.max_batched_tokens - static_cast<int32_t>(plan.samples.size());
}

void StepBuilder::add_decode(StepPlan& plan, Sequence& sequence) {
  RowBatch& rows = plan.rows;
  const auto row = static_cast<int32_t>(rows.num_rows());
  const int32_t last = sequence.size() + table_.num_unknown_tokens(sequence) - 1;
  // The same as add_span(), for one row, which is in the last block.
  rows.spans.push_back({row, 1, last, static_cast<int32_t>(rows.kv_blocks.size()),
                        table_.slots.slot_of(sequence.adapter)});
  table_.waiting.charge(sequence.request.tenant, 1);
  rows.kv_blocks.insert(rows.kv_blocks.end(), sequence.blocks.begin(), sequence.blocks.end());
  rows.tokens.push_back(table_.num_unknown_tokens(sequence) == 0
                            ? sequence.tokens.back()
                            : token_of_sample(sequence.last_sample));
  rows.positions.push_back(last);
  const auto before =
      static_cast<int32_t>(sequence.blocks.size() - 1) * table_.limits.options.block_size;
  rows.cache_rows.push_back(sequence.blocks.back() * table_.limits.options.block_size + last -
                            before);
  // For a step that was planned ahead, accept() publishes the block.
  if (sequence.publishes && table_.num_in_progress == 0)
    table_.blocks.publish(sequence.blocks, sequence.chain, sequence, last + 1);
  add_sample(plan, row, sequence);
}

void StepBuilder::add_chunk(StepPlan& plan, PrefillTask& prefill, int32_t num_rows) {
  const int32_t end = prefill.num_computed + num_rows;
  const auto first_row = static_cast<int32_t>(plan.rows.num_rows()) - prefill.num_computed;
  if (prefill.scores_prompt)
    for (int32_t i = prefill.num_computed; i < std::min(end, prefill.num_tokens - 1); ++i)
      plan.scores.push_back({first_row + i, prefill.first().token(i + 1), &prefill});
  add_span(plan.rows, prefill.blocks, prefill.num_computed, end, prefill.first());
  prefill.num_computed = end;
  // Publishing before the step is safe: all keys of a layer are written before any is read.
  if (prefill.publishes) table_.blocks.publish(prefill.blocks, prefill.chain, prefill.first(), end);
  plan.prefills.push_back(&prefill);
  table_.waiting.charge(prefill.first().request.tenant, num_rows);
  table_.totals.num_prefill_tokens += static_cast<uint64_t>(num_rows);
  if (prefill.is_recomputed) table_.totals.num_recomputed_tokens += static_cast<uint64_t>(num_rows);
  if (!prefill.is_complete()) return;
  prefill.last_row = static_cast<int32_t>(plan.rows.num_rows()) - 1;
  add_samples(plan, prefill);
}

void StepBuilder::add_samples(StepPlan& plan, PrefillTask& prefill) {
  while (prefill.num_sampled < prefill.waiting.size() && samples_left(plan) > 0)
    add_sample(plan, prefill.last_row, *prefill.waiting[prefill.num_sampled++]);
}

void StepBuilder::add_sample(StepPlan& plan, int32_t row, Sequence& sequence) const {
  sequence.last_plan = table_.num_plans + 1;
  sequence.last_sample = static_cast<int32_t>(plan.samples.size());
  plan.samples.push_back({row, &sequence});
}

/// Rows for the positions [begin, end).
void StepBuilder::add_span(RowBatch& rows, const std::vector<int32_t>& blocks, int32_t begin,
                           int32_t end, const Sequence& sequence) const {
  const int32_t size = table_.limits.options.block_size;
  rows.spans.push_back({static_cast<int32_t>(rows.num_rows()), end - begin, begin,
                        static_cast<int32_t>(rows.kv_blocks.size()),
                        table_.slots.slot_of(sequence.adapter)});
  rows.kv_blocks.insert(rows.kv_blocks.end(), blocks.begin(),
                        blocks.begin() + table_.blocks.blocks_for(end));
  for (int32_t i = begin; i < end; ++i) {
    rows.tokens.push_back(sequence.token(i));
    rows.positions.push_back(i);
    rows.cache_rows.push_back(blocks[static_cast<size_t>(i / size)] * size + i % size);
  }
}

void StepBuilder::group_by_adapter(StepPlan& plan, size_t num_decodes) {
  RowBatch& rows = plan.rows;
  const std::span decodes = std::span(rows.spans).first(num_decodes);
  const std::span prompts = std::span(rows.spans).subspan(num_decodes);
  if (std::ranges::is_sorted(decodes, {}, &RowSpan::adapter) &&
      std::ranges::is_sorted(prompts, {}, &RowSpan::adapter))
    return;
  std::ranges::stable_sort(decodes, {}, &RowSpan::adapter);
  std::ranges::stable_sort(prompts, {}, &RowSpan::adapter);
  grouped_.clear();
  new_rows_.resize(rows.tokens.size());
  for (auto& span : rows.spans) {
    const auto begin = static_cast<size_t>(span.query_begin);
    span.query_begin = static_cast<int32_t>(grouped_.num_rows());
    for (size_t row = begin; row < begin + static_cast<size_t>(span.num_queries); ++row) {
      new_rows_[row] = static_cast<int32_t>(grouped_.num_rows());
      grouped_.tokens.push_back(rows.tokens[row]);
      grouped_.positions.push_back(rows.positions[row]);
      grouped_.cache_rows.push_back(rows.cache_rows[row]);
    }
  }
  rows.tokens.swap(grouped_.tokens);
  rows.positions.swap(grouped_.positions);
  rows.cache_rows.swap(grouped_.cache_rows);
  for (auto& sample : plan.samples) sample.row = new_rows_[static_cast<size_t>(sample.row)];
  for (auto& score : plan.scores) score.row = new_rows_[static_cast<size_t>(score.row)];
  std::ranges::stable_sort(plan.samples, {}, &StepPlan::Sample::row);
  for (size_t i = 0; i < plan.samples.size(); ++i)
    plan.samples[i].sequence->last_sample = static_cast<int32_t>(i);
}

}  // namespace primerl
