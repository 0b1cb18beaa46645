/// An Engine that answers from the record until the run resumes, and then from a real engine.
///
/// Sequences that were submitted and had not finished when the run was cut off are submitted again
/// to the real engine, in the order of their ids, with the newest weights of each key that the
/// engine had applied (or the oldest that can still be made, when those were before the
/// checkpoint): their tokens are generated again from the prompt. Prefill and Decode are not told
/// anything twice. Sequences beyond the engine's waiting queue wait here until there is room.
///
/// Threads: those of the engine that it replaces.
#pragma once

#include <functional>
#include <memory>

#include "kernels/engine/engine.h"
#include "runtime/replay/traced_calls.h"

namespace primerl {

struct ResumingEngineSetup {
  std::unique_ptr<Engine> engine;  // the real one, as made
  NextAnswer next;
  std::function<bool()> is_live;
  /// Weights of `version`, or of the first later version of its key that exists; called once for a
  /// key, when the run resumes, if the tensors that the engine had applied are not known.
  std::function<Result<std::shared_ptr<const WeightSnapshot>>(const KeyedVersion& version)>
      weights_from;
};
std::unique_ptr<Engine> make_resuming_engine(ResumingEngineSetup setup);

}  // namespace primerl
