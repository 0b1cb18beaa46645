#include "kernels/engine/sampling_params.h"

#include <cmath>

namespace primerl {
namespace {

Status validate_truncation(const SamplingParams& sampling) {
  // Below this temperature, the divided logits exceed the precision of a float.
  const bool is_greedy = sampling.temperature == 0;
  if (!(is_greedy || sampling.temperature >= kTemperatureMin) ||
      !std::isfinite(sampling.temperature))
    return error(Code::kInvalid, "temperature {} is not valid", sampling.temperature)
        .note(fmt::format("temperature is 0 (greedy) or at least {}", kTemperatureMin));
  if (sampling.top_k < 0)
    return error(Code::kInvalid, "top_k {} is not valid", sampling.top_k)
        .note("top_k is 0 (off) or above");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1))
    return error(Code::kInvalid, "top_p {} is not valid", sampling.top_p)
        .note("top_p is in (0, 1]");
  if (!(sampling.min_p >= 0 && sampling.min_p < 1))
    return error(Code::kInvalid, "min_p {} is not valid", sampling.min_p)
        .note("min_p is in [0, 1)");
  return ok();
}

Status validate_ends(const SamplingParams& sampling) {
  if (sampling.max_tokens < 1)
    return error(Code::kInvalid, "max_tokens {} is not valid", sampling.max_tokens)
        .note("max_tokens is at least 1");
  if (sampling.min_tokens < 0 || sampling.min_tokens > sampling.max_tokens)
    return error(Code::kInvalid, "min_tokens {} is not valid", sampling.min_tokens)
        .note(fmt::format("min_tokens is 0 to max_tokens, here {}", sampling.max_tokens));
  if (sampling.stop.size() > kStopsMax || sampling.stop_ids.size() > kStopIdsMax)
    return error(Code::kInvalid, "{} stop texts and {} stop ids are too many", sampling.stop.size(),
                 sampling.stop_ids.size())
        .note(fmt::format("at most {} texts and {} ids", kStopsMax, kStopIdsMax));
  for (const std::string& text : sampling.stop)
    if (text.empty() || text.size() > kStopBytesMax)
      return error(Code::kInvalid, "a stop text has {} bytes", text.size())
          .note(fmt::format("a stop text has 1 to {} bytes", kStopBytesMax));
  return ok();
}

Status validate_biases(const std::vector<TokenBias>& biases) {
  if (biases.size() > kLogitBiasesMax)
    return error(Code::kInvalid, "logit_bias of {} tokens is too long", biases.size())
        .note(fmt::format("logit_bias has at most {} tokens", kLogitBiasesMax));
  const TokenBias* before = nullptr;
  for (const TokenBias& one : biases) {
    if (!(std::abs(one.bias) <= kLogitBiasMax))
      return error(Code::kInvalid, "the logit_bias {} of token {} is not valid", one.bias,
                   one.token)
          .note(fmt::format("a logit_bias is in [-{0}, {0}]", kLogitBiasMax));
    if (before != nullptr && before->token >= one.token)
      return error(Code::kInvalid, "logit_bias has token {} after token {}", one.token,
                   before->token)
          .note("the tokens of logit_bias rise, without duplicates");
    before = &one;
  }
  return ok();
}

Status validate_penalty(std::string_view name, double value) {
  if (std::abs(value) <= kPenaltyMax) return ok();
  return error(Code::kInvalid, "{} {} is not valid", name, value)
      .note(fmt::format("{0} is in [-{1}, {1}]; 0 is off", name, kPenaltyMax));
}

}  // namespace

Status validate(const SamplingParams& sampling) {
  RETURN_IF_ERROR(validate_truncation(sampling));
  RETURN_IF_ERROR(validate_ends(sampling));
  RETURN_IF_ERROR(validate_biases(sampling.logit_bias));
  const double repetition = sampling.repetition_penalty;
  if (!(repetition >= kRepetitionMin && repetition <= kRepetitionMax))
    return error(Code::kInvalid, "repetition_penalty {} is not valid", repetition)
        .note(fmt::format("repetition_penalty is in [{}, {}]; 1 is off", kRepetitionMin,
                          kRepetitionMax));
  RETURN_IF_ERROR(validate_penalty("frequency_penalty", sampling.frequency_penalty));
  RETURN_IF_ERROR(validate_penalty("presence_penalty", sampling.presence_penalty));
  if (sampling.num_top_logprobs < 0 || sampling.num_top_logprobs > kTopLogprobsMax)
    return error(Code::kInvalid, "num_top_logprobs {} is not valid", sampling.num_top_logprobs)
        .note(fmt::format("num_top_logprobs is 0 to {}", kTopLogprobsMax));
  if (sampling.num_prompt_top_logprobs < 0 ||
      sampling.num_prompt_top_logprobs > kPromptTopLogprobsMax)
    return error(Code::kInvalid, "num_prompt_top_logprobs {} is not valid",
                 sampling.num_prompt_top_logprobs)
        .note(fmt::format("num_prompt_top_logprobs is 0 to {}", kPromptTopLogprobsMax));
  if (sampling.num_prompt_top_logprobs > 0 && !sampling.prompt_logprobs)
    return error(Code::kInvalid, "num_prompt_top_logprobs {} without prompt_logprobs",
                 sampling.num_prompt_top_logprobs)
        .note("set prompt_logprobs too");
  if (sampling.routed_experts_start < -1)
    return error(Code::kInvalid, "routed_experts_start {} is below -1",
                 sampling.routed_experts_start);
  return ok();
}

bool changes_logits(const SamplingParams& sampling) {
  return sampling.min_tokens > 0 || !sampling.logit_bias.empty() ||
         sampling.repetition_penalty != 1 || sampling.frequency_penalty != 0 ||
         sampling.presence_penalty != 0;
}

}  // namespace primerl
