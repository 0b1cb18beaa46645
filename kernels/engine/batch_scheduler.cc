#include "kernels/engine/batch_scheduler.h"

#include <algorithm>

#include "graph/base/random.h"
#include "kernels/engine/kept_sets.h"

namespace primerl {
namespace {

template <class T>
void drop(std::vector<T*>& list, const T* one) {
  list.erase(std::remove(list.begin(), list.end(), one), list.end());
}

uint64_t prompt_hash(const SequenceRequest& request) {
  const WeightsKey key = request.key();
  uint64_t hash = stable_hash(request.salt, mix(key.tenant.value, key.adapter.value));
  for (const int32_t token : request.prompt_tokens) hash = mix(hash, static_cast<uint64_t>(token));
  return hash;
}

}  // namespace

BatchScheduler::BatchScheduler(SchedulerLimits limits) : limits_(std::move(limits)) {
  for (int32_t block = limits_.options.kv_blocks; block-- > 0;) free_blocks_.push_back(block);
}

void BatchScheduler::set_version(WeightsKey key, PolicyVersion version) {
  CHECK(versions_.set(key, version), "an engine of more keys than it may hold");
}

Status BatchScheduler::submit(SequenceRequest request) {
  const auto& options = limits_.options;
  RETURN_IF_ERROR(validate(request.sampling));
  if (request.prompt_tokens.empty()) return error(Code::kInvalid, "the prompt has no tokens");
  for (const int32_t token : request.prompt_tokens)
    if (token < 0 || token >= limits_.vocab_size)
      return error(Code::kInvalid, "prompt token {} is outside the vocabulary of {}", token,
                   limits_.vocab_size);
  const size_t prompt = request.prompt_tokens.size();
  const int64_t total = static_cast<int64_t>(prompt) + request.sampling.max_tokens;
  if (total > options.max_sequence_tokens)
    return error(Code::kInvalid, "{} prompt tokens and max_tokens {} are more than {}", prompt,
                 request.sampling.max_tokens, options.max_sequence_tokens)
        .note("a sequence holds max_sequence_tokens, prompt and completion together");
  if (total > static_cast<int64_t>(options.kv_blocks) * options.block_size)
    return error(Code::kInvalid, "{} tokens never fit {} KV blocks of {} tokens", total,
                 options.kv_blocks, options.block_size)
        .note("give the engine more kv_blocks");
  if (sequences_.contains(request.id.value))
    return error(Code::kExists, "sequence {} is already here", request.id.value);
  ASSIGN_OR_RETURN(StopRule stop, StopRule::make(request.sampling, limits_.tokenizer));
  if (static_cast<int32_t>(waiting_.size()) >= options.max_waiting)
    return error(Code::kExhausted, "{} prompts are waiting, the limit of max_waiting",
                 waiting_.size());
  auto sequence = std::make_unique<Sequence>();
  sequence->stop = std::move(stop);
  sequence->prompt_hash = prompt_hash(request);
  sequence->request = std::move(request);
  waiting_.push_back(sequence.get());
  const uint64_t id = sequence->request.id.value;
  sequences_.emplace(id, std::move(sequence));
  return ok();
}

Status BatchScheduler::take_over(SequenceId id) {
  const auto found = sequences_.find(id.value);
  if (found == sequences_.end() || found->second->state != Sequence::State::kHeld)
    return error(Code::kNotFound, "no prefilled sequence {}", id.value);
  Sequence& sequence = *found->second;
  --num_held_;
  sequence.state = Sequence::State::kRunning;
  if (sequence.ended) {
    finish(sequence, sequence.reason, std::move(sequence.detail));
  } else {
    running_.push_back(&sequence);
  }
  return ok();
}

void BatchScheduler::abort(SequenceId id) {
  const auto found = sequences_.find(id.value);
  if (found == sequences_.end()) return;
  Sequence& sequence = *found->second;
  switch (sequence.state) {
    case Sequence::State::kWaiting:
      waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &sequence));
      break;
    case Sequence::State::kPrefilling:
      drop(sequence.prompt->waiting, &sequence);
      --num_prefilling_;
      break;
    case Sequence::State::kHeld:
      --num_held_;
      break;
    case Sequence::State::kRunning:
      drop(running_, &sequence);
      break;
  }
  // Its prefill may have ended without anybody having asked yet.
  std::erase_if(prefilled_, [id](const PrefillEvent& event) { return event.id == id; });
  finish(sequence, FinishReason::kCancelled);
}

