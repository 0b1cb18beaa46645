#include "kernels/scripted/scripted_engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "graph/base/random.h"
#include "kernels/engine/batch_scheduler.h"
#include "kernels/engine/kept_sets.h"
#include "kernels/scripted/device_fault.h"
#include "kernels/scripted/scripted_weights.h"

namespace primerl {
namespace {

// The purpose of a random number; the third part of its key.
constexpr uint64_t kLengthDraw = 1, kTokenDraw = 2, kLogprobDraw = 3, kKeptDraw = 4,
                   kPromptDraw = 5;
constexpr int32_t kKeptIds = 8;  // largest kept set, unless top_k is smaller

class ScriptedEngine final : public Engine {
 public:
  ScriptedEngine(const ScriptedEngineOptions& options, std::shared_ptr<const Tokenizer> tokenizer)
      : options_(options),
        scheduler_({options, options.vocab_size, {options.eos_id}, std::move(tokenizer)}) {}

  Status submit(SequenceRequest request) override;
  Status take_over(SequenceId id) override { return scheduler_.take_over(id); }
  void abort(SequenceId id) override { scheduler_.abort(id); }
  void expire(SequenceId id) override { scheduler_.expire(id); }
  Status step() override;
  bool has_work() const override { return scheduler_.has_work(); }
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override;
  void drop(WeightsKey key) override;
  void set_share(TenantSlot tenant, double share) override { scheduler_.set_share(tenant, share); }
  WeightManifest manifest() const override { return scripted_manifest(); }

  std::vector<PrefillEvent> take_prefilled() override { return scheduler_.take_prefilled(); }
  std::vector<FinishEvent> take_finished() override { return scheduler_.take_finished(); }
  Duration take_cost() override { return std::exchange(cost_, Duration()); }
  EngineState state() const override { return scheduler_.state(); }
  int32_t max_sequence_tokens() const override { return options_.max_sequence_tokens; }
  std::string describe() const override {
    const EngineState now = state();
    return fmt::format("{} running, {} waiting, {} held, {} of {} blocks free", now.num_running,
                       now.num_waiting, now.num_held, now.num_free_blocks, now.num_blocks);
  }

 private:
  bool takes_adapters() const { return options_.adapter_slots > 0; }
  Result<int32_t> adapter_of(WeightsKey key) const;
  Status hold_adapter(WeightsKey key);
  void load_adapter();
  Status check_can_continue(const SamplingParams& sampling) const;
  int32_t next_choice(int32_t token) const;
  uint64_t key_of(const SequenceRequest& request) const;
  int32_t scripted_length(uint64_t key) const;
  void sample(Sequence& sequence);
  std::vector<int32_t> kept_ids(const Sequence& sequence, uint64_t key, int32_t token) const;
  int32_t add_top(Sequence& sequence, const std::vector<int32_t>& kept, int32_t token,
                  float logprob) const;
  void score();
  std::vector<TokenLogprob> prompt_top(const StepPlan::Score& score, float logprob) const;

