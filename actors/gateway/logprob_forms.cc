#include "actors/gateway/logprob_forms.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "actors/gateway/base64.h"
#include "actors/gateway/text_writer.h"
#include "graph/base/json.h"

namespace primerl {
namespace {

/// The likeliest tokens beside token `index`, the most likely first.
std::vector<TokenLogprob> top_of(const Completion& completion, size_t index, int32_t num_top) {
  std::vector<TokenLogprob> top;
  const auto count = static_cast<size_t>(num_top);
  for (size_t i = index * count; i < (index + 1) * count; ++i)
    if (completion.top_tokens[i] >= 0)
      top.push_back({completion.top_tokens[i], std::min(completion.top_logprobs[i], 0.0F)});
  return top;
}

/// Adds tokens without a probability, the lowest ids first, until there are `count` entries.
void fill_up(std::vector<TokenLogprob>& entries, size_t count, int32_t vocab_size) {
  for (int32_t id = 0; entries.size() < count && id < vocab_size; ++id)
    if (std::ranges::find(entries, id, &TokenLogprob::token) == entries.end())
      entries.push_back({id, kNoLogprob});
}

void add_little_endian(uint32_t value, std::string& bytes) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift & 0xff);
}

void add_text_token(ReplyText& text, int32_t id, float logprob, const Tokenizer& tokenizer) {
  const auto token = tokenizer.decode({id}, false);
  std::vector<int> bytes;
  for (const char byte : tokenizer.bytes_of(id)) bytes.push_back(static_cast<unsigned char>(byte));
  add(text, "{{\"token\":{},\"logprob\":{},\"bytes\":[{}]", Json(token.ok() ? *token : "").dump(),
      logprob, fmt::join(bytes, ","));
}

}  // namespace

Status check_logprobs(const Completion& completion, int32_t num_top) {
  const size_t count = completion.tokens.size();
  if (completion.logprobs.size() != count)
    return error(Code::kInternal, "the engine gave {} tokens and {} log-probabilities", count,
                 completion.logprobs.size());
  for (size_t i = 0; i < count; ++i)
    if (!std::isfinite(completion.logprobs[i]))
      return error(Code::kInternal, "the log-probability of token {} is {}", i,
                   completion.logprobs[i]);
  const size_t num_entries = count * static_cast<size_t>(num_top);
  if (completion.top_tokens.size() != num_entries || completion.top_logprobs.size() != num_entries)
    return error(Code::kInternal,
                 "the engine gave {} tokens and {} top log-probabilities, not {} for each", count,
                 completion.top_logprobs.size(), num_top);
  if (num_top > 0 && completion.ranks.size() != count)
    return error(Code::kInternal, "the engine gave {} tokens and {} ranks", count,
                 completion.ranks.size());
  return ok();
}

std::string token_logprobs(const Completion& completion, int32_t num_top, int32_t vocab_size) {
  ReplyText text;
  add(text, "{{\"content\":[");
  for (size_t i = 0; i < completion.tokens.size(); ++i) {
    const int32_t id = completion.tokens[i];
    add(text,
        "{}{{\"token\":\"token_id:{}\",\"token_id\":{},\"logprob\":{},\"rank\":", i == 0 ? "" : ",",
        id, id, completion.logprobs[i]);
    if (num_top == 0) {
      add(text, "null,\"top_logprobs\":[]}}");
      continue;
    }
    add(text, "{},\"top_logprobs\":[", completion.ranks[i]);
    auto top = top_of(completion, i, num_top);
    fill_up(top, static_cast<size_t>(num_top), vocab_size);
    for (size_t k = 0; k < top.size(); ++k)
      add(text, "{}{{\"token\":\"token_id:{}\",\"token_id\":{},\"logprob\":{},\"rank\":{}}}",
          k == 0 ? "" : ",", top[k].token, top[k].token, top[k].logprob, k + 1);
    add(text, "]}}");
  }
  add(text, "]}}");
  return fmt::to_string(text);
}

std::string compact_logprobs(const Completion& completion, int32_t num_top, int32_t vocab_size) {
  std::string ids, logprobs;
  std::vector<size_t> offsets = {0};
  for (size_t i = 0; i < completion.tokens.size(); ++i) {
    const int32_t sampled = completion.tokens[i];
    std::vector<TokenLogprob> row = {{sampled, completion.logprobs[i]}};
    for (const TokenLogprob& top : top_of(completion, i, num_top))
      if (top.token != sampled) row.push_back(top);
    fill_up(row, static_cast<size_t>(num_top), vocab_size);
    for (const TokenLogprob& entry : row) {
      add_little_endian(static_cast<uint32_t>(entry.token), ids);
      add_little_endian(std::bit_cast<uint32_t>(entry.logprob), logprobs);
    }
    offsets.push_back(offsets.back() + row.size());
  }
  return fmt::format(
      "{{\"data\":\"{}\",\"format\":\"u32-f32-le-v1\",\"offsets\":[{}],\"num_top_logprobs\":{}}}",
      base64(ids + logprobs), fmt::join(offsets, ","), std::max(num_top, 1));
}

std::string text_logprobs(const Completion& completion, int32_t num_top,
                          const Tokenizer& tokenizer) {
  ReplyText text;
  add(text, "{{\"content\":[");
  for (size_t i = 0; i < completion.tokens.size(); ++i) {
    add(text, "{}", i == 0 ? "" : ",");
    add_text_token(text, completion.tokens[i], completion.logprobs[i], tokenizer);
    add(text, ",\"top_logprobs\":[");
    const auto top = top_of(completion, i, num_top);
    for (size_t k = 0; k < top.size(); ++k) {
      add(text, "{}", k == 0 ? "" : ",");
      add_text_token(text, top[k].token, top[k].logprob, tokenizer);
      add(text, "}}");
    }
    add(text, "]}}");
  }
  add(text, "]}}");
  return fmt::to_string(text);
}

Result<std::string> prompt_logprobs(std::span<const int32_t> prompt, const Completion& completion) {
  const auto& logprobs = completion.prompt_logprobs;
  if (logprobs.size() + 1 != prompt.size())
    return error(Code::kInternal,
                 "the prompt has {} tokens, and the engine gave {} "
                 "log-probabilities for it",
                 prompt.size(), logprobs.size());
  ReplyText text;
  add(text, "[null");
  for (size_t i = 0; i < logprobs.size(); ++i) {
    if (!std::isfinite(logprobs[i]))
      return error(Code::kInternal, "the log-probability of prompt token {} is {}", i + 1,
                   logprobs[i]);
    add(text, ",{{\"{}\":{{\"logprob\":{},\"rank\":null,\"decoded_token\":null}}}}", prompt[i + 1],
        logprobs[i]);
  }
  add(text, "]");
  return fmt::to_string(text);
}

}  // namespace primerl
