/// An Engine that records its answers, and one that answers from the record.
///
/// With the answers in the trace, Prefill and Decode are replayed without generating a token
/// (`replay --depth learner` and `control`). Threads: those of the engine that they replace.
#pragma once

#include <memory>

#include "kernels/engine/engine.h"
#include "runtime/replay/replayed_answer.h"

namespace primerl {

std::unique_ptr<Engine> make_recording_engine(std::unique_ptr<Engine> engine, KeepAnswer keep);

/// Answers only from the record.
std::unique_ptr<Engine> make_replayed_engine(NextAnswer next);

}  // namespace primerl
