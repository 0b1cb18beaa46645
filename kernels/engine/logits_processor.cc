#include "kernels/engine/logits_processor.h"

#include <algorithm>
#include <limits>

namespace primerl {
namespace {

/// The ids that end the sequence, rising, without ids that the model does not have.
std::vector<int32_t> ending_ids(const SamplingParams& sampling, std::span<const int32_t> eos_ids,
                                int32_t vocab_size) {
  std::vector<int32_t> ids = sampling.stop_ids;
  if (!sampling.ignore_eos) ids.insert(ids.end(), eos_ids.begin(), eos_ids.end());
  std::erase_if(ids, [&](int32_t id) { return id < 0 || id >= vocab_size; });
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

Result<std::unique_ptr<LogitsProcessor>> LogitsProcessor::make(
    const SamplingParams& sampling, std::span<const int32_t> prompt_tokens,
    std::span<const int32_t> eos_ids, int32_t vocab_size) {
  if (!changes_logits(sampling)) return std::unique_ptr<LogitsProcessor>();
  std::unique_ptr<LogitsProcessor> made(new LogitsProcessor());
  for (const TokenBias& one : sampling.logit_bias) {
    if (one.token < 0 || one.token >= vocab_size)
      return error(Code::kInvalid, "logit_bias has token {}, outside the vocabulary", one.token)
          .note(fmt::format("tokens of this model are 0 to {}", vocab_size - 1));
    made->change_of(one.token).bias = static_cast<float>(one.bias);
  }
  if (sampling.min_tokens > 0) made->ends_ = ending_ids(sampling, eos_ids, vocab_size);
  if (made->ends_.size() == static_cast<size_t>(vocab_size))
    return error(Code::kInvalid,
                 "with min_tokens {} no token can be sampled: each of {} would end it",
                 sampling.min_tokens, vocab_size);
  made->min_tokens_ = sampling.min_tokens;
  made->repetition_penalty_ = static_cast<float>(sampling.repetition_penalty);
  made->frequency_penalty_ = static_cast<float>(sampling.frequency_penalty);
  made->presence_penalty_ = static_cast<float>(sampling.presence_penalty);
  if (made->repetition_penalty_ != 1)
    for (const int32_t token : prompt_tokens) made->change_of(token).is_repeated = true;
  return made;
}

LogitsProcessor::Change& LogitsProcessor::change_of(int32_t token) {
  const auto [found, is_new] = places_.try_emplace(token, changes_.size());
  if (is_new) changes_.push_back({.token = token});
  return changes_[found->second];
}

bool LogitsProcessor::has_penalties() const {
  return repetition_penalty_ != 1 || frequency_penalty_ != 0 || presence_penalty_ != 0;
}

void LogitsProcessor::apply(std::span<float> logits) const {
  for (const Change& change : changes_) {
    float& logit = logits[static_cast<size_t>(change.token)];
    logit += change.bias;
    if (change.is_repeated) {
      // Signs are random, so a branch would be mispredicted; division and multiplication by 1
      // change nothing.
      const float factors[] = {1, repetition_penalty_};
      const size_t is_positive = logit > 0 ? 1 : 0;
      logit = logit / factors[is_positive] * factors[1 - is_positive];
    }
    if (change.num_generated == 0) continue;
    logit -= frequency_penalty_ * static_cast<float>(change.num_generated);
    logit -= presence_penalty_;
  }
  if (num_tokens_ >= min_tokens_) return;
  for (const int32_t id : ends_)
    logits[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
}

void LogitsProcessor::take(int32_t token) {
  ++num_tokens_;
  if (!has_penalties()) return;
  Change& change = change_of(token);
  change.is_repeated = true;
  ++change.num_generated;
}

}  // namespace primerl
