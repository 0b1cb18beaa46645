/// Engine without a model: seeded lengths and tokens, costs from a table, real batching.
///
/// For the virtual clock and for fault tests. The BatchScheduler plans each step as in an engine
/// with a model: shares, adapter slots, prefix cache, prompt chunks, preemption. A step costs
/// step_cost plus a cost per row. Tokens depend only on (seeds, position), never on weights, other
/// rows of the batch or time. Their versions are those of the request's key. It keeps at most
/// kWeightsKeysMax keys, or adapters_max with adapter_slots. Truncated sampling has kept sets: a
/// few ids around each token.
#pragma once

#include <memory>

#include "kernels/engine/engine.h"
#include "kernels/scripted/options.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

/// Refuses invalid options; the error names the option and the valid values.
Status validate(const ScriptedEngineOptions& options);

/// `tokenizer` decodes its tokens for requests with stop texts; without a tokenizer they are
/// refused.
Result<std::unique_ptr<Engine>> make_scripted_engine(
    const ScriptedEngineOptions& options, std::shared_ptr<const Tokenizer> tokenizer = nullptr);

}  // namespace primerl
