#include "kernels/engine/batch_scheduler.h"

#include <algorithm>
#include <utility>

namespace primerl {
namespace {

bool holds(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

void drop(std::vector<Sequence*>& list, const Sequence* sequence) {
  list.erase(std::remove(list.begin(), list.end(), sequence), list.end());
}

}  // namespace

BatchScheduler::BatchScheduler(SchedulerLimits limits) : limits_(std::move(limits)) {
  for (int32_t block = limits_.options.kv_blocks; block-- > 0;) free_blocks_.push_back(block);
}

Status BatchScheduler::submit(SequenceRequest request) {
  const auto& options = limits_.options;
  RETURN_IF_ERROR(validate(request.sampling));
  if (request.prompt_tokens.empty()) return error(Code::kInvalid, "the prompt has no tokens");
  for (const int32_t token : request.prompt_tokens)
    if (token < 0 || token >= limits_.vocab_size)
      return error(Code::kInvalid, "prompt token {} is outside the vocabulary of {}", token,
                   limits_.vocab_size);
  const int64_t total =
      static_cast<int64_t>(request.prompt_tokens.size()) + request.sampling.max_tokens;
  if (total > options.max_sequence_tokens)
    return error(Code::kInvalid,
                 "{} prompt tokens and max_tokens {} are more than the {} a sequence may have",
                 request.prompt_tokens.size(), request.sampling.max_tokens,
                 options.max_sequence_tokens);
  if (total > static_cast<int64_t>(options.kv_blocks) * options.block_size)
    return error(Code::kInvalid, "{} tokens never fit {} KV blocks of {} tokens", total,
                 options.kv_blocks, options.block_size)
        .note("give the engine more kv_blocks");
  if (sequences_.contains(request.id.value))
    return error(Code::kExists, "sequence {} is already here", request.id.value);
  if (static_cast<int32_t>(waiting_.size()) >= options.max_waiting)
    return error(Code::kExhausted, "{} prompts are waiting, the limit of max_waiting",
                 waiting_.size());
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  waiting_.push_back(sequence.get());
  const auto id = sequence->request.id.value;
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
    finish(sequence, sequence.reason);
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
      drop(prefilling_, &sequence);
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

int32_t BatchScheduler::blocks_needed(const Sequence& sequence) const {
  const int32_t tokens = sequence.num_prompt_tokens() + sequence.request.sampling.max_tokens;
  return (tokens + limits_.options.block_size - 1) / limits_.options.block_size;
}

bool BatchScheduler::can_admit() const {
  const auto admitted = static_cast<int32_t>(prefilling_.size() + running_.size()) + num_held_;
  return !waiting_.empty() && admitted < limits_.options.max_running &&
         blocks_needed(*waiting_.front()) <= static_cast<int32_t>(free_blocks_.size());
}

void BatchScheduler::admit() {
  Sequence& sequence = *waiting_.front();
  waiting_.pop_front();
  const auto count = static_cast<size_t>(blocks_needed(sequence));
  const int32_t block_size = limits_.options.block_size;
  sequence.blocks.assign(free_blocks_.end() - static_cast<std::ptrdiff_t>(count),
                         free_blocks_.end());
  free_blocks_.resize(free_blocks_.size() - count);
  sequence.cache_rows.reserve(count * static_cast<size_t>(block_size));
  for (const int32_t block : sequence.blocks)
    for (int32_t i = 0; i < block_size; ++i) sequence.cache_rows.push_back(block * block_size + i);
  const auto max_tokens = static_cast<size_t>(sequence.request.sampling.max_tokens);
  sequence.tokens.reserve(max_tokens);
  sequence.logprobs.reserve(max_tokens);
  sequence.state = Sequence::State::kPrefilling;
  prefilling_.push_back(&sequence);
}

void BatchScheduler::add_span(StepPlan& plan, Sequence& sequence, int32_t num_rows) {
  RowBatch& rows = plan.rows;
  const int32_t begin = sequence.num_computed, end = begin + num_rows;
  rows.spans.push_back({static_cast<int32_t>(rows.num_rows()), num_rows, begin,
                        static_cast<int32_t>(rows.kv_rows.size())});
  rows.kv_rows.insert(rows.kv_rows.end(), sequence.cache_rows.begin(),
                      sequence.cache_rows.begin() + end);
  const int32_t num_prompt_tokens = sequence.num_prompt_tokens();
  for (int32_t i = begin; i < end; ++i) {
    rows.tokens.push_back(i < num_prompt_tokens
                              ? sequence.request.prompt_tokens[static_cast<size_t>(i)]
                              : sequence.tokens[static_cast<size_t>(i - num_prompt_tokens)]);
    rows.positions.push_back(i);
    rows.cache_rows.push_back(sequence.cache_rows[static_cast<size_t>(i)]);
  }
  sequence.num_computed = end;
  if (end < sequence.num_tokens()) return;
  plan.samples.push_back({static_cast<int32_t>(rows.num_rows()) - 1, &sequence});
}

bool BatchScheduler::plan(StepPlan& plan) {
  plan.rows.clear();
  plan.samples.clear();
  int32_t budget = limits_.options.max_batched_tokens;
  for (Sequence* sequence : running_) {
    if (budget == 0) break;
    add_span(plan, *sequence, 1);
    --budget;
  }
  for (size_t i = 0; budget > 0; ++i) {
    if (i == prefilling_.size()) {
      if (!can_admit()) break;
      admit();
    }
    Sequence& sequence = *prefilling_[i];
    const int32_t chunk = std::min(budget, sequence.num_prompt_tokens() - sequence.num_computed);
    add_span(plan, sequence, chunk);
    num_prefill_tokens_ += static_cast<uint64_t>(chunk);
    budget -= chunk;
  }
  return plan.rows.num_rows() > 0;
}

void BatchScheduler::accept(Sequence& sequence, int32_t token, float logprob,
                            PolicyVersion version) {
  const auto& sampling = sequence.request.sampling;
  const auto index = static_cast<int32_t>(sequence.tokens.size());
  sequence.tokens.push_back(token);
  sequence.logprobs.push_back(logprob);
  if (sequence.spans.empty() || sequence.spans.back().version != version)
    sequence.spans.push_back({version, index, index});
  sequence.spans.back().end = index + 1;
  ++num_decode_tokens_;
  const bool stop =
      !sampling.ignore_eos && (holds(limits_.eos_ids, token) || holds(sampling.stop_ids, token));
  sequence.ended = stop || index + 1 == sampling.max_tokens;
  sequence.reason = stop ? FinishReason::kStop : FinishReason::kLength;
}

void BatchScheduler::finish_step() {
  size_t kept = 0;
  for (Sequence* sequence : running_) {
    if (sequence->ended) {
      finish(*sequence, sequence->reason);
    } else {
      running_[kept++] = sequence;
    }
  }
  running_.resize(kept);
  kept = 0;
  for (Sequence* sequence : prefilling_) {
    if (sequence->tokens.empty()) {
      prefilling_[kept++] = sequence;
      continue;
    }
    sequence->state = Sequence::State::kHeld;
    ++num_held_;
    prefilled_.push_back({sequence->request.id, 0});
  }
  prefilling_.resize(kept);
}

void BatchScheduler::finish(Sequence& sequence, FinishReason reason) {
  free_blocks_.insert(free_blocks_.end(), sequence.blocks.begin(), sequence.blocks.end());
  FinishEvent event;
  event.id = sequence.request.id;
  event.reason = reason;
  event.tokens = std::move(sequence.tokens);
  event.logprobs = std::move(sequence.logprobs);
  event.spans = std::move(sequence.spans);
  const uint64_t id = event.id.value;
  finished_.push_back(std::move(event));
  sequences_.erase(id);
}

bool BatchScheduler::has_work() const {
  return !running_.empty() || !prefilling_.empty() || can_admit();
}

EngineState BatchScheduler::state() const {
  EngineState state;
  state.num_waiting = static_cast<int32_t>(waiting_.size() + prefilling_.size());
  state.num_running = static_cast<int32_t>(running_.size());
  state.num_held = num_held_;
  state.num_free_blocks = static_cast<int32_t>(free_blocks_.size());
  state.num_blocks = limits_.options.kv_blocks;
  state.num_prefill_tokens = num_prefill_tokens_;
  state.num_decode_tokens = num_decode_tokens_;
  return state;
}

}  // namespace primerl
