/// Engine with no model: seeded lengths and tokens, costs from a table, the batching of a real one.
///
/// For the virtual clock and for fault tests. What a step computes is decided by the same
/// BatchScheduler as in an engine with a model: shares, adapter slots, prefix cache, chunks of
/// prompts, preemption. A step costs step_cost and so much for each of its rows. Tokens follow from
/// (seeds, position) alone, never from weights, batch mates or time; their versions are those of
/// the request's key, of which it holds as many as kWeightsKeysMax, and with adapter_slots as many
/// as adapters_max. Sampling that truncates has kept sets: a few ids about each token.
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
