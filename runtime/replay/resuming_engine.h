/// An Engine that answers from the record until the run resumes, and then from a real engine.
///
/// Sequences that had not finished when the run was interrupted are submitted again to the real
/// engine, in the order of their ids. Their tokens are generated again from the prompt, with the
/// newest weights of each key that the engine had applied. If those were older than the checkpoint,
/// it uses the oldest weights that can still be made. Prefill and Decode get no event twice.
/// Sequences beyond the engine's waiting queue wait here until the queue has free places.
///
/// Threads: the same as those of the engine that it replaces.
#pragma once

#include <functional>
#include <memory>

#include "kernels/engine/engine.h"
#include "runtime/replay/traced_calls.h"

namespace primerl {

struct ResumingEngineSetup {
  std::shared_ptr<Engine> engine;  // the real engine, as made
  NextAnswer next;
  std::function<bool()> is_live;
  /// Weights of `version`, or of the next later version of its key that exists. Called once per key
  /// when the run resumes, if the tensors that the engine had applied are not known.
  std::function<Result<std::shared_ptr<const WeightSnapshot>>(const KeyedVersion& version)>
      weights_from;
};
std::shared_ptr<Engine> make_resuming_engine(ResumingEngineSetup setup);

}  // namespace primerl