  const ScriptedEngineOptions options_;
  BatchScheduler scheduler_;
  StepPlan plan_;
  std::vector<std::optional<WeightsKey>> adapters_;  // by number; empty: the number is free
  uint64_t num_submitted_ = 0;
  Duration cost_;
};

/// Tokens are made without logits, so options that change logits are refused.
Status check_without_logits(const SamplingParams& sampling) {
  std::string_view name;
  if (!sampling.logit_bias.empty()) name = "logit_bias";
  if (sampling.repetition_penalty != 1) name = "repetition_penalty";
  if (sampling.frequency_penalty != 0) name = "frequency_penalty";
  if (sampling.presence_penalty != 0) name = "presence_penalty";
  if (name.empty()) return ok();
  return error(Code::kUnavailable, "the scripted engine has no {}", name)
      .note("it has no logits; use an engine with a model");
}

bool is_stop_id(const SamplingParams& sampling, int32_t token) {
  return std::ranges::find(sampling.stop_ids, token) != sampling.stop_ids.end();
}

/// The next token after `token` in the sampled range; after the last, the first.
int32_t ScriptedEngine::next_choice(int32_t token) const {
  return token + 1 < options_.vocab_size ? token + 1 : options_.first_token;
}

/// With min_tokens there must be a token that does not end the sequence.
Status ScriptedEngine::check_can_continue(const SamplingParams& sampling) const {
  if (sampling.min_tokens == 0) return ok();
  for (int32_t token = options_.first_token; token < options_.vocab_size; ++token)
    if (!is_stop_id(sampling, token)) return ok();
  return error(Code::kInvalid, "with min_tokens {} no token can be sampled: each would end it",
               sampling.min_tokens);
}

/// Greedy decoding is not random: every seed gives the same tokens.
uint64_t ScriptedEngine::key_of(const SequenceRequest& request) const {
  return mix(options_.seed, request.sampling.temperature == 0 ? 0 : request.seed);
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
  RETURN_IF_ERROR(validate(request.sampling));
  RETURN_IF_ERROR(check_without_logits(request.sampling));
  RETURN_IF_ERROR(check_can_continue(request.sampling));
  ASSIGN_OR_RETURN(const int32_t adapter, adapter_of(request.key()));
  return scheduler_.submit(std::move(request), adapter);
}

Result<int32_t> ScriptedEngine::adapter_of(WeightsKey key) const {
  if (!takes_adapters()) return kNoAdapter;
  const auto found = std::ranges::find(adapters_, std::optional(key));
  if (found != adapters_.end()) return static_cast<int32_t>(found - adapters_.begin());
  return error(Code::kUnavailable, "this engine has no adapter of {}", key)
      .note("apply its first version before sending requests");
}

/// A new adapter is loaded at once if a slot is empty.
Status ScriptedEngine::hold_adapter(WeightsKey key) {
  if (!takes_adapters() || adapter_of(key).ok()) return ok();
  const int32_t most = std::max(options_.adapters_max, options_.adapter_slots);
  const auto free = std::ranges::find(adapters_, std::optional<WeightsKey>());
  const auto number = static_cast<int32_t>(free - adapters_.begin());
  if (number >= most)
    return error(Code::kExhausted, "the {} adapters of this engine are in use, {} has none", most,
                 key);
  if (free == adapters_.end()) adapters_.emplace_back();
  adapters_[static_cast<size_t>(number)] = key;
  scheduler_.slots().place(number);
  return ok();
}

void ScriptedEngine::drop(WeightsKey key) {
  std::optional<int32_t> adapter;
  if (const auto known = adapter_of(key); takes_adapters() && known.ok()) {
    adapter = *known;
    adapters_[static_cast<size_t>(*known)].reset();
  }
  scheduler_.drop(key, adapter);
}

void ScriptedEngine::load_adapter() {
  if (!scheduler_.next_load()) return;
  scheduler_.slots().finish();
  cost_ += options_.adapter_load_cost;
}

Status ScriptedEngine::step() {
  load_adapter();
  if (!has_work()) return ok();
  const Status fault = take_device_fault(options_.device_fault_file, "a scripted step");
  const bool is_full = !fault.ok() && fault.error().code() == Code::kExhausted;
  if (!fault.ok() && !is_full) return fault;
  if (!scheduler_.plan(plan_)) return ok();
  if (is_full) {
    scheduler_.fail_step(plan_, fault.error().text());
    return ok();
  }
  const auto num_decoded = std::ranges::count_if(
      plan_.samples, [](const auto& sample) { return sample.sequence->prefill == nullptr; });
  cost_ += options_.step_cost + options_.decode_token_cost * num_decoded +
           options_.prefill_token_cost * (plan_.rows.num_rows() - num_decoded);
  score();
  for (const auto& each : plan_.samples) sample(*each.sequence);
  scheduler_.finish_step();
  return ok();
}

void ScriptedEngine::sample(Sequence& sequence) {
  const SamplingParams& sampling = sequence.request.sampling;
  const uint64_t key = key_of(sequence.request);
  const auto position = static_cast<uint64_t>(sequence.tokens.size());
  const auto num_choices = static_cast<double>(options_.vocab_size - options_.first_token);
  int32_t token =
      options_.first_token +
      static_cast<int32_t>(num_choices * sampling_uniform(mix(key, kTokenDraw), position));
  const bool may_end = position >= static_cast<uint64_t>(sampling.min_tokens);
  while (!may_end && is_stop_id(sampling, token)) token = next_choice(token);
  const bool is_last_scripted =
      may_end && !sampling.ignore_eos && static_cast<int64_t>(position) + 1 >= scripted_length(key);
  if (is_last_scripted) token = options_.eos_id;
  const double surprise = sampling_uniform(mix(key, kLogprobDraw), position);
  std::vector<int32_t> kept;
  if (has_kept_sets(sampling)) {
    kept = kept_ids(sequence, key, token);
    append_kept(kept, options_.vocab_size, sequence.kept);
  }
  const auto logprob = static_cast<float>(-0.01 - 3 * surprise * surprise + options_.logprob_shift);
  scheduler_.accept(sequence, token, logprob, add_top(sequence, kept, token, logprob));
}

/// Each token of a prompt has a log-probability that follows from the token and its position.
void ScriptedEngine::score() {
  for (const StepPlan::Score& each : plan_.scores) {
    const uint64_t key = mix(options_.seed, static_cast<uint64_t>(each.token));
    const double surprise =
        sampling_uniform(mix(key, kPromptDraw), each.prefill->prompt_logprobs.size());
    const auto logprob = static_cast<float>(-0.01 - 3 * surprise * surprise);
    scheduler_.accept(each, logprob, prompt_top(each, logprob));
  }
}

/// The token itself, and then the next ids: each has half of the probability that is left.
std::vector<TokenLogprob> ScriptedEngine::prompt_top(const StepPlan::Score& score,
                                                     float logprob) const {
  std::vector<TokenLogprob> top;
  double left = 1 - std::exp(static_cast<double>(logprob));
  for (int32_t i = 0; i < score.prefill->num_prompt_top; ++i) {
    const int32_t token = (score.token + i) % options_.vocab_size;
    top.push_back({token, i == 0 ? logprob : static_cast<float>(std::log(left *= 0.5))});
  }
  std::ranges::sort(top, [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  });
  return top;
}

/// The tokens after the sampled one share what it leaves of the probability: half of it, a quarter,
/// and so on. The most likely token is sampled if sampling is greedy. Without top log-probabilities
/// the rank is 0.
int32_t ScriptedEngine::add_top(Sequence& sequence, const std::vector<int32_t>& kept, int32_t token,
                                float logprob) const {
  const SamplingParams& sampling = sequence.request.sampling;
  const auto count = static_cast<size_t>(sampling.num_top_logprobs);
  if (count == 0) return 0;
  const double own = std::min(std::exp(static_cast<double>(logprob)), 1.0);
  double rest = std::max(1 - own, 1e-9);
  if (sampling.temperature == 0) rest = std::min(rest, own);
  std::vector<TokenLogprob> all = {{token, logprob}};
  const auto add = [&](int32_t other) {
    if (other != token && all.size() <= count)
      all.push_back({other, static_cast<float>(std::log(rest *= 0.5))});
  };
  if (has_kept_sets(sampling)) {
    std::ranges::for_each(kept, add);
  } else {
    const auto most = std::min<int64_t>(sampling.num_top_logprobs,
                                        options_.vocab_size - options_.first_token - 1);
    int32_t other = std::max(token, options_.first_token - 1);
    for (int64_t i = 0; i < most; ++i) add(other = next_choice(other));
  }
  std::ranges::sort(all, [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob != b.logprob ? a.logprob > b.logprob : a.token < b.token;
  });
  const auto at = std::ranges::find(all, token, &TokenLogprob::token) - all.begin();
  all.resize(count, {-1, -std::numeric_limits<float>::infinity()});
  sequence.top_logprobs.insert(sequence.top_logprobs.end(), all.begin(), all.end());
  return static_cast<int32_t>(at) + 1;
}

/// A few ids around the token; the random key and top_k decide how many.
std::vector<int32_t> ScriptedEngine::kept_ids(const Sequence& sequence, uint64_t key,
                                              int32_t token) const {
  const auto position = static_cast<uint64_t>(sequence.tokens.size());
  const SamplingParams& sampling = sequence.request.sampling;
  const int32_t most = sampling.top_k > 0 ? sampling.top_k : kKeptIds;
  RandomStream random(mix(mix(key, kKeptDraw), position));
  const auto count = 1 + static_cast<int32_t>(random.below(
                             static_cast<uint64_t>(std::min(most, options_.vocab_size))));
  const int32_t first = std::clamp(token - count / 2, 0, options_.vocab_size - count);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back(first + i);
  return ids;
}

Result<uint64_t> ScriptedEngine::apply(const WeightSnapshot& snapshot) {
  VersionsByKey versions = scheduler_.versions();
  if (snapshot.version == versions.of(snapshot.key)) return static_cast<uint64_t>(0);
  RETURN_IF_ERROR(check_scripted_tensors(snapshot.tensors));
  if (!versions.set(snapshot.key, snapshot.version))
    return error(Code::kExhausted, "{} cannot be applied: the engine has weights of {} others",
                 snapshot.name(), kWeightsKeysMax);
  RETURN_IF_ERROR(hold_adapter(snapshot.key));
  scheduler_.set_version(snapshot.key, snapshot.version);
  cost_ += options_.apply_cost;
  return static_cast<uint64_t>(snapshot.tensors.size());
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
  RETURN_IF_ERROR(at_least("adapter_slots", options.adapter_slots, 0));
  for (const Duration cost :
       {options.step_cost, options.prefill_token_cost, options.decode_token_cost,
        options.apply_cost, options.adapter_load_cost})
    if (cost < Duration()) return error(Code::kInvalid, "a cost of {} is below 0", to_string(cost));
  return ok();
}

Result<std::unique_ptr<Engine>> make_scripted_engine(const ScriptedEngineOptions& options,
                                                     std::shared_ptr<const Tokenizer> tokenizer) {
  RETURN_IF_ERROR(validate(options));
  ScriptedEngineOptions resolved = options;
  resolved.kv_events_bytes_max = 0;  // there is no KV cache to report
  if (resolved.max_sequence_tokens == 0) resolved.max_sequence_tokens = kScriptedSequenceTokens;
  return std::unique_ptr<Engine>(std::make_unique<ScriptedEngine>(resolved, std::move(tokenizer)));
}

}  // namespace primerl