void BatchScheduler::expire(SequenceId id) {
  const auto found = sequences_.find(id.value);
  if (found == sequences_.end() || found->second->state != Sequence::State::kHeld ||
      !found->second->was_told)
    return;
  --num_held_;
  finish(*found->second, FinishReason::kRefused, std::string(kLeaseEnded));
}

std::vector<PrefillEvent> BatchScheduler::take_prefilled() {
  for (const PrefillEvent& event : prefilled_)
    if (const auto found = sequences_.find(event.id.value); found != sequences_.end())
      found->second->was_told = true;
  return std::exchange(prefilled_, {});
}

int32_t BatchScheduler::blocks_for(int64_t num_tokens) const {
  const int64_t size = limits_.options.block_size;
  return static_cast<int32_t>((num_tokens + size - 1) / size);
}

Prompt* BatchScheduler::shared_prompt(const Sequence& sequence) const {
  const SequenceRequest& request = sequence.request;
  const PolicyVersion version = versions_.of(request.key());
  for (const auto& prompt : prompts_)
    if (prompt->hash == sequence.prompt_hash && prompt->version == version &&
        prompt->key == request.key() && prompt->salt == request.salt &&
        prompt->tokens == request.prompt_tokens)
      return prompt.get();
  return nullptr;
}

bool BatchScheduler::can_admit() const {
  const int32_t admitted = num_prefilling_ + num_held_ + static_cast<int32_t>(running_.size());
  if (waiting_.empty() || admitted >= limits_.options.max_running) return false;
  const SequenceRequest& request = waiting_.front()->request;
  int64_t tokens = request.sampling.max_tokens;
  if (shared_prompt(*waiting_.front()) == nullptr)
    tokens += static_cast<int64_t>(request.prompt_tokens.size());
  return blocks_for(tokens) <= static_cast<int32_t>(free_blocks_.size());
}

std::vector<int32_t> BatchScheduler::take_blocks(int32_t count) {
  const auto first = free_blocks_.end() - count;
  std::vector<int32_t> taken(first, free_blocks_.end());
  free_blocks_.erase(first, free_blocks_.end());
  return taken;
}

Prompt& BatchScheduler::new_prompt(Sequence& sequence) {
  const SequenceRequest& request = sequence.request;
  Prompt& prompt = *prompts_.emplace_back(std::make_unique<Prompt>());
  prompt.hash = sequence.prompt_hash;
  prompt.key = request.key();
  prompt.salt = request.salt;
  prompt.tokens = request.prompt_tokens;
  prompt.version = versions_.of(prompt.key);
  prompt.blocks = take_blocks(blocks_for(prompt.size()));
  const int32_t block_size = limits_.options.block_size;
  for (const int32_t block : prompt.blocks)
    for (int32_t i = 0; i < block_size; ++i) prompt.cache_rows.push_back(block * block_size + i);
  // What its last block has left belongs to the sequence that came first.
  const auto end = prompt.cache_rows.begin() + prompt.size();
  sequence.cache_rows.assign(end, prompt.cache_rows.end());
  prompt.cache_rows.erase(end, prompt.cache_rows.end());
  return prompt;
}

void BatchScheduler::reserve_rows(Sequence& sequence) {
  const auto max_tokens = static_cast<size_t>(sequence.request.sampling.max_tokens);
  const int32_t block_size = limits_.options.block_size;
  if (sequence.cache_rows.size() < max_tokens) {
    const size_t missing = max_tokens - sequence.cache_rows.size();
    sequence.blocks = take_blocks(blocks_for(static_cast<int64_t>(missing)));
    for (const int32_t block : sequence.blocks)
      for (int32_t i = 0; i < block_size; ++i)
        sequence.cache_rows.push_back(block * block_size + i);
  }
  sequence.tokens.reserve(max_tokens);
  sequence.logprobs.reserve(max_tokens);
}

