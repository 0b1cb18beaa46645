/// The bodies of the gateway's requests and replies: vLLM's `/inference/v1/generate` and OpenAI's
/// chat completions (docs/design/gateway.md). Pure functions, any thread.
///
/// An Error becomes a reply by status_of(): kInvalid 400, kNotFound 404, kCancelled 410 (which
/// clients do not repeat), kExhausted 429, kUnavailable 503, kDeadline 504, anything else 500.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/messages/generation.h"
#include "graph/base/json.h"
#include "kernels/engine/sampling_params.h"
#include "kernels/text/chat/answer.h"
#include "kernels/text/chat/message.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

/// Most token ids of one prompt, before the tenant's own limit.
inline constexpr size_t kWirePromptMax = size_t{1} << 24;

inline constexpr int32_t kSamplesMax = 128;  // completions of one request, `n`

/// A generation as its request states it.
struct GenerateCall {
  std::string model;            // empty: the only one
  std::vector<int32_t> prompt;  // for `generate`; a chat has messages
  SamplingParams sampling;
  bool has_max_tokens = false;  // else as many as fit
  std::optional<uint64_t> seed;
  std::string salt;              // empty: that of the live version
  int32_t num_samples = 1;       // `n`: completions in the reply
  bool wants_token_ids = false;  // the reply has the ids of the prompt, too
  bool wants_compact_logprobs = false;
  std::vector<std::string> ignored;  // keys without an effect
};

struct ChatCall {
  GenerateCall generate;
  std::vector<ChatMessage> messages;
  std::optional<Json> tools;
  std::optional<Json> template_kwargs;
  bool wants_logprobs = false;
};

struct TokenizeCall {
  std::string model;
  std::string prompt;                 // if there are no messages
  std::vector<ChatMessage> messages;  // empty: `prompt` counts
  std::optional<Json> tools;
  std::optional<Json> template_kwargs;
  bool adds_generation_prompt = true;
  bool adds_special_tokens = true;
  bool wants_texts = false;
};

Result<GenerateCall> read_generate_call(std::string_view body);
Result<ChatCall> read_chat_call(std::string_view body);
Result<TokenizeCall> read_tokenize_call(std::string_view body);

int32_t status_of(const Error& error);

/// The facts of a reply besides the completions. `prompt` and `sampling` are those of the request.
struct ReplyFacts {
  std::string id;
  std::string model;
  int64_t created = 0;  // seconds since 1970
  std::span<const int32_t> prompt;
  SamplingParams sampling;
  bool has_token_ids = false;
  bool has_compact_logprobs = false;  // of `generate`
  bool has_logprobs = false;          // of a chat
};

/// The reply to `generate`, one choice for each completion. An error if the engine's numbers cannot
/// be sent (logprob_forms.h).
Result<std::string> generate_reply(const ReplyFacts& facts, std::span<const Completion> completions,
                                   int32_t vocab_size);

/// The reply to a chat; `answers` are those of the completions.
Result<std::string> chat_reply(const ReplyFacts& facts, std::span<const Completion> completions,
                               std::span<const chat::ParsedAnswer> answers,
                               const Tokenizer& tokenizer);

}  // namespace primerl
