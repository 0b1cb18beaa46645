/// An Engine that answers from the record until the run resumes, then is a real one.
///
/// Sequences that were submitted and had not finished when the run was cut off are submitted again
/// to the real engine, in the order of their ids, under the newest weights the engine had applied
/// (or the oldest that can still be made, when those came before the checkpoint): their tokens are
/// generated anew from the prompt. Prefill and Decode are not told a second time what they had
/// heard. Sequences beyond the engine's waiting queue wait here until there is room.
///
/// Threads: those of the engine it stands for.
#pragma once

#include <functional>
#include <memory>

#include "kernels/engine/engine.h"
#include "runtime/replay/replayed_answer.h"

namespace primerl {

struct ResumingEngineSetup {
  std::unique_ptr<Engine> engine;  // the real one, as made
  NextAnswer next;
  std::function<bool()> is_live;
  /// Weights of `version`, or of the first after it that exist; asked once, when the run resumes,
  /// if the engine had applied some whose tensors are not known.
  std::function<Result<std::shared_ptr<const WeightSnapshot>>(PolicyVersion version)> weights_from;
};
std::unique_ptr<Engine> make_resuming_engine(ResumingEngineSetup setup);

}  // namespace primerl
