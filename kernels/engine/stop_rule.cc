#include "kernels/engine/stop_rule.h"

#include <algorithm>

#include "kernels/text/unicode.h"

namespace primerl {
namespace {

bool holds(std::span<const int32_t> ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

/// The start of the stop text that is completed first after `begin`; npos: none is.
size_t first_stop(std::string_view text, size_t begin, std::span<const std::string> stops) {
  size_t first = std::string_view::npos, end = text.size() + 1;
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop, begin + 1 - std::min(begin + 1, stop.size()));
    if (at == std::string_view::npos) continue;
    if (at + stop.size() > end || (at + stop.size() == end && at > first)) continue;
    first = at;
    end = at + stop.size();
  }
  return first;
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
      // After a whole match, continue with the longest border, as after a mismatch.
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
  // Also before min_tokens: a text may begin there that is completed later.
  const bool has_text = tokenizer_ != nullptr && texts_.take(tokenizer_->bytes_of(token));
  if (num_tokens_ >= sampling.min_tokens) {
    if (!sampling.ignore_eos && holds(eos_ids, token)) return FinishReason::kStop;
    if (holds(sampling.stop_ids, token) || has_text) return FinishReason::kStop;
  }
  if (num_tokens_ >= sampling.max_tokens) return FinishReason::kLength;
  return std::nullopt;
}

Result<std::string> text_before_stop(const std::vector<int32_t>& tokens,
                                     const SamplingParams& sampling, const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(std::string text, tokenizer.decode(tokens));  // or the tokenizer's error
  if (tokens.empty()) return text;
  std::string bytes;
  for (const int32_t token : tokens) bytes += tokenizer.bytes_of(token);
  const int32_t last = tokens.back();
  const size_t before_last = bytes.size() - tokenizer.bytes_of(last).size();
  const bool is_end_token =
      holds(sampling.stop_ids, last) || (!sampling.ignore_eos && holds(tokenizer.eos_ids(), last));
  size_t end = first_stop(bytes, before_last, sampling.stop);
  // An engine may know more end tokens than the tokenizer: if no stop text matched, it was one.
  if (is_end_token || end == std::string::npos) end = std::min(end, before_last);
  bytes.resize(end);
  return to_valid_utf8(std::move(bytes));
}

}  // namespace primerl