void BatchScheduler::admit(StepPlan& plan) {
  Sequence& sequence = *waiting_.front();
  waiting_.pop_front();
  Prompt* prompt = shared_prompt(sequence);
  if (prompt == nullptr) {
    prompt = &new_prompt(sequence);
    prefilling_.push_back(prompt);
  } else {
    sequence.num_cached_tokens = prompt->size() - 1;
    if (prompt->last_row < 0 && prompt->is_complete()) {
      // Only the last token again, for what follows it; the same weights write the same key.
      --prompt->num_computed;
      prefilling_.push_back(prompt);
    }
  }
  reserve_rows(sequence);
  sequence.prompt = prompt;
  ++prompt->num_users;
  prompt->waiting.push_back(&sequence);
  if (prompt->last_row >= 0) add_samples(plan, *prompt);
  sequence.state = Sequence::State::kPrefilling;
  ++num_prefilling_;
}

int32_t BatchScheduler::samples_left(const StepPlan& plan) const {
  return limits_.options.max_batched_tokens - static_cast<int32_t>(plan.samples.size());
}

void BatchScheduler::add_samples(StepPlan& plan, Prompt& prompt) {
  while (prompt.num_sampled < prompt.waiting.size() && samples_left(plan) > 0)
    plan.samples.push_back({prompt.last_row, prompt.waiting[prompt.num_sampled++]});
}

void BatchScheduler::add_decode(StepPlan& plan, Sequence& sequence) {
  RowBatch& rows = plan.rows;
  const Prompt& prompt = *sequence.prompt;
  const auto last = static_cast<int32_t>(sequence.tokens.size()) - 1;
  const auto row = static_cast<int32_t>(rows.num_rows());
  const auto own = sequence.cache_rows.begin();
  rows.spans.push_back({row, 1, prompt.size() + last, static_cast<int32_t>(rows.kv_rows.size())});
  rows.kv_rows.insert(rows.kv_rows.end(), prompt.cache_rows.begin(), prompt.cache_rows.end());
  rows.kv_rows.insert(rows.kv_rows.end(), own, own + last + 1);
  rows.tokens.push_back(sequence.tokens.back());
  rows.positions.push_back(prompt.size() + last);
  rows.cache_rows.push_back(own[last]);
  plan.samples.push_back({row, &sequence});
}

void BatchScheduler::add_chunk(StepPlan& plan, Prompt& prompt, int32_t num_rows) {
  RowBatch& rows = plan.rows;
  const int32_t begin = prompt.num_computed, end = begin + num_rows;
  rows.spans.push_back({static_cast<int32_t>(rows.num_rows()), num_rows, begin,
                        static_cast<int32_t>(rows.kv_rows.size())});
  const auto cached = prompt.cache_rows.begin();
  rows.kv_rows.insert(rows.kv_rows.end(), cached, cached + end);
  rows.tokens.insert(rows.tokens.end(), prompt.tokens.begin() + begin, prompt.tokens.begin() + end);
  rows.cache_rows.insert(rows.cache_rows.end(), cached + begin, cached + end);
  for (int32_t i = begin; i < end; ++i) rows.positions.push_back(i);
  prompt.num_computed = end;
  num_prefill_tokens_ += static_cast<uint64_t>(num_rows);
  if (!prompt.is_complete()) return;
  prompt.last_row = static_cast<int32_t>(rows.num_rows()) - 1;
  add_samples(plan, prompt);
}

bool BatchScheduler::plan(StepPlan& plan) {
  plan.rows.clear();
  plan.samples.clear();
  int32_t budget = limits_.options.max_batched_tokens;
  for (Sequence* sequence : running_) {
    if (budget == 0) break;
    add_decode(plan, *sequence);
    --budget;
  }
  size_t next = 0;
  while (budget > 0) {
    if (next == prefilling_.size()) {
      if (!can_admit()) break;
      admit(plan);
      continue;
    }
    Prompt& prompt = *prefilling_[next++];
    int32_t left = prompt.size() - prompt.num_computed;
    // Its last token is computed when somebody can be sampled from it.
    if (samples_left(plan) == 0) --left;
    const int32_t chunk = std::min(budget, left);
    if (chunk == 0) continue;
    add_chunk(plan, prompt, chunk);
    budget -= chunk;
  }
  return plan.rows.num_rows() > 0;
}

