#include "kernels/scripted/scripted_engine.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

#include "graph/base/random.h"
#include "kernels/engine/kept_sets.h"
#include "kernels/engine/stop_rule.h"
#include "kernels/scripted/device_fault.h"
#include "kernels/scripted/scripted_weights.h"

namespace primerl {
namespace {

// What a draw is for; the third part of its key.
constexpr uint64_t kLengthDraw = 1, kTokenDraw = 2, kLogprobDraw = 3, kKeptDraw = 4;
constexpr int32_t kKeptIds = 8;  // most of a kept set that top_k does not bound

enum class Phase { kWaiting, kPrefill, kHeld, kRunning };

struct Sequence {
  SequenceRequest request;
  Phase phase = Phase::kWaiting;
  uint64_t key = 0;           // of its draws
  int32_t num_blocks = 0;     // it will hold, or holds
  int32_t num_prefilled = 0;  // prompt tokens computed
  int32_t num_scripted = 0;   // new tokens until eos
  StopRule stop;
  bool was_told = false;  // its PrefillEvent was taken
  bool ended = false;     // the last token was sampled
  FinishEvent end;
  std::vector<std::byte> kept;  // kept_sets.h
};

class ScriptedEngine final : public Engine {
 public:
  ScriptedEngine(const ScriptedEngineOptions& options, std::shared_ptr<const Tokenizer> tokenizer)
      : options_(options),
        eos_ids_{options.eos_id},
        tokenizer_(std::move(tokenizer)),
        num_free_blocks_(options.kv_blocks) {}

  Status submit(SequenceRequest request) override;
  Status take_over(SequenceId id) override;
  void abort(SequenceId id) override;
  void expire(SequenceId id) override;
  Status step() override;
  bool has_work() const override;
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override;
  WeightManifest manifest() const override { return scripted_manifest(); }

  std::vector<PrefillEvent> take_prefilled() override {
    for (const PrefillEvent& event : prefilled_)
      if (const auto found = sequences_.find(event.id.value); found != sequences_.end())
        found->second.was_told = true;
    return std::exchange(prefilled_, {});
  }
  std::vector<FinishEvent> take_finished() override { return std::exchange(finished_, {}); }
  Duration take_cost() override { return std::exchange(cost_, Duration()); }
  EngineState state() const override;
  int32_t max_sequence_tokens() const override { return options_.max_sequence_tokens; }
  std::string describe() const override {
    const EngineState now = state();
    return fmt::format("{} running, {} waiting, {} held, {} of {} blocks free", now.num_running,
                       now.num_waiting, now.num_held, now.num_free_blocks, now.num_blocks);
  }

 private:
  Status check(const SequenceRequest& request) const;
  Status check_can_go_on(const SamplingParams& sampling) const;
  int32_t next_choice(int32_t token) const;
  int32_t scripted_length(uint64_t key) const;
  bool may_begin(const Sequence& sequence) const;
  int32_t decode(int32_t num_tokens_max);
  int32_t prefill(int32_t num_tokens_max);
  void sample(Sequence& sequence);
  void keep_some(Sequence& sequence, int32_t token);
  void finish(uint64_t id, FinishReason reason);
  void fail_running(const std::string& why);

