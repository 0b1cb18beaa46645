/// SamplingParams: how the next token is chosen, and which log-probabilities are returned. Pure
/// values.
///
/// The order is that of vLLM: logit_bias -> min_tokens -> repetition_penalty -> frequency_penalty
/// -> presence_penalty -> / temperature -> top_k -> top_p -> min_p -> renormalise -> sample. Steps
/// before the temperature are in logits_processor.h, the rest in the sampler.
///
/// Log-probabilities of sampled tokens, and the top ones beside them, are those of the distribution
/// at the end of that order. Log-probabilities of the prompt are the model's own, since its tokens
/// were not sampled.
///
/// Learners compute log-probabilities from the model's logits, the temperature and the kept sets
/// (kept_sets.h). Any other change of the logits would give a wrong importance ratio. So these
/// options (changes_logits()) are for evaluation and serving; tenants of a training graph do not
/// have them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

/// `bias` is added to the logit of `token`.
struct TokenBias {
  int32_t token = 0;
  double bias = 0;

  template <class F>
  static void fields(F& f) {
    f("token", &TokenBias::token)("bias", &TokenBias::bias);
  }
  friend bool operator==(const TokenBias&, const TokenBias&) = default;
};

/// A token and its log-probability, natural log.
struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0;

  template <class F>
  static void fields(F& f) {
    f("token", &TokenLogprob::token)("logprob", &TokenLogprob::logprob);
  }
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

struct SamplingParams {
  double temperature = 1.0;            // 0 = greedy (log-probabilities at temperature 1)
  int32_t top_k = 0;                   // 0 = off
  double top_p = 1.0;                  // (0, 1]; 1 = off
  double min_p = 0.0;                  // [0, 1); 0 = off; relative to the most likely token
  int32_t max_tokens = 16;             // >= 1
  bool ignore_eos = false;             // true: the model's eos ids do not end the sequence
  std::vector<int32_t> stop_ids = {};  // further tokens that end it
  /// Texts that end the sequence. The token that completes one is the last token, wherever token
  /// boundaries are. Matched against the tokens decoded without special tokens; the prompt does not
  /// count.
  std::vector<std::string> stop = {};

  /// Minimum number of tokens: before it, no end token is sampled and no completed stop text ends
  /// the sequence.
  int32_t min_tokens = 0;
  std::vector<TokenBias> logit_bias = {};  // token ids rise
  double repetition_penalty = 1.0;         // of tokens in prompt or output: divides logits above 0,
                                           // multiplies the others; 1 = off
  double frequency_penalty = 0.0;          // subtracted for each time the output has the token
  double presence_penalty = 0.0;           // subtracted once if the output has the token

  int32_t num_top_logprobs = 0;  // number of likeliest tokens to return beside each sampled one
  bool prompt_logprobs = false;  // also return those of the prompt's tokens, each given the tokens
                                 // before it
  int32_t num_prompt_top_logprobs = 0;  // with prompt_logprobs: the number of likeliest tokens to
                                        // return at each of those positions
  int32_t routed_experts_start = -1;    // also return the experts of the tokens from this position
                                        // on, if the engine keeps them; -1: no

  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;

  template <class F>
  static void fields(F& f) {
    using S = SamplingParams;
    f("temperature", &S::temperature)("top_k", &S::top_k)("top_p", &S::top_p)("min_p", &S::min_p)(
        "max_tokens", &S::max_tokens)("ignore_eos", &S::ignore_eos)("stop_ids", &S::stop_ids)(
        "stop", &S::stop)("min_tokens", &S::min_tokens)("logit_bias", &S::logit_bias)(
        "repetition_penalty", &S::repetition_penalty)("frequency_penalty", &S::frequency_penalty)(
        "presence_penalty", &S::presence_penalty)("num_top_logprobs", &S::num_top_logprobs)(
        "prompt_logprobs", &S::prompt_logprobs)(
        "num_prompt_top_logprobs", &S::num_prompt_top_logprobs)("routed_experts_start",
                                                                &S::routed_experts_start);
  }
};

inline constexpr double kTemperatureMin = 0.001;  // of temperatures above 0
inline constexpr size_t kStopsMax = 16;           // number of stop texts
inline constexpr size_t kStopBytesMax = 256;      // of one stop text
inline constexpr size_t kStopIdsMax = 64;         // number of `stop_ids`
inline constexpr size_t kLogitBiasesMax = 1024;   // number of `logit_bias` entries
inline constexpr double kLogitBiasMax = 100;      // the least is -100
inline constexpr double kPenaltyMax = 2;          // the least is -2; of frequency and presence
inline constexpr double kRepetitionMin = 0.001;   // logits multiplied or divided by it stay finite
inline constexpr double kRepetitionMax = 1000;
inline constexpr int32_t kTopLogprobsMax = 20;
/// Of each prompt token; a teacher's answer has 8 bytes for each.
inline constexpr int32_t kPromptTopLogprobsMax = 256;

/// Refuses impossible values; the error gives the valid range. The engine checks what depends on
/// the vocabulary.
Status validate(const SamplingParams& sampling);

/// Whether the model's logits are changed before they are divided by the temperature.
bool changes_logits(const SamplingParams& sampling);

}  // namespace primerl
