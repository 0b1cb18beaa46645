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

}  // namespace

BatchScheduler::BatchScheduler(SchedulerLimits limits)
    : table_(std::make_unique<SequenceTable>(std::move(limits))) {}

void BatchScheduler::set_version(WeightsKey key, PolicyVersion version) {
  CHECK(table_->versions.set(key, version), "an engine has more keys than its limit");
  if (ended_.erase(key.tenant) > 0) {
    table_->run_claims.begin(key.tenant);
    table_->blocks.claims.begin(key.tenant);
  }
  table_->waiting.visit([](Sequence& sequence) { sequence.chains.clear(); });
  for (const auto& prefill : table_->prefilling)
    if (prefill->is_recomputed && prefill->first().request.key() == key) prefill->publishes = false;
}

void BatchScheduler::set_share(TenantSlot tenant, double share) {
  table_->waiting.set_share(tenant, share);
  table_->run_claims.set_share(tenant, share);
  table_->blocks.claims.set_share(tenant, share);
}

void BatchScheduler::drop(WeightsKey key, std::optional<int32_t> adapter) {
  CHECK(table_->num_in_progress == 0, "a key was dropped while a step was in progress");
  std::vector<SequenceId> left;
  bool has_others = false;
  for (const auto& [id, sequence] : table_->sequences) {
    if (sequence->request.key() == key)
      left.push_back(sequence->request.id);
    else
      has_others = has_others || sequence->request.tenant == key.tenant;
  }
  std::ranges::sort(left);
  for (const SequenceId id : left) abort(id);
  const bool was_known = !table_->versions.of(key).is_none();
  table_->versions.erase(key);
  table_->blocks.pool.drop(key);
  if (adapter) table_->slots.remove(*adapter);
  for (const KeyedVersion& one : table_->versions.list())
    has_others = has_others || one.key.tenant == key.tenant;
  if (!was_known || has_others) return;
  table_->waiting.forget(key.tenant);
  table_->run_claims.end(key.tenant);
  table_->blocks.claims.end(key.tenant);
  ended_.insert(key.tenant);
}

Status BatchScheduler::submit(SequenceRequest request, int32_t adapter) {
  const auto& options = table_->limits.options;
  RETURN_IF_ERROR(validate(request.sampling));
  RETURN_IF_ERROR(check_salt(request.salt));
  if (request.prompt_tokens.empty()) return error(Code::kInvalid, "the prompt has no tokens");
  for (const int32_t token : request.prompt_tokens)
    if (token < 0 || token >= table_->limits.vocab_size)
      return error(Code::kInvalid, "prompt token {} is outside the vocabulary of {}", token,
                   table_->limits.vocab_size);
  for (const int32_t id : request.sampling.stop_ids)
    if (id < 0 || id >= table_->limits.vocab_size)
      return error(Code::kInvalid, "stop id {} is outside the vocabulary", id)
          .note(fmt::format("tokens of this model are 0 to {}", table_->limits.vocab_size - 1));
  if (request.sampling.num_prompt_top_logprobs > table_->limits.vocab_size)
    return error(Code::kInvalid,
                 "num_prompt_top_logprobs {} is more than the {} tokens of the model",
                 request.sampling.num_prompt_top_logprobs, table_->limits.vocab_size);
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
  if (table_->sequences.contains(request.id.value))
    return error(Code::kExists, "sequence {} was already submitted", request.id.value);
  ASSIGN_OR_RETURN(StopRule stop, StopRule::make(request.sampling, table_->limits.tokenizer));
  ASSIGN_OR_RETURN(auto processor,
                   LogitsProcessor::make(request.sampling, request.prompt_tokens,
                                         table_->limits.eos_ids, table_->limits.vocab_size));
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
  table_->waiting.enter(sequence->request.tenant);
  table_->run_claims.want(sequence->request.tenant, 1);
  table_->enqueue(*sequence);
  const uint64_t id = sequence->request.id.value;
  table_->sequences.emplace(id, std::move(sequence));
  return ok();
}