  const ScriptedEngineOptions options_;
  const std::vector<int32_t> eos_ids_;
  const std::shared_ptr<const Tokenizer> tokenizer_;  // for stop texts; may be null
  std::map<uint64_t, Sequence> sequences_;
  std::deque<uint64_t> waiting_;   // prompts not complete, in order of submission
  std::vector<uint64_t> running_;  // in order of take_over
  std::vector<PrefillEvent> prefilled_;
  std::vector<FinishEvent> finished_;
  int32_t num_free_blocks_;
  uint64_t num_submitted_ = 0;
  uint64_t num_prefill_tokens_ = 0;
  uint64_t num_decode_tokens_ = 0;
  uint64_t num_completed_ = 0;
  VersionsByKey versions_;  // applied last
  Duration cost_;
};

/// It makes tokens up without logits: what changes or tells logits would mean nothing.
Status check_needs_no_logits(const SamplingParams& sampling) {
  std::string_view name;
  if (!sampling.logit_bias.empty()) name = "logit_bias";
  if (sampling.repetition_penalty != 1) name = "repetition_penalty";
  if (sampling.frequency_penalty != 0) name = "frequency_penalty";
  if (sampling.presence_penalty != 0) name = "presence_penalty";
  if (sampling.num_top_logprobs > 0) name = "num_top_logprobs";
  if (sampling.prompt_logprobs) name = "prompt_logprobs";
  if (name.empty()) return ok();
  return error(Code::kUnavailable, "the scripted engine has no {}", name)
      .note("it draws from no logits; ask an engine that has a model");
}

bool is_stop_id(const SamplingParams& sampling, int32_t token) {
  return std::ranges::find(sampling.stop_ids, token) != sampling.stop_ids.end();
}

Status ScriptedEngine::check(const SequenceRequest& request) const {
  RETURN_IF_ERROR(validate(request.sampling));
  RETURN_IF_ERROR(check_needs_no_logits(request.sampling));
  if (request.prompt_tokens.empty()) return error(Code::kInvalid, "the prompt has no token");
  for (const int32_t token : request.prompt_tokens)
    if (token < 0 || token >= options_.vocab_size)
      return error(Code::kInvalid, "token {} is not in [0, {})", token, options_.vocab_size);
  const int64_t num_tokens =
      static_cast<int64_t>(request.prompt_tokens.size()) + request.sampling.max_tokens;
  const int64_t most = std::min<int64_t>(
      options_.max_sequence_tokens, static_cast<int64_t>(options_.kv_blocks) * options_.block_size);
  if (num_tokens > most)
    return error(Code::kInvalid,
                 "{} prompt tokens and max_tokens {} are more than the {} tokens of a sequence",
                 request.prompt_tokens.size(), request.sampling.max_tokens, most);
  if (sequences_.count(request.id.value) > 0)
    return error(Code::kExists, "sequence {} is already there", request.id);
  return ok();
}

/// The token after `token` of those it draws from; the first one after the last.
int32_t ScriptedEngine::next_choice(int32_t token) const {
  return token + 1 < options_.vocab_size ? token + 1 : options_.first_token;
}

/// Before min_tokens there is a token that does not end the sequence.
Status ScriptedEngine::check_can_go_on(const SamplingParams& sampling) const {
  if (sampling.min_tokens == 0) return ok();
  for (int32_t token = options_.first_token; token < options_.vocab_size; ++token)
    if (!is_stop_id(sampling, token)) return ok();
  return error(Code::kInvalid, "with min_tokens {} no token can be drawn: each would end it",
               sampling.min_tokens);
}

int32_t ScriptedEngine::scripted_length(uint64_t key) const {
  RandomStream random(mix(key, kLengthDraw));
  const auto spread = static_cast<uint64_t>(options_.new_tokens_max - options_.new_tokens_min) + 1;
  const int64_t length = options_.new_tokens_min + static_cast<int64_t>(random.below(spread));
  const bool is_tail = random.uniform() < options_.tail_fraction;
  return static_cast<int32_t>(
      std::min<int64_t>(is_tail ? length * options_.tail_factor : length, INT32_MAX));
}

Status ScriptedEngine::submit(SequenceRequest request) {
  ++num_submitted_;
  if (options_.refuse_every > 0 &&
      num_submitted_ % static_cast<uint64_t>(options_.refuse_every) == 0)
    return error(Code::kUnavailable, "submit {} is refused, as 'refuse_every' {} asks",
                 num_submitted_, options_.refuse_every);
  RETURN_IF_ERROR(check(request));
  RETURN_IF_ERROR(check_can_go_on(request.sampling));
  ASSIGN_OR_RETURN(StopRule stop, StopRule::make(request.sampling, tokenizer_));
  if (static_cast<int64_t>(waiting_.size()) >= options_.max_waiting)
    return error(Code::kExhausted, "{} prompts are waiting, 'max_waiting' allows no more",
                 waiting_.size());
  Sequence sequence;
  sequence.stop = std::move(stop);
  const int64_t num_tokens =
      static_cast<int64_t>(request.prompt_tokens.size()) + request.sampling.max_tokens;
  sequence.num_blocks =
      static_cast<int32_t>((num_tokens + options_.block_size - 1) / options_.block_size);
  // Greedy decoding knows no chance: every seed gives the same tokens.
  sequence.key = mix(options_.seed, request.sampling.temperature == 0 ? 0 : request.seed);
  sequence.num_scripted = scripted_length(sequence.key);
  sequence.end.id = request.id;
  const uint64_t id = request.id.value;
  sequence.request = std::move(request);
  sequences_.emplace(id, std::move(sequence));
  waiting_.push_back(id);
  return ok();
}

Status ScriptedEngine::take_over(SequenceId id) {
  const auto found = sequences_.find(id.value);
  if (found == sequences_.end() || found->second.phase != Phase::kHeld)
    return error(Code::kNotFound, "no prefilled sequence {} waits to be taken over", id);
  if (found->second.ended) {
    finish(id.value, found->second.end.reason);
    return ok();
  }
  found->second.phase = Phase::kRunning;
  running_.push_back(id.value);
  return ok();
}

void ScriptedEngine::abort(SequenceId id) {
  if (sequences_.count(id.value) > 0) finish(id.value, FinishReason::kCancelled);
}

void ScriptedEngine::expire(SequenceId id) {
  const auto found = sequences_.find(id.value);
  if (found == sequences_.end() || found->second.phase != Phase::kHeld || !found->second.was_told)
    return;
  found->second.end.detail = kLeaseEnded;
  finish(id.value, FinishReason::kRefused);
}

/// Gives the blocks back, makes the one FinishEvent and forgets the sequence.
void ScriptedEngine::finish(uint64_t id, FinishReason reason) {
  auto node = sequences_.extract(id);
  Sequence& sequence = node.mapped();
  if (sequence.phase != Phase::kWaiting) num_free_blocks_ += sequence.num_blocks;
  if (sequence.phase == Phase::kWaiting || sequence.phase == Phase::kPrefill)
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), id));
  if (sequence.phase == Phase::kRunning)
    running_.erase(std::find(running_.begin(), running_.end(), id));
  if (sequence.phase == Phase::kHeld)
    std::erase_if(prefilled_, [id](const PrefillEvent& event) { return event.id.value == id; });
  sequence.end.reason = reason;
  if (is_complete(reason)) ++num_completed_;
  sequence.end.was_prefilled = sequence.was_told;
  sequence.end.kept = Blob(std::move(sequence.kept));
  finished_.push_back(std::move(sequence.end));
}

