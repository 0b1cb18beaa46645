#include "kernels/engine/batch_scheduler.h"

#include <algorithm>
#include <cmath>

#include "graph/base/random.h"
#include "kernels/engine/kept_sets.h"

namespace primerl {
namespace {

uint64_t prompt_hash(const SequenceRequest& request) {
  const WeightsKey key = request.key();
  uint64_t hash = stable_hash(request.salt, mix(key.tenant.value, key.adapter.value));
  for (const int32_t token : request.prompt_tokens) hash = mix(hash, static_cast<uint64_t>(token));
  return hash;
}

bool was_taken_over(const Sequence* sequence) { return sequence->was_taken_over; }

template <class Condition>
int32_t count_of(const WaitingQueue& waiting, const Condition& condition) {
  int32_t count = 0;
  waiting.visit([&](const Sequence& one) { count += condition(&one) ? 1 : 0; });
  return count;
}

/// Enough events for one step: a row fills at most one block, and a removed block was stored before
/// or in this step.
std::unique_ptr<KvEventLog> make_events(const EngineOptions& options) {
  if (options.kv_events_bytes_max == 0) return nullptr;
  return std::make_unique<KvEventLog>(static_cast<size_t>(options.kv_blocks) +
                                      2 * static_cast<size_t>(options.max_batched_tokens) + 2);
}

}  // namespace

BatchScheduler::BatchScheduler(SchedulerLimits limits)
    : limits_(std::move(limits)),
      hasher_(limits_.fingerprint, "f32", limits_.options.block_size),
      events_(make_events(limits_.options)),
      pool_(limits_.options.kv_blocks, events_.get()),
      slots_(limits_.options.adapter_slots),
      waiting_(limits_.options.shares),
      places_(limits_.options.shares, limits_.options.max_running,
              TenantClaims::Waiting::kTakesItsTurn),
      block_claims_(limits_.options.shares, limits_.options.kv_blocks,
                    TenantClaims::Waiting::kKeepsItsClaim) {}

void BatchScheduler::set_version(WeightsKey key, PolicyVersion version) {
  CHECK(versions_.set(key, version), "an engine has more keys than its limit");
  waiting_.visit([](Sequence& sequence) { sequence.chains.clear(); });
  for (const auto& prefill : prefilling_)
    if (prefill->is_recomputed && prefill->first().request.key() == key) prefill->publishes = false;
}

Status BatchScheduler::submit(SequenceRequest request, int32_t adapter) {
  const auto& options = limits_.options;
  RETURN_IF_ERROR(validate(request.sampling));
  RETURN_IF_ERROR(check_salt(request.salt));
  if (request.prompt_tokens.empty()) return error(Code::kInvalid, "the prompt has no tokens");
  for (const int32_t token : request.prompt_tokens)
    if (token < 0 || token >= limits_.vocab_size)
      return error(Code::kInvalid, "prompt token {} is outside the vocabulary of {}", token,
                   limits_.vocab_size);
  for (const int32_t id : request.sampling.stop_ids)
    if (id < 0 || id >= limits_.vocab_size)
      return error(Code::kInvalid, "stop id {} is outside the vocabulary", id)
          .note(fmt::format("tokens of this model are 0 to {}", limits_.vocab_size - 1));
  const size_t prompt = request.prompt_tokens.size();
  const int64_t total = static_cast<int64_t>(prompt) + request.sampling.max_tokens;
  if (total > options.max_sequence_tokens)
    return error(Code::kInvalid, "{} prompt tokens and max_tokens {} are more than {}", prompt,
                 request.sampling.max_tokens, options.max_sequence_tokens)
        .note("prompt and completion together have at most max_sequence_tokens");
  if (total > static_cast<int64_t>(options.kv_blocks) * options.block_size)
    return error(Code::kInvalid, "{} tokens never fit {} KV blocks of {} tokens", total,
                 options.kv_blocks, options.block_size)
        .note("give the engine more kv_blocks");
  if (sequences_.contains(request.id.value))
    return error(Code::kExists, "sequence {} was already submitted", request.id.value);
  ASSIGN_OR_RETURN(StopRule stop, StopRule::make(request.sampling, limits_.tokenizer));
  ASSIGN_OR_RETURN(auto processor, LogitsProcessor::make(request.sampling, request.prompt_tokens,
                                                         limits_.eos_ids, limits_.vocab_size));
  if (num_queued() >= options.max_waiting)
    return error(Code::kExhausted, "{} prompts are waiting, the limit of max_waiting",
                 num_queued());
  auto sequence = std::make_unique<Sequence>();
  sequence->stop = std::move(stop);
  sequence->processor = std::move(processor);
  sequence->prompt_hash = prompt_hash(request);
  sequence->request = std::move(request);
  sequence->arrival = num_arrived_++;
  sequence->adapter = adapter;
  waiting_.enter(sequence->request.tenant);
  places_.want(sequence->request.tenant, 1);
  enqueue(*sequence);
  const uint64_t id = sequence->request.id.value;
  sequences_.emplace(id, std::move(sequence));
  return ok();
}

Status BatchScheduler::take_over(SequenceId id) {
  const auto found = sequences_.find(id.value);
  if (found == sequences_.end() || found->second->state != Sequence::State::kHeld)
    return error(Code::kNotFound, "no prefilled sequence {}", id.value);
  Sequence& sequence = *found->second;
  sequence.was_taken_over = true;
  if (sequence.ended) {
    finish(sequence, sequence.reason, std::move(sequence.detail));
    return ok();
  }
  leave(sequence);
  if (sequence.blocks.empty())
    enqueue(sequence);
  else
    run(sequence);
  return ok();
}

void BatchScheduler::abort(SequenceId id) {
  const auto found = sequences_.find(id.value);
  if (found == sequences_.end()) return;
  // The prefill may have ended while its event was not read yet.
  std::erase_if(prefilled_, [id](const PrefillEvent& event) { return event.id == id; });
  // No row has checked yet that the keys of this unfinished prompt are finite, and now none will.
  if (const PrefillTask* prefill = found->second->prefill;
      prefill != nullptr && prefill->waiting.size() == 1)
    for (size_t i = static_cast<size_t>(prefill->num_found); i < prefill->blocks.size(); ++i)
      pool_.withdraw(prefill->blocks[i]);
  finish(*found->second, FinishReason::kCancelled);
}

void BatchScheduler::expire(SequenceId id) {
  const auto found = sequences_.find(id.value);
  if (found == sequences_.end() || found->second->state != Sequence::State::kHeld ||
      !found->second->was_reported)
    return;
  finish(*found->second, FinishReason::kRefused, std::string(kLeaseEnded));
}

KvEvents BatchScheduler::take_kv_events() {
  return events_ == nullptr ? KvEvents() : events_->take();
}

std::vector<PrefillEvent> BatchScheduler::take_prefilled() {
  for (const PrefillEvent& event : prefilled_)
    if (const auto found = sequences_.find(event.id.value); found != sequences_.end())
      found->second->was_reported = true;
  return std::exchange(prefilled_, {});
}

int32_t BatchScheduler::blocks_for(int64_t num_tokens) const {
  const int64_t size = limits_.options.block_size;
  return static_cast<int32_t>((num_tokens + size - 1) / size);
}

int32_t BatchScheduler::samples_left(const StepPlan& plan) const {
  return limits_.options.max_batched_tokens - static_cast<int32_t>(plan.samples.size());
}

void BatchScheduler::add_samples(StepPlan& plan, PrefillTask& prefill) {
  while (prefill.num_sampled < prefill.waiting.size() && samples_left(plan) > 0)
    add_sample(plan, prefill.last_row, *prefill.waiting[prefill.num_sampled++]);
}

void BatchScheduler::add_sample(StepPlan& plan, int32_t row, Sequence& sequence) const {
  sequence.last_plan = num_plans_ + 1;
  sequence.last_sample = static_cast<int32_t>(plan.samples.size());
  plan.samples.push_back({row, &sequence});
}

/// Rows for the positions [begin, end).
void BatchScheduler::add_span(RowBatch& rows, const std::vector<int32_t>& blocks, int32_t begin,
                              int32_t end, const Sequence& sequence) const {
  const int32_t size = limits_.options.block_size;
  rows.spans.push_back({static_cast<int32_t>(rows.num_rows()), end - begin, begin,
                        static_cast<int32_t>(rows.kv_blocks.size()),
                        slots_.slot_of(sequence.adapter)});
  rows.kv_blocks.insert(rows.kv_blocks.end(), blocks.begin(), blocks.begin() + blocks_for(end));
  for (int32_t i = begin; i < end; ++i) {
    rows.tokens.push_back(sequence.token(i));
    rows.positions.push_back(i);
    rows.cache_rows.push_back(blocks[static_cast<size_t>(i / size)] * size + i % size);
  }
}

void BatchScheduler::add_decode(StepPlan& plan, Sequence& sequence) {
  RowBatch& rows = plan.rows;
  const auto row = static_cast<int32_t>(rows.num_rows());
  const int32_t last = sequence.size() + num_unknown_tokens(sequence) - 1;
  // The same as add_span(), for one row, which is in the last block.
  rows.spans.push_back({row, 1, last, static_cast<int32_t>(rows.kv_blocks.size()),
                        slots_.slot_of(sequence.adapter)});
  waiting_.charge(sequence.request.tenant, 1);
  rows.kv_blocks.insert(rows.kv_blocks.end(), sequence.blocks.begin(), sequence.blocks.end());
  rows.tokens.push_back(num_unknown_tokens(sequence) == 0 ? sequence.tokens.back()
                                                          : token_of_sample(sequence.last_sample));
  rows.positions.push_back(last);
  const auto before = static_cast<int32_t>(sequence.blocks.size() - 1) * limits_.options.block_size;
  rows.cache_rows.push_back(sequence.blocks.back() * limits_.options.block_size + last - before);
  // For a step that was planned ahead, accept() publishes the block.
  if (sequence.publishes && num_in_progress_ == 0)
    publish(sequence.blocks, sequence.chain, sequence, last + 1);
  add_sample(plan, row, sequence);
}

void BatchScheduler::add_chunk(StepPlan& plan, PrefillTask& prefill, int32_t num_rows) {
  const int32_t end = prefill.num_computed + num_rows;
  const auto first_row = static_cast<int32_t>(plan.rows.num_rows()) - prefill.num_computed;
  if (prefill.scores_prompt)
    for (int32_t i = prefill.num_computed; i < std::min(end, prefill.num_tokens - 1); ++i)
      plan.scores.push_back({first_row + i, prefill.first().token(i + 1), &prefill});
  add_span(plan.rows, prefill.blocks, prefill.num_computed, end, prefill.first());
  prefill.num_computed = end;
  // Publishing before the step is safe: all keys of a layer are written before any is read.
  if (prefill.publishes) publish(prefill.blocks, prefill.chain, prefill.first(), end);
  plan.prefills.push_back(&prefill);
  waiting_.charge(prefill.first().request.tenant, num_rows);
  totals_.num_prefill_tokens += static_cast<uint64_t>(num_rows);
  if (prefill.is_recomputed) totals_.num_recomputed_tokens += static_cast<uint64_t>(num_rows);
  if (!prefill.is_complete()) return;
  prefill.last_row = static_cast<int32_t>(plan.rows.num_rows()) - 1;
  add_samples(plan, prefill);
}

void BatchScheduler::group_by_adapter(StepPlan& plan, size_t num_decodes) {
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

void BatchScheduler::begin(StepPlan& plan) {
  plan.rows.clear();
  plan.rows.block_size = limits_.options.block_size;
  plan.samples.clear();
  plan.scores.clear();
  plan.copies.clear();
  plan.prefills.clear();
  has_preempted_ = false;
  places_.step();
  block_claims_.step();
}

bool BatchScheduler::plan(StepPlan& plan) {
  CHECK(num_in_progress_ == 0, "plan() was called before the previous step was finished");
  const EngineOptions& options = limits_.options;
  begin(plan);
  int32_t budget = options.max_batched_tokens;
  const size_t num_decodes = grow_running(budget);
  for (size_t i = 0; i < num_decodes; ++i) add_decode(plan, *running_[i]);
  budget -= static_cast<int32_t>(num_decodes);
  if (!plan.samples.empty() && options.max_prefill_tokens > 0)
    budget = std::min(budget, options.max_prefill_tokens);
  size_t next = 0;
  while (budget > 0) {
    if (next == prefilling_.size()) {
      if (has_preempted_ || !can_admit()) break;
      admit(plan);
      continue;
    }
    PrefillTask& prefill = *prefilling_[next++];
    int32_t left = prefill.num_tokens - prefill.num_computed;
    // The last token is computed in a step that can also sample from it.
    if (samples_left(plan) == 0) --left;
    const int32_t chunk = std::min(budget, left);
    if (chunk == 0 || !copy_shared_last_block(prefill)) continue;
    add_chunk(plan, prefill, chunk);
    budget -= chunk;
  }
  if (plan.rows.num_rows() == 0) return false;
  group_by_adapter(plan, num_decodes);
  plan.copies = std::exchange(copies_, {});
  ++num_plans_;
  ++num_in_progress_;
  return true;
}

void BatchScheduler::accept(Sequence& sequence, int32_t token, float logprob) {
  if (sequence.has_finished) return;
  const auto index = static_cast<int32_t>(sequence.tokens.size());
  const PolicyVersion version = versions_.of(sequence.request.key());
  if (!std::isfinite(logprob)) {
    return end_early(
        sequence, FinishReason::kFailed,
        fmt::format("the logits of its token {} are NaN or infinite, under the weights of "
                    "version {}",
                    index, version));
  }
  if (sequence.publishes && sequence.prefill == nullptr)
    publish(sequence.blocks, sequence.chain, sequence, sequence.size());
  sequence.tokens.push_back(token);
  sequence.logprobs.push_back(logprob);
  if (sequence.processor != nullptr) sequence.processor->take(token);
  if (sequence.spans.empty() || sequence.spans.back().version != version)
    sequence.spans.push_back({version, index, index});
  sequence.spans.back().end = index + 1;
  ++totals_.num_decode_tokens;
  const auto end = sequence.stop.take(token, sequence.request.sampling, limits_.eos_ids);
  sequence.ended = end.has_value();
  sequence.reason = end.value_or(FinishReason::kLength);
  // Kept sets over the limit cannot be trained on, so the sequence ends now.
  if (sequence.kept.size() > kKeptBytesMax)
    end_early(
        sequence, FinishReason::kRefused,
        fmt::format("the kept sets of {} tokens have {} bytes, at most {} are sent; a smaller "
                    "top_p or a larger min_p keeps fewer tokens",
                    sequence.tokens.size(), sequence.kept.size(), kKeptBytesMax));
}

void BatchScheduler::end_early(Sequence& sequence, FinishReason reason, std::string detail) {
  sequence.detail = std::move(detail);
  sequence.ended = true;
  sequence.reason = reason;
  sequence.kept.clear();
  sequence.top_logprobs.resize(sequence.tokens.size() *
                               static_cast<size_t>(sequence.request.sampling.num_top_logprobs));
  if (reason == FinishReason::kFailed) withdraw(sequence);
}

void BatchScheduler::withdraw(const Sequence& sequence) {
  const PrefillTask* prefill = sequence.prefill;
  for (const int32_t block : prefill == nullptr ? sequence.blocks : prefill->blocks)
    pool_.withdraw(block);
}

void BatchScheduler::fail_step(const StepPlan& plan, const std::string& why) {
  preempt_readers(plan);
  for (const auto& sample : plan.samples)
    if (sample.sequence->prefill == nullptr && !sample.sequence->has_finished)
      end_early(*sample.sequence, FinishReason::kFailed, why);
  for (PrefillTask* prefill : plan.prefills) {
    for (Sequence* sequence : prefill->waiting) end_early(*sequence, FinishReason::kFailed, why);
    // These are kHeld like those that end with their first token; take_over() finishes them.
    prefill->num_computed = prefill->num_tokens;
    prefill->num_sampled = prefill->waiting.size();
    prefill->prompt_logprobs.clear();
  }
  finish_step();
}

void BatchScheduler::finish_step() {
  --num_in_progress_;
  std::erase_if(left_, [](LeftSequence& one) { return --one.num_steps == 0; });
  for (size_t i = 0; i < running_.size();) {
    Sequence& sequence = *running_[i];
    if (sequence.ended)
      finish(sequence, sequence.reason, std::move(sequence.detail));
    else
      ++i;
  }
  size_t kept = 0;
  for (auto& prefill : prefilling_) {
    prefill->last_row = -1;
    if (prefill->is_complete()) {
      finish_prefill(*prefill);
      if (prefill->waiting.empty()) continue;
      // The step can sample no more tokens, so the last token is computed again for the rest.
      --prefill->num_computed;
      prefill->has_shared_end = prefill->num_tokens % limits_.options.block_size == 0;
    }
    std::swap(prefilling_[kept++], prefill);
  }
  prefilling_.resize(kept);
}

/// The sequences of `prefill` that got their token become held, or continue to run.
void BatchScheduler::finish_prefill(PrefillTask& prefill) {
  const TenantSlot tenant = prefill.first().request.tenant;
  std::vector<Sequence*> sampled(
      prefill.waiting.begin(),
      prefill.waiting.begin() + static_cast<std::ptrdiff_t>(prefill.num_sampled));
  prefill.waiting.erase(prefill.waiting.begin(),
                        prefill.waiting.begin() + static_cast<std::ptrdiff_t>(sampled.size()));
  prefill.num_sampled = 0;
  for (Sequence* sequence : sampled) {
    sequence->prefill = nullptr;
    --num_prefilling_;
    if (sequence->needs_prompt_logprobs()) sequence->prompt_logprobs = prefill.prompt_logprobs;
    assign_blocks(prefill, *sequence, prefill.waiting.empty() && sequence == sampled.back());
    if (sequence->blocks.empty()) give_slot_back(*sequence);
    sequence->state = Sequence::State::kHeld;
    held_.push_back(sequence);
    if (!sequence->was_taken_over)
      prefilled_.push_back({sequence->request.id, sequence->num_cached_tokens});
    else
      CHECK(take_over(sequence->request.id).ok(), "it was held");
  }
  if (prefill.waiting.empty()) release(prefill.blocks, tenant);
}

void BatchScheduler::finish(Sequence& sequence, FinishReason reason, std::string detail) {
  leave(sequence);
  give_slot_back(sequence);
  waiting_.leave(sequence.request.tenant);
  places_.want(sequence.request.tenant, -1);
  release(sequence.blocks, sequence.request.tenant);
  totals_.num_completed += is_complete(reason) ? 1U : 0U;
  totals_.num_failed += reason == FinishReason::kFailed ? 1U : 0U;
  FinishEvent event;
  event.id = sequence.request.id;
  event.reason = reason;
  event.was_prefilled = sequence.was_reported;
  event.detail = std::move(detail);
  event.tokens = std::move(sequence.tokens);
  event.logprobs = std::move(sequence.logprobs);
  event.spans = std::move(sequence.spans);
  event.kept = Blob(std::move(sequence.kept));
  event.top_logprobs = std::move(sequence.top_logprobs);
  event.prompt_logprobs = std::move(sequence.prompt_logprobs);
  event.num_cached_tokens = sequence.num_cached_tokens;
  const auto found = sequences_.find(event.id.value);
  finished_.push_back(std::move(event));
  sequence.has_finished = true;
  if (num_in_progress_ > 0) left_.push_back({std::move(found->second), num_in_progress_});
  sequences_.erase(found);
}

bool BatchScheduler::has_work() const {
  if (num_in_progress_ > 0 || !running_.empty() || !prefilling_.empty() || slots_.coming() ||
      can_admit())
    return true;
  const Sequence* first = first_without_slot();
  return first != nullptr && slot_for(*first) != AdapterSlots::kNone;
}

/// Preempted sequences are not counted against max_waiting.
int32_t BatchScheduler::num_queued() const {
  return count_of(waiting_, [](const Sequence* one) { return !one->began; });
}

EngineState BatchScheduler::state() const {
  EngineState state = totals_;
  // A sequence that was taken over counts as running, also while it waits after a preemption.
  int32_t num_preempted = count_of(waiting_, was_taken_over);
  for (const auto& prefill : prefilling_)
    num_preempted += static_cast<int32_t>(std::ranges::count_if(prefill->waiting, was_taken_over));
  state.num_waiting = static_cast<int32_t>(waiting_.size()) + num_prefilling_ - num_preempted;
  state.num_running = static_cast<int32_t>(running_.size()) + num_preempted;
  state.num_held = static_cast<int32_t>(held_.size());
  state.num_free_blocks = pool_.num_free();
  state.num_blocks = limits_.options.kv_blocks;
  state.num_room = std::max(limits_.options.max_waiting - num_queued(), 0);
  state.num_evicted_blocks = pool_.num_evicted();
  state.num_adapter_loads = slots_.num_loads();
  state.num_adapter_evictions = slots_.num_evictions();
  state.versions = versions_;
  return state;
}

}  // namespace primerl
