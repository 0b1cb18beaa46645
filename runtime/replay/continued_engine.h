/// An Engine that begins with the unfinished sequences of an engine of the same kind that is gone.
///
/// Sequences that had not ended are submitted to the new engine in the order of their ids, and
/// their tokens are generated again from the prompt. Prefill and Decode get no event twice.
/// Sequences beyond the engine's waiting queue wait here until the queue has free places.
///
/// A resumed run continues with one, and a replay makes an equal one at the same place
/// (replayed_engine.h). So everything that it does follows from its arguments and its calls.
///
/// Threads: the same as those of the engine that it replaces.
#pragma once

#include <memory>

#include "kernels/engine/engine.h"
#include "runtime/replay/unfinished_sequences.h"

namespace primerl {

/// `engine`: new, with its weights, and paused if `is_paused`.
std::shared_ptr<Engine> make_continued_engine(std::shared_ptr<Engine> engine,
                                              UnfinishedSequences unfinished, bool is_paused);

}  // namespace primerl