bool ScriptedEngine::may_begin(const Sequence& sequence) const {
  if (sequence.phase == Phase::kPrefill) return true;
  const size_t num_begun = sequences_.size() - waiting_.size();
  return sequence.num_blocks <= num_free_blocks_ &&
         num_begun < static_cast<size_t>(options_.max_running);
}

bool ScriptedEngine::has_work() const {
  return !running_.empty() || (!waiting_.empty() && may_begin(sequences_.at(waiting_.front())));
}

Status ScriptedEngine::step() {
  if (!has_work()) return ok();
  const Status fault = take_device_fault(options_.device_fault_file, "a scripted step");
  if (!fault.ok() && fault.error().code() == Code::kExhausted) {
    fail_running(fault.error().text());
    return ok();
  }
  RETURN_IF_ERROR(fault);
  const int32_t num_decoded = decode(options_.max_batched_tokens);
  const int32_t num_prefilled = prefill(options_.max_batched_tokens - num_decoded);
  num_decode_tokens_ += static_cast<uint64_t>(num_decoded);
  num_prefill_tokens_ += static_cast<uint64_t>(num_prefilled);
  cost_ += options_.step_cost + options_.decode_token_cost * num_decoded +
           options_.prefill_token_cost * num_prefilled;
  return ok();
}

