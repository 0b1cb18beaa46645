/// An Engine that generates again what a record has, holds it against the record within a
/// tolerance, and answers as recorded (tolerance.h).
///
/// Tokens, ends and the order of both must be equal: the first that is not is told, and what
/// follows is not compared. Weights count from the recorded step on, however long they take to
/// prepare now.
///
/// Threads: those of the engine that it replaces.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kernels/engine/engine.h"
#include "runtime/replay/tolerance.h"
#include "runtime/replay/traced_calls.h"

namespace primerl {

struct CheckedEngineSetup {
  std::unique_ptr<Engine> engine;  // the real one, as made
  NextAnswer next;
  ReplayTolerance tolerance;
  std::shared_ptr<NearNumbers> near = {};  // hears of what was near; may be null
  /// Told once, in the step in which it shows.
  std::function<void(std::string what)> on_divergence;
};
std::unique_ptr<Engine> make_checked_engine(CheckedEngineSetup setup);

}  // namespace primerl
