/// An Engine that answers from the record until the run resumes, and then from a real engine, which
/// continues the unfinished sequences (continued_engine.h).
///
/// Before that the real engine gets the newest weights of each key that had been applied. If those
/// were older than the checkpoint, it gets the oldest weights that can still be made.
///
/// Threads: the same as those of the engine that it replaces.
#pragma once

#include <functional>
#include <memory>

#include "kernels/engine/engine.h"
#include "runtime/replay/engine_resume.h"
#include "runtime/replay/traced_calls.h"

namespace primerl {

struct ResumingEngineSetup {
  std::shared_ptr<Engine> engine;  // the real engine, as made
  NextAnswer next;
  std::function<bool()> is_live;
  /// Weights of `version`, or of the next later version of its key that exists. Called once per key
  /// when the run resumes, if the tensors that the engine had applied are not known. kNotFound for
  /// a snapshot: the engine continues without that key.
  std::function<Result<std::shared_ptr<const WeightSnapshot>>(const KeyedVersion& version)>
      weights_from;
  /// Called once, in the first call that the real engine answers; `resource` is not set. May be
  /// null.
  std::function<void(EngineResume resume)> on_resume = {};
};
std::shared_ptr<Engine> make_resuming_engine(ResumingEngineSetup setup);

}  // namespace primerl
