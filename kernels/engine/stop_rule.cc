#include "kernels/engine/stop_rule.h"

#include <algorithm>

namespace primerl {
namespace {

bool holds(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

StopTexts::StopTexts(std::span<const std::string> texts) {
  static_assert(kStopBytesMax <= UINT16_MAX);
  for (const std::string& text : texts) {
    One one;
    one.text = text;
    one.border.assign(text.size(), 0);
    for (size_t i = 1; i < text.size(); ++i) {
      uint16_t length = one.border[i - 1];
      while (length > 0 && text[length] != text[i]) length = one.border[length - 1];
      one.border[i] = static_cast<uint16_t>(length + (text[length] == text[i] ? 1 : 0));
    }
    texts_.push_back(std::move(one));
  }
}

bool StopTexts::take(std::string_view bytes) {
  bool found = false;
  for (One& one : texts_) {
    for (const char byte : bytes) {
      uint16_t& matched = one.matched;
      // After a whole match the longest border goes on, as after a mismatch.
      if (matched == one.text.size()) matched = one.border[matched - 1];
      while (matched > 0 && one.text[matched] != byte) matched = one.border[matched - 1];
      if (one.text[matched] == byte) ++matched;
      found = found || matched == one.text.size();
    }
  }
  return found;
}

Result<StopRule> StopRule::make(const SamplingParams& sampling,
                                std::shared_ptr<const Tokenizer> tokenizer) {
  StopRule rule;
  if (sampling.stop.empty()) return rule;
  if (tokenizer == nullptr)
    return error(Code::kInvalid, "this engine has no tokenizer, which stop texts need")
        .note("give its model folder a tokenizer.json, or stop at token ids");
  rule.texts_ = StopTexts(sampling.stop);
  rule.tokenizer_ = std::move(tokenizer);
  return rule;
}

std::optional<FinishReason> StopRule::take(int32_t token, const SamplingParams& sampling,
                                           std::span<const int32_t> eos_ids) {
  ++num_tokens_;
  // Also before min_tokens, where a text may begin that is completed after it.
  const bool has_text = tokenizer_ != nullptr && texts_.take(tokenizer_->bytes_of(token));
  if (num_tokens_ >= sampling.min_tokens) {
    if (!sampling.ignore_eos && holds(eos_ids, token)) return FinishReason::kStop;
    if (holds(sampling.stop_ids, token) || has_text) return FinishReason::kStop;
  }
  if (num_tokens_ >= sampling.max_tokens) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace primerl