Status BatchScheduler::take_over(SequenceId id) {
  const auto found = table_->sequences.find(id.value);
  if (found == table_->sequences.end() || found->second->state != Sequence::State::kHeld)
    return error(Code::kNotFound, "no prefilled sequence {}", id.value);
  Sequence& sequence = *found->second;
  sequence.was_taken_over = true;
  if (sequence.ended) {
    finish(sequence, sequence.reason, std::move(sequence.detail));
    return ok();
  }
  table_->leave(sequence);
  if (sequence.blocks.empty())
    table_->enqueue(sequence);
  else
    table_->run(sequence);
  return ok();
}

void BatchScheduler::abort(SequenceId id) {
  const auto found = table_->sequences.find(id.value);
  if (found == table_->sequences.end()) return;
  // The prefill may have ended while its event was not read yet.
  std::erase_if(prefilled_, [id](const PrefillEvent& event) { return event.id == id; });
  // No row has checked yet that the keys of this unfinished prompt are finite, and now none will.
  if (const PrefillTask* prefill = found->second->prefill;
      prefill != nullptr && prefill->waiting.size() == 1)
    for (size_t i = static_cast<size_t>(prefill->num_found); i < prefill->blocks.size(); ++i)
      table_->blocks.pool.withdraw(prefill->blocks[i]);
  finish(*found->second, FinishReason::kCancelled);
}

void BatchScheduler::expire(SequenceId id) {
  const auto found = table_->sequences.find(id.value);
  if (found == table_->sequences.end() || found->second->state != Sequence::State::kHeld ||
      !found->second->was_reported)
    return;
  finish(*found->second, FinishReason::kRefused, std::string(kLeaseEnded));
}

KvEvents BatchScheduler::take_kv_events() {
  return table_->blocks.events == nullptr ? KvEvents() : table_->blocks.events->take();
}

std::vector<PrefillEvent> BatchScheduler::take_prefilled() {
  for (const PrefillEvent& event : prefilled_)
    if (const auto found = table_->sequences.find(event.id.value); found != table_->sequences.end())
      found->second->was_reported = true;
  return std::exchange(prefilled_, {});
}

bool BatchScheduler::plan(StepPlan& plan) {
  CHECK(table_->num_in_progress == 0, "plan() was called before the previous step was finished");
  const EngineOptions& options = table_->limits.options;
  builder_.begin(plan);
  int32_t budget = options.max_batched_tokens;
  const size_t num_decodes = preemption_.grow_running(budget);
  for (size_t i = 0; i < num_decodes; ++i) builder_.add_decode(plan, *table_->running[i]);
  budget -= static_cast<int32_t>(num_decodes);
  if (!plan.samples.empty() && options.max_prefill_tokens > 0)
    budget = std::min(budget, options.max_prefill_tokens);
  size_t next = 0;
  while (budget > 0) {
    if (next == table_->prefilling.size()) {
      if (table_->has_preempted || !admission_.can_admit()) break;
      if (PrefillTask& prefill = admission_.admit(); prefill.last_row >= 0)
        builder_.add_samples(plan, prefill);
      continue;
    }
    PrefillTask& prefill = *table_->prefilling[next++];
    int32_t left = prefill.num_tokens - prefill.num_computed;
    // The last token is computed in a step that can also sample from it.
    if (builder_.samples_left(plan) == 0) --left;
    const int32_t chunk = std::min(budget, left);
    if (chunk == 0 || !table_->copy_shared_last_block(prefill)) continue;
    builder_.add_chunk(plan, prefill, chunk);
    budget -= chunk;
  }
  if (plan.rows.num_rows() == 0) return false;
  builder_.group_by_adapter(plan, num_decodes);
  plan.copies = std::exchange(table_->copies, {});
  ++table_->num_plans;
  ++table_->num_in_progress;
  return true;
}

