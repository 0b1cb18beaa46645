/// An Engine that generates recorded answers again, compares them with the record within a
/// tolerance (tolerance.h), and returns the recorded answers.
///
/// Tokens, ends and their order must be equal. The first difference is reported, and later answers
/// are not compared. Weights apply from the recorded step on, however long their preparation takes
/// now.
///
/// Threads: the same as those of the engine that it replaces.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/engine/engine.h"
#include "runtime/replay/tolerance.h"
#include "runtime/replay/traced_calls.h"

namespace primerl {

struct CheckedEngineSetup {
  std::shared_ptr<Engine> engine;  // the real engine, as made
  NextAnswer next;
  ReplayTolerance tolerance;
  std::shared_ptr<ToleranceCounts> near = {};  // counts the compared numbers; may be null
  /// Called once, in the step where the first difference is found.
  std::function<void(std::string what)> on_divergence;
};
std::shared_ptr<Engine> make_checked_engine(CheckedEngineSetup setup);

}  // namespace primerl
