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
  return {.request = request,
          .session = session,
          .attempt = attempt,
          .end = event.reason,
          .detail = event.detail,
          .tokens = event.tokens,
          .logprobs = event.logprobs,
          .spans = event.spans,
          .kept = event.kept,
          .num_cached_tokens = event.num_cached_tokens};
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