bool BatchScheduler::plan_ahead(StepPlan& plan) {
  CHECK(table_->num_in_progress == 1, "plan_ahead() needs exactly one step in progress");
  if (!table_->prefilling.empty() || !table_->copies.empty() || admission_.can_admit())
    return false;
  if (std::ranges::none_of(table_->running,
                           [this](const auto* one) { return table_->samples_another(*one); }) ||
      !preemption_.can_grow_ahead())
    return false;
  builder_.begin(plan);
  int32_t budget = table_->limits.options.max_batched_tokens;
  for (size_t i = 0; i < table_->running.size() && budget > 0; ++i) {
    Sequence& sequence = *table_->running[i];
    if (!table_->samples_another(sequence)) continue;
    if (table_->needs_block(sequence))
      sequence.blocks.push_back(table_->blocks.take(sequence.request.tenant));
    builder_.add_decode(plan, sequence);
    --budget;
  }
  builder_.group_by_adapter(plan, plan.rows.spans.size());
  ++table_->num_plans;
  ++table_->num_in_progress;
  return true;
}

void BatchScheduler::accept(Sequence& sequence, int32_t token, float logprob, int32_t rank) {
  if (sequence.has_finished) return;
  const auto index = static_cast<int32_t>(sequence.tokens.size());
  const PolicyVersion version = table_->versions.of(sequence.request.key());
  if (!std::isfinite(logprob)) {
    return end_early(
        sequence, FinishReason::kFailed,
        fmt::format("the logits of its token {} are NaN or infinite, under the weights of "
                    "version {}",
                    index, version));
  }
  if (sequence.publishes && sequence.prefill == nullptr)
    table_->blocks.publish(sequence.blocks, sequence.chain, sequence, sequence.size());
  sequence.tokens.push_back(token);
  sequence.logprobs.push_back(logprob);
  if (rank > 0) sequence.ranks.push_back(rank);
  if (sequence.processor != nullptr) sequence.processor->take(token);
  if (sequence.spans.empty() || sequence.spans.back().version != version)
    sequence.spans.push_back({version, index, index});
  sequence.spans.back().end = index + 1;
  ++table_->totals.num_decode_tokens;
  const auto end = sequence.stop.take(token, sequence.request.sampling, table_->limits.eos_ids);
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
  if (reason == FinishReason::kFailed) table_->blocks.withdraw(sequence);
}

void BatchScheduler::fail_step(const StepPlan& plan, const std::string& why) {
  preemption_.preempt_readers(plan);
  for (const auto& sample : plan.samples)
    if (sample.sequence->prefill == nullptr && !sample.sequence->has_finished)
      end_early(*sample.sequence, FinishReason::kFailed, why);
  for (PrefillTask* prefill : plan.prefills) {
    for (Sequence* sequence : prefill->waiting) end_early(*sequence, FinishReason::kFailed, why);
    // These are kHeld like those that end with their first token; take_over() finishes them.
    prefill->num_computed = prefill->num_tokens;
    prefill->num_sampled = prefill->waiting.size();
    prefill->prompt_logprobs.clear();
    prefill->prompt_top_logprobs.clear();
  }
  finish_step();
}

