/// SamplingParams: how the next token is chosen, and which log-probabilities are told. Pure values.
///
/// Order, that of vLLM: logit_bias -> min_tokens -> repetition_penalty -> frequency_penalty ->
/// presence_penalty -> / temperature -> top_k -> top_p -> min_p -> renormalise -> draw. What comes
/// before the temperature is logits_processor.h, what comes after is the sampler's.
///
/// Log-probabilities of sampled tokens, and the top ones beside them, are those of the distribution
/// at the end of that order; those of the prompt are the model's own, as nobody drew its tokens.
///
/// Learners compute log-probabilities from the model's logits, the temperature and the kept sets
/// (kept_sets.h). What changes logits otherwise would train on a wrong ratio, so these options
/// (changes_logits()) are for evaluation and serving; tenants of a training graph have no such
/// keys.
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
  std::vector<int32_t> stop_ids = {};  // tokens that end it besides those
  /// Texts that end it: with the token that completes one, wherever the tokens cut it. Of what the
  /// tokens decode to without special ones; the prompt does not count.
  std::vector<std::string> stop = {};

  /// It has no fewer: before that many tokens no id that would end it is drawn, and no text that is
  /// completed ends it.
  int32_t min_tokens = 0;
  std::vector<TokenBias> logit_bias = {};  // by rising token
  double repetition_penalty = 1.0;         // of tokens in prompt or output: divides logits above 0,
                                           // multiplies the others; 1 = off
  double frequency_penalty = 0.0;          // taken off for each time the output has the token
  double presence_penalty = 0.0;           // taken off once when the output has it

  int32_t num_top_logprobs = 0;  // of the likeliest tokens, beside each sampled one
  bool prompt_logprobs = false;  // of the prompt's tokens, each given those before it

  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;

  template <class F>
  static void fields(F& f) {
    using S = SamplingParams;
    f("temperature", &S::temperature)("top_k", &S::top_k)("top_p", &S::top_p)("min_p", &S::min_p)(
        "max_tokens", &S::max_tokens)("ignore_eos", &S::ignore_eos)("stop_ids", &S::stop_ids)(
        "stop", &S::stop)("min_tokens", &S::min_tokens)("logit_bias", &S::logit_bias)(
        "repetition_penalty", &S::repetition_penalty)("frequency_penalty", &S::frequency_penalty)(
        "presence_penalty", &S::presence_penalty)("num_top_logprobs", &S::num_top_logprobs)(
        "prompt_logprobs", &S::prompt_logprobs);
  }
};

inline constexpr double kTemperatureMin = 0.001;  // of those above 0
inline constexpr size_t kStopsMax = 16;           // texts of `stop`
inline constexpr size_t kStopBytesMax = 256;      // of one of them
inline constexpr size_t kStopIdsMax = 64;         // ids of `stop_ids`
inline constexpr size_t kLogitBiasesMax = 1024;   // tokens of `logit_bias`
inline constexpr double kLogitBiasMax = 100;      // and -100 the least
inline constexpr double kPenaltyMax = 2;          // and -2 the least, of frequency and presence
inline constexpr double kRepetitionMin = 0.001;   // logits times or by these stay finite
inline constexpr double kRepetitionMax = 1000;
inline constexpr int32_t kTopLogprobsMax = 20;

/// Refuses impossible values, each with the range that was valid. What depends on the vocabulary is
/// the engine's to refuse.
Status validate(const SamplingParams& sampling);

/// Whether logits are anything but the model's own before they are divided by the temperature.
bool changes_logits(const SamplingParams& sampling);

}  // namespace primerl
