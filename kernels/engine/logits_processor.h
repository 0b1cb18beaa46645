/// LogitsProcessor: applies the options of one sequence to its logits before the temperature:
/// logit_bias, min_tokens and the three penalties, in the order of sampling_params.h.
///
/// It knows the tokens of its sequence: it gets the prompt when made and every sampled token in
/// order. So the cost of a row of logits depends on the number of different tokens, not on the
/// number of tokens. Preemption does not change it. Pure values; rows of different sequences may be
/// processed in parallel.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/engine/sampling_params.h"

namespace primerl {

class LogitsProcessor {
 public:
  /// Null if the params change no logit; such rows cost nothing. Refuses a logit_bias outside the
  /// vocabulary, and min_tokens if every token would end the sequence. `sampling` was validated;
  /// `eos_ids` are the model's.
  static Result<std::unique_ptr<LogitsProcessor>> make(const SamplingParams& sampling,
                                                       std::span<const int32_t> prompt_tokens,
                                                       std::span<const int32_t> eos_ids,
                                                       int32_t vocab_size);

  /// Changes the logits [vocab_size] that the next token is sampled from.
  void apply(std::span<float> logits) const;
  /// Adds the newest sampled token.
  void take(int32_t token);

 private:
  /// A token whose logit is changed.
  struct Change {
    int32_t token = 0;
    float bias = 0;
    bool is_repeated = false;   // in the prompt or the output
    int32_t num_generated = 0;  // times in the output
  };

  LogitsProcessor() = default;
  Change& change_of(int32_t token);
  bool has_penalties() const;

  float repetition_penalty_ = 1;
  float frequency_penalty_ = 0;
  float presence_penalty_ = 0;
  int32_t min_tokens_ = 0;
  std::vector<int32_t> ends_;  // tokens that are not sampled before min_tokens
  std::vector<Change> changes_;
  std::unordered_map<int32_t, size_t> places_;  // indices of tokens in changes_
  int32_t num_tokens_ = 0;                      // generated
};

}  // namespace primerl
