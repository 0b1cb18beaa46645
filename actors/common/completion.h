/// Makes every Completion: the one answer to a GenerateRequest, whichever actor ends it.
#pragma once

#include <string>
#include <utility>

#include "actors/messages/generation.h"
#include "kernels/engine/engine.h"

namespace primerl {

/// The answer to `request` of a session and attempt: what the engine generated, and how it ended.
inline Completion completion_of(uint64_t request, uint64_t session, uint32_t attempt,
                                const FinishEvent& event) {
  Completion made{.request = request,
                  .session = session,
                  .attempt = attempt,
                  .end = event.reason,
                  .detail = event.detail,
                  .tokens = event.tokens,
                  .logprobs = event.logprobs,
                  .spans = event.spans,
                  .kept = event.kept,
                  .num_cached_tokens = event.num_cached_tokens,
                  .ranks = event.ranks,
                  .top_tokens = {},
                  .top_logprobs = {},
                  .prompt_logprobs = event.prompt_logprobs,
                  .prompt_top_tokens = {},
                  .prompt_top_logprobs = {},
                  .routed = event.routed};
  const auto split = [](const std::vector<TokenLogprob>& from, std::vector<int32_t>& tokens,
                        std::vector<float>& logprobs) {
    tokens.reserve(from.size());
    logprobs.reserve(from.size());
    for (const TokenLogprob& top : from) {
      tokens.push_back(top.token);
      logprobs.push_back(top.logprob);
    }
  };
  split(event.top_logprobs, made.top_tokens, made.top_logprobs);
  split(event.prompt_top_logprobs, made.prompt_top_tokens, made.prompt_top_logprobs);
  return made;
}

/// The answer to a request for which no token was generated.
inline Completion completion_of(const GenerateRequest& request, FinishReason end,
                                std::string detail) {
  FinishEvent event;
  event.reason = end;
  event.detail = std::move(detail);
  return completion_of(request.request, request.session, request.attempt, event);
}

}  // namespace primerl
