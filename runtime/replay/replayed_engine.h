/// An Engine of a replay at full depth: a real one, which is made anew where the recorded run was
/// resumed after a crash.
///
/// The engine of a resumed run is new: it has no cache, and receives the unfinished sequences again
/// from their prompts. Its batches, steps and evictions differ from those of an engine that ran
/// throughout. The record has a note of the step in which it answered first (engine_resume.h).
/// There this engine is made anew too, gets the same weights, and receives the same sequences by
/// the same code (continued_engine.h).
///
/// Threads: those of the engine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "kernels/engine/engine.h"
#include "runtime/replay/engine_resume.h"

namespace primerl {

struct ReplayedEngineSetup {
  std::function<Result<std::shared_ptr<Engine>>()> make;
  /// The note of this engine in the current step; each is returned once.
  std::function<std::optional<EngineResume>()> next_resume;
  std::function<Result<std::shared_ptr<const WeightSnapshot>>(const KeyedVersion& version)> weights;
  /// Called in the step of a note that does not fit the replay, or that cannot be repeated.
  std::function<void(std::string what)> on_divergence;
};
/// The error is that of `make`.
Result<std::shared_ptr<Engine>> make_replayed_engine(ReplayedEngineSetup setup);

}  // namespace primerl