void BatchScheduler::finish_step() {
  --table_->num_in_progress;
  std::erase_if(left_, [](LeftSequence& one) { return --one.num_steps == 0; });
  for (size_t i = 0; i < table_->running.size();) {
    Sequence& sequence = *table_->running[i];
    if (sequence.ended)
      finish(sequence, sequence.reason, std::move(sequence.detail));
    else
      ++i;
  }
  size_t kept = 0;
  for (auto& prefill : table_->prefilling) {
    prefill->last_row = -1;
    if (prefill->is_complete()) {
      finish_prefill(*prefill);
      if (prefill->waiting.empty()) continue;
      // The step can sample no more tokens, so the last token is computed again for the rest.
      --prefill->num_computed;
      prefill->has_shared_end = prefill->num_tokens % table_->limits.options.block_size == 0;
    }
    std::swap(table_->prefilling[kept++], prefill);
  }
  table_->prefilling.resize(kept);
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
    --table_->num_prefilling;
    if (sequence->num_prompt_top() > 0) sequence->prompt_top_logprobs = prefill.prompt_top_logprobs;
    if (sequence->needs_prompt_logprobs()) sequence->prompt_logprobs = prefill.prompt_logprobs;
    table_->assign_blocks(prefill, *sequence,
                          prefill.waiting.empty() && sequence == sampled.back());
    if (sequence->blocks.empty()) table_->give_slot_back(*sequence);
    sequence->state = Sequence::State::kHeld;
    table_->held.push_back(sequence);
    if (!sequence->was_taken_over)
      prefilled_.push_back({sequence->request.id, sequence->num_cached_tokens});
    else
      CHECK(take_over(sequence->request.id).ok(), "it was held");
  }
  if (prefill.waiting.empty()) table_->blocks.release(prefill.blocks, tenant);
}

void BatchScheduler::finish(Sequence& sequence, FinishReason reason, std::string detail) {
  table_->leave(sequence);
  table_->give_slot_back(sequence);
  table_->waiting.leave(sequence.request.tenant);
  table_->run_claims.want(sequence.request.tenant, -1);
  table_->blocks.release(sequence.blocks, sequence.request.tenant);
  table_->totals.num_completed += is_complete(reason) ? 1U : 0U;
  table_->totals.num_failed += reason == FinishReason::kFailed ? 1U : 0U;
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
  event.ranks = std::move(sequence.ranks);
  event.routed = std::move(sequence.routed);
  event.prompt_logprobs = std::move(sequence.prompt_logprobs);
  event.prompt_top_logprobs = std::move(sequence.prompt_top_logprobs);
  event.num_cached_tokens = sequence.num_cached_tokens;
  const auto found = table_->sequences.find(event.id.value);
  finished_.push_back(std::move(event));
  sequence.has_finished = true;
  if (table_->num_in_progress > 0)
    left_.push_back({std::move(found->second), table_->num_in_progress});
  table_->sequences.erase(found);
}

bool BatchScheduler::has_work() const {
  if (table_->num_in_progress > 0 || !table_->running.empty() || !table_->prefilling.empty() ||
      table_->slots.coming() || admission_.can_admit())
    return true;
  return admission_.can_load();
}

/// Preempted sequences are not counted against max_waiting.
int32_t BatchScheduler::num_queued() const {
  return count_of(table_->waiting, [](const Sequence* one) { return !one->began; });
}

EngineState BatchScheduler::state() const {
  EngineState state = table_->totals;
  // A sequence that was taken over counts as running, also while it waits after a preemption.
  int32_t num_preempted = count_of(table_->waiting, was_taken_over);
  for (const auto& prefill : table_->prefilling)
    num_preempted += static_cast<int32_t>(std::ranges::count_if(prefill->waiting, was_taken_over));
  state.num_waiting =
      static_cast<int32_t>(table_->waiting.size()) + table_->num_prefilling - num_preempted;
  state.num_running = static_cast<int32_t>(table_->running.size()) + num_preempted;
  state.num_held = static_cast<int32_t>(table_->held.size());
  state.num_free_blocks = table_->blocks.pool.num_free();
  state.num_blocks = table_->limits.options.kv_blocks;
  state.num_room = std::max(table_->limits.options.max_waiting - num_queued(), 0);
  state.num_evicted_blocks = table_->blocks.pool.num_evicted();
  state.num_adapter_loads = table_->slots.num_loads();
  state.num_adapter_evictions = table_->slots.num_evictions();
  state.versions = table_->versions;
  return state;
}

}  // namespace primerl
