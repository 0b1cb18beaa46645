/// StopRule: when a sequence ends by itself: eos, stop ids, stop texts, max_tokens; never before
/// min_tokens. And the text of such a sequence.
///
/// There is one per sequence; it gets every sampled token in order. It allocates only when it is
/// made.
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

/// Finds texts in a stream of bytes, independent of its chunks: the algorithm of Knuth, Morris and
/// Pratt.
class StopTexts {
 public:
  StopTexts() = default;
  explicit StopTexts(std::span<const std::string> texts);

  bool is_empty() const { return texts_.empty(); }
  /// True if a byte of `bytes` completes a text.
  bool take(std::string_view bytes);

 private:
  struct One {
    std::string text;
    std::vector<uint16_t> border;  // border[i]: length of the longest proper prefix of text[0, i]
                                   // that is also its suffix
    uint16_t matched = 0;          // bytes of `text` that the stream ends with
  };
  std::vector<One> texts_;
};

class StopRule {
 public:
  StopRule() = default;
  /// With a null `tokenizer`, `sampling.stop` is refused. `sampling` was validated.
  static Result<StopRule> make(const SamplingParams& sampling,
                               std::shared_ptr<const Tokenizer> tokenizer);

  /// Adds the newest token. Returns why the sequence ends with it, or empty.
  std::optional<FinishReason> take(int32_t token, const SamplingParams& sampling,
                                   std::span<const int32_t> eos_ids);

 private:
  StopTexts texts_;
  std::shared_ptr<const Tokenizer> tokenizer_;  // null without stop texts
  int32_t num_tokens_ = 0;
};

/// The decoded text of a completion that ended with `kStop`, up to the stop. It ends before the
/// stop text that the last token completed, and before the last token if that is an end token. If
/// one token completes several stop texts, the text ends before the one completed first; among
/// those, before the longest. So token boundaries do not change where the text ends. Training uses
/// all tokens.
Result<std::string> text_before_stop(const std::vector<int32_t>& tokens,
                                     const SamplingParams& sampling, const Tokenizer& tokenizer);

}  // namespace primerl
