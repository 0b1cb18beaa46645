/// One input of the fuzzer of the gateway's bodies: the same bytes as a body of each route. Bodies
/// that are accepted are within the limits of wire.h, and their replies are JSON.
/// tests/outside/gateway_body_fuzz_test.cc runs it over the corpus.
#pragma once

#include <string_view>
#include <vector>

#include "actors/gateway/wire.h"
#include "graph/base/assert.h"
#include "graph/base/json.h"

namespace primerl {

/// The engine's answer to `call`: `num_tokens` tokens with all that was asked for.
inline Completion fuzzed_completion(const GenerateCall& call, size_t num_tokens) {
  Completion completion;
  completion.end = FinishReason::kLength;
  const auto num_top = static_cast<size_t>(call.sampling.num_top_logprobs);
  completion.tokens.assign(num_tokens, 7);
  completion.logprobs.assign(num_tokens, -0.5F);
  completion.ranks.assign(num_top > 0 ? num_tokens : 0, 1);
  completion.top_tokens.assign(num_tokens * num_top, -1);
  completion.top_logprobs.assign(num_tokens * num_top, -1);
  if (call.sampling.prompt_logprobs && !call.prompt.empty())
    completion.prompt_logprobs.assign(call.prompt.size() - 1, -2);
  return completion;
}

inline void check_call(const GenerateCall& call) {
  CHECK(validate(call.sampling).ok(), "sampling options beyond their limits were accepted");
  CHECK(call.num_samples >= 1 && call.num_samples <= kSamplesMax, "'n' is beyond its limit");
  for (const int32_t id : call.prompt) CHECK(id >= 0, "a token id below 0 was accepted");
}

/// The number of routes that accept the body.
inline int fuzz_gateway_body(std::string_view body) {
  int num_accepted = 0;
  if (const auto call = read_generate_call(body); call.ok()) {
    ++num_accepted;
    check_call(*call);
    CHECK(!call->prompt.empty(), "a prompt without tokens was accepted");
    ReplyFacts facts;
    facts.id = call->model;
    facts.prompt = call->prompt;
    facts.sampling = call->sampling;
    facts.has_token_ids = call->wants_token_ids;
    facts.has_compact_logprobs = call->wants_compact_logprobs;
    const std::vector<Completion> completions(2, fuzzed_completion(*call, 3));
    const auto reply = generate_reply(facts, completions, 256);
    CHECK(reply.ok() && parse_json(*reply, "the reply").ok(), "a reply is not JSON");
  } else {
    CHECK(status_of(call.error()) == 400, "a wrong body is not the client's fault");
  }
  if (const auto call = read_chat_call(body); call.ok()) {
    ++num_accepted;
    check_call(call->generate);
    CHECK(!call->messages.empty(), "a chat without messages was accepted");
  }
  if (const auto call = read_tokenize_call(body); call.ok()) ++num_accepted;
  return num_accepted;
}

}  // namespace primerl
