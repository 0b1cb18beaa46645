/// StopRule: when a sequence ends by itself: eos, stop ids, stop texts, max_tokens; not before
/// min_tokens. And which text such a sequence has.
///
/// One per sequence, told every sampled token in order. Allocates when it is made and never again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/engine/engine.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

/// Finds texts in a stream of bytes, whatever the pieces it comes in: Knuth, Morris and Pratt.
class StopTexts {
 public:
  StopTexts() = default;
  explicit StopTexts(std::span<const std::string> texts);

  bool is_empty() const { return texts_.empty(); }
  /// True when a text is completed by a byte of `bytes`.
  bool take(std::string_view bytes);

 private:
  struct One {
    std::string text;
    std::vector<uint16_t> border;  // of text[0, i]: its longest true prefix that is a suffix too
    uint16_t matched = 0;          // bytes of `text` that the stream ends with
  };
  std::vector<One> texts_;
};

class StopRule {
 public:
  StopRule() = default;
  /// `tokenizer` may be null, but then `sampling.stop` is refused. `sampling` was validated.
  static Result<StopRule> make(const SamplingParams& sampling,
                               std::shared_ptr<const Tokenizer> tokenizer);

  /// Takes the newest token. Why the sequence ends with it, or nothing.
  std::optional<FinishReason> take(int32_t token, const SamplingParams& sampling,
                                   std::span<const int32_t> eos_ids);

 private:
  StopTexts texts_;
  std::shared_ptr<const Tokenizer> tokenizer_;  // null without texts
  int32_t num_tokens_ = 0;
};

/// The decoded text of a completion that ended with `kStop`, up to the stop: it ends before the
/// stop text that the last token completed, and before the last token where that is an end token.
/// If one token completes several stop texts, the text ends before the one that is complete first,
/// the longest of those: how tokens cut a text does not change where it ends. The tokens themselves
/// are trained on whole.
Result<std::string> text_before_stop(const std::vector<int32_t>& tokens,
                                     const SamplingParams& sampling, const Tokenizer& tokenizer);

}  // namespace primerl
