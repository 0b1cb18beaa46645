/// Engine with no model: seeded lengths and tokens, costs from a table, the batching of a real one.
///
/// For the virtual clock and for fault tests. Blocks for prompt and max_tokens are taken when a
/// prompt begins and returned when its sequence ends, so nothing is ever preempted. A step decodes
/// first (one token for each running sequence), then fills what is left of max_batched_tokens with
/// prompts in order of submission. Tokens follow from (seeds, position) alone, never from weights,
/// batch mates or time; their versions are those of the request's key, of which it holds as many
/// as kWeightsKeysMax. Sampling that truncates has kept sets: a few ids about each token. No
/// prefix cache: num_cached_tokens is 0.
#pragma once

#include <memory>

#include "kernels/engine/engine.h"
#include "kernels/scripted/options.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

/// Refuses options that make no engine, naming the option and what was valid.
Status validate(const ScriptedEngineOptions& options);

/// `tokenizer` says what its tokens mean, for requests with stop texts; without one they are
/// refused.
Result<std::unique_ptr<Engine>> make_scripted_engine(
    const ScriptedEngineOptions& options, std::shared_ptr<const Tokenizer> tokenizer = nullptr);

}  // namespace primerl
