/// An Engine that writes down what it answers, and one that answers from the record.
///
/// With the answers in the trace, Prefill and Decode are replayed without generating a token
/// (`replay --depth learner` and `control`), and a run that was killed is brought back to where it
/// was without generating what had been finished. Threads: those of the engine they stand for.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/engine/engine.h"
#include "runtime/bin/recorded_learner.h"

namespace primerl {

std::unique_ptr<Engine> make_recording_engine(std::unique_ptr<Engine> engine, KeepAnswer keep);

/// Answers from the record alone.
std::unique_ptr<Engine> make_recorded_engine(NextAnswer next);

/// Answers from the record until `is_live` says that it has ended; then makes the real engine,
/// gives it the newest weights it was told to apply (of those that have tensors) and submits again
/// what was in flight: such sequences begin anew, under those weights. `is_live` is asked at every
/// call; an error of `make` comes out of the call that needed it.
struct RecoveredEngineSetup {
  NextAnswer next;
  std::function<bool()> is_live;
  std::function<Result<std::unique_ptr<Engine>>()> make;
  KeepAnswer keep;  // of the live engine's answers
};
std::unique_ptr<Engine> make_recovered_engine(RecoveredEngineSetup setup);

}  // namespace primerl
