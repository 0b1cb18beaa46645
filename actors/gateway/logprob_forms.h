/// The forms of log-probabilities in the gateway's replies (docs/design/gateway.md). Pure
/// functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/messages/generation.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

/// The value of an entry without a probability: a token that the options leave out. Clients read it
/// as "none".
inline constexpr float kNoLogprob = -9999;

/// An error if a completion cannot be sent: a log-probability of a sampled token is missing, NaN or
/// infinite, or the lists of the engine have other lengths than the request asked for.
Status check_logprobs(const Completion& completion, int32_t num_top);

/// vLLM's object of `/inference/v1/generate`: `{"content":[{"token":"token_id:7","token_id":7,
/// "logprob":-0.1,"rank":1,"top_logprobs":[]}]}`. The rank is null if `num_top` is 0. Each list
/// `top_logprobs` has `num_top` entries; tokens of kNoLogprob fill it up, if the vocabulary has
/// them.
std::string token_logprobs(const Completion& completion, int32_t num_top, int32_t vocab_size);

/// prime-rl's object: `{"data":"<base64>","format":"u32-f32-le-v1","offsets":[0,2],
/// "num_top_logprobs":2}`. Each token has a row: itself, then the `num_top` likeliest without it.
/// `data` has all token ids as uint32, then all log-probabilities as float32, little-endian.
std::string compact_logprobs(const Completion& completion, int32_t num_top, int32_t vocab_size);

/// OpenAI's object of a chat: `{"content":[{"token":"a","logprob":-0.1,"bytes":[97],
/// "top_logprobs":[]}]}`. Tokens that cannot be sampled are left out.
std::string text_logprobs(const Completion& completion, int32_t num_top,
                          const Tokenizer& tokenizer);

/// vLLM's list, one entry for each token of the prompt: `[null,{"7":{"logprob":-0.1,"rank":null,
/// "decoded_token":null}}]`. An error if the completion has another number of them.
Result<std::string> prompt_logprobs(std::span<const int32_t> prompt, const Completion& completion);

}  // namespace primerl
