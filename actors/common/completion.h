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
                  .routed = event.routed};
  made.top_tokens.reserve(event.top_logprobs.size());
  made.top_logprobs.reserve(event.top_logprobs.size());
  for (const TokenLogprob& top : event.top_logprobs) {
    made.top_tokens.push_back(top.token);
    made.top_logprobs.push_back(top.logprob);
  }
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