/// As a step that could not be computed ends the sequences that it was for.
void ScriptedEngine::fail_running(const std::string& why) {
  for (const uint64_t id : std::vector<uint64_t>(running_)) {
    sequences_.at(id).end.detail = why;
    finish(id, FinishReason::kFailed);
  }
}

int32_t ScriptedEngine::decode(int32_t num_tokens_max) {
  const size_t count = std::min(running_.size(), static_cast<size_t>(num_tokens_max));
  std::vector<uint64_t> ended;
  for (size_t i = 0; i < count; ++i) {
    Sequence& sequence = sequences_.at(running_[i]);
    sample(sequence);
    if (sequence.ended) ended.push_back(running_[i]);
  }
  for (const uint64_t id : ended) finish(id, sequences_.at(id).end.reason);
  return static_cast<int32_t>(count);
}

int32_t ScriptedEngine::prefill(int32_t num_tokens_max) {
  int32_t num_done = 0;
  while (num_done < num_tokens_max && !waiting_.empty()) {
    const uint64_t id = waiting_.front();
    Sequence& sequence = sequences_.at(id);
    if (!may_begin(sequence)) break;
    if (sequence.phase == Phase::kWaiting) num_free_blocks_ -= sequence.num_blocks;
    sequence.phase = Phase::kPrefill;
    const auto num_prompt_tokens = static_cast<int32_t>(sequence.request.prompt_tokens.size());
    const int32_t chunk =
        std::min(num_tokens_max - num_done, num_prompt_tokens - sequence.num_prefilled);
    sequence.num_prefilled += chunk;
    num_done += chunk;
    if (sequence.num_prefilled < num_prompt_tokens) break;
    waiting_.pop_front();
    sequence.phase = Phase::kHeld;
    sample(sequence);
    prefilled_.push_back({SequenceId(id), 0});
  }
  return num_done;
}

void ScriptedEngine::sample(Sequence& sequence) {
  FinishEvent& end = sequence.end;
  const SamplingParams& sampling = sequence.request.sampling;
  const auto position = static_cast<uint64_t>(end.tokens.size());
  const auto num_choices = static_cast<double>(options_.vocab_size - options_.first_token);
  int32_t token =
      options_.first_token +
      static_cast<int32_t>(num_choices * sampling_uniform(mix(sequence.key, kTokenDraw), position));
  const bool may_end = position >= static_cast<uint64_t>(sampling.min_tokens);
  while (!may_end && is_stop_id(sampling, token)) token = next_choice(token);
  const bool is_last_scripted =
      may_end && static_cast<int64_t>(position) + 1 >= sequence.num_scripted;
  if (!sampling.ignore_eos && is_last_scripted) token = options_.eos_id;
  const double surprise = sampling_uniform(mix(sequence.key, kLogprobDraw), position);
  if (has_kept_sets(sampling)) keep_some(sequence, token);
  end.tokens.push_back(token);
  end.logprobs.push_back(
      static_cast<float>(-0.01 - 3 * surprise * surprise + options_.logprob_shift));
  const auto num_tokens = static_cast<int32_t>(end.tokens.size());
  const PolicyVersion version = versions_.of(sequence.request.key());
  if (end.spans.empty() || end.spans.back().version != version)
    end.spans.push_back({version, num_tokens - 1, num_tokens});
  end.spans.back().end = num_tokens;
  const auto reason = sequence.stop.take(token, sampling, eos_ids_);
  sequence.ended = reason.has_value();
  end.reason = reason.value_or(FinishReason::kLength);
}

/// A few ids about the token, as many as the draw and top_k say.
void ScriptedEngine::keep_some(Sequence& sequence, int32_t token) {
  const auto position = static_cast<uint64_t>(sequence.end.tokens.size());
  const SamplingParams& sampling = sequence.request.sampling;
  const int32_t most = sampling.top_k > 0 ? sampling.top_k : kKeptIds;
  RandomStream random(mix(mix(sequence.key, kKeptDraw), position));
  const auto count = 1 + static_cast<int32_t>(random.below(
                             static_cast<uint64_t>(std::min(most, options_.vocab_size))));
  const int32_t first = std::clamp(token - count / 2, 0, options_.vocab_size - count);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back(first + i);
  append_kept(ids, options_.vocab_size, sequence.kept);
}