void BatchScheduler::accept(Sequence& sequence, int32_t token, float logprob) {
  const auto index = static_cast<int32_t>(sequence.tokens.size());
  sequence.tokens.push_back(token);
  sequence.logprobs.push_back(logprob);
  const PolicyVersion version = versions_.of(sequence.request.key());
  if (sequence.spans.empty() || sequence.spans.back().version != version)
    sequence.spans.push_back({version, index, index});
  sequence.spans.back().end = index + 1;
  ++num_decode_tokens_;
  const auto end = sequence.stop.take(token, sequence.request.sampling, limits_.eos_ids);
  sequence.ended = end.has_value();
  sequence.reason = end.value_or(FinishReason::kLength);
  if (sequence.kept.size() > kKeptBytesMax) refuse(sequence);
}

/// What cannot be trained on is not generated to its end.
void BatchScheduler::refuse(Sequence& sequence) {
  sequence.detail = fmt::format(
      "the kept sets of {} tokens have {} bytes, at most {} are sent; a smaller top_p or a larger "
      "min_p keeps fewer tokens",
      sequence.tokens.size(), sequence.kept.size(), kKeptBytesMax);
  sequence.ended = true;
  sequence.reason = FinishReason::kRefused;
  sequence.kept.clear();
}

void BatchScheduler::finish_step() {
  size_t kept = 0;
  for (Sequence* sequence : running_) {
    if (sequence->ended) {
      finish(*sequence, sequence->reason, std::move(sequence->detail));
    } else {
      running_[kept++] = sequence;
    }
  }
  running_.resize(kept);
  kept = 0;
  for (Prompt* prompt : prefilling_) {
    prompt->last_row = -1;
    if (prompt->is_complete()) {
      const auto first = prompt->waiting.begin();
      const auto last = first + static_cast<std::ptrdiff_t>(std::exchange(prompt->num_sampled, 0));
      for (auto one = first; one != last; ++one) {
        (*one)->state = Sequence::State::kHeld;
        --num_prefilling_;
        ++num_held_;
        prefilled_.push_back({(*one)->request.id, (*one)->num_cached_tokens});
      }
      prompt->waiting.erase(first, last);
      if (prompt->waiting.empty()) continue;
      // The step could sample no more: the rest gets its last token computed again.
      --prompt->num_computed;
    }
    prefilling_[kept++] = prompt;
  }
  prefilling_.resize(kept);
}

void BatchScheduler::finish(Sequence& sequence, FinishReason reason, std::string detail) {
  free_blocks_.insert(free_blocks_.end(), sequence.blocks.begin(), sequence.blocks.end());
  if (sequence.prompt != nullptr && --sequence.prompt->num_users == 0) release(*sequence.prompt);
  FinishEvent event;
  event.id = sequence.request.id;
  event.reason = reason;
  event.was_prefilled = sequence.was_told;
  event.detail = std::move(detail);
  event.tokens = std::move(sequence.tokens);
  event.logprobs = std::move(sequence.logprobs);
  event.spans = std::move(sequence.spans);
  event.kept = Blob(std::move(sequence.kept));
  event.num_cached_tokens = sequence.num_cached_tokens;
  const uint64_t id = event.id.value;
  finished_.push_back(std::move(event));
  sequences_.erase(id);
}

void BatchScheduler::release(Prompt& prompt) {
  free_blocks_.insert(free_blocks_.end(), prompt.blocks.begin(), prompt.blocks.end());
  drop(prefilling_, &prompt);
  std::erase_if(prompts_, [&prompt](const auto& one) { return one.get() == &prompt; });
}

bool BatchScheduler::has_work() const {
  return !running_.empty() || !prefilling_.empty() || can_admit();
}

EngineState BatchScheduler::state() const {
  EngineState state;
  state.num_waiting = static_cast<int32_t>(waiting_.size()) + num_prefilling_;
  state.num_running = static_cast<int32_t>(running_.size());
  state.num_held = num_held_;
  state.num_free_blocks = static_cast<int32_t>(free_blocks_.size());
  state.num_blocks = limits_.options.kv_blocks;
  state.num_room = limits_.options.max_waiting - static_cast<int32_t>(waiting_.size());
  state.num_prefill_tokens = num_prefill_tokens_;
  state.num_decode_tokens = num_decode_tokens_;
  state.versions = versions_;
  return state;
}

}  // namespace primerl