Result<uint64_t> ScriptedEngine::apply(const WeightSnapshot& snapshot) {
  if (snapshot.version == versions_.of(snapshot.key)) return static_cast<uint64_t>(0);
  RETURN_IF_ERROR(check_scripted_tensors(snapshot.tensors));
  if (!versions_.set(snapshot.key, snapshot.version))
    return error(Code::kExhausted, "{} cannot be applied: the engine holds weights of {} others",
                 snapshot.name(), kWeightsKeysMax);
  cost_ += options_.apply_cost;
  return static_cast<uint64_t>(snapshot.tensors.size());
}

EngineState ScriptedEngine::state() const {
  EngineState state;
  state.num_waiting = static_cast<int32_t>(waiting_.size());
  state.num_running = static_cast<int32_t>(running_.size());
  state.num_held = static_cast<int32_t>(sequences_.size() - waiting_.size() - running_.size());
  state.num_free_blocks = num_free_blocks_;
  state.num_blocks = options_.kv_blocks;
  state.num_room = options_.max_waiting - static_cast<int32_t>(waiting_.size());
  state.num_prefill_tokens = num_prefill_tokens_;
  state.num_decode_tokens = num_decode_tokens_;
  state.num_completed = num_completed_;
  state.versions = versions_;
  return state;
}

Status at_least(const char* name, int64_t value, int64_t lowest) {
  if (value >= lowest) return ok();
  return error(Code::kInvalid, "'{}' is {}, below {}", name, value, lowest);
}

}  // namespace

Status validate(const ScriptedEngineOptions& options) {
  RETURN_IF_ERROR(at_least("kv_blocks", options.kv_blocks, 1));
  RETURN_IF_ERROR(at_least("block_size", options.block_size, 1));
  RETURN_IF_ERROR(at_least("max_running", options.max_running, 1));
  RETURN_IF_ERROR(at_least("max_waiting", options.max_waiting, 1));
  RETURN_IF_ERROR(at_least("max_batched_tokens", options.max_batched_tokens, 1));
  RETURN_IF_ERROR(at_least("max_sequence_tokens", options.max_sequence_tokens, 0));
  RETURN_IF_ERROR(at_least("eos_id", options.eos_id, 0));
  RETURN_IF_ERROR(at_least("first_token", options.first_token, int64_t{options.eos_id} + 1));
  RETURN_IF_ERROR(at_least("vocab_size", options.vocab_size, int64_t{options.first_token} + 1));
  RETURN_IF_ERROR(at_least("new_tokens_min", options.new_tokens_min, 1));
  RETURN_IF_ERROR(at_least("new_tokens_max", options.new_tokens_max, options.new_tokens_min));
  RETURN_IF_ERROR(at_least("tail_factor", options.tail_factor, 1));
  RETURN_IF_ERROR(at_least("refuse_every", options.refuse_every, 0));
  if (!(options.tail_fraction >= 0 && options.tail_fraction <= 1))
    return error(Code::kInvalid, "'tail_fraction' {} is not in [0, 1]", options.tail_fraction);
  for (const Duration cost : {options.step_cost, options.prefill_token_cost,
                              options.decode_token_cost, options.apply_cost})
    if (cost < Duration()) return error(Code::kInvalid, "a cost of {} is below 0", to_string(cost));
  return ok();
}

Result<std::unique_ptr<Engine>> make_scripted_engine(const ScriptedEngineOptions& options,
                                                     std::shared_ptr<const Tokenizer> tokenizer) {
  RETURN_IF_ERROR(validate(options));
  ScriptedEngineOptions resolved = options;
  if (resolved.max_sequence_tokens == 0) resolved.max_sequence_tokens = kScriptedSequenceTokens;
  return std::unique_ptr<Engine>(std::make_unique<ScriptedEngine>(resolved, std::move(tokenizer)));
}

}  // namespace primerl
