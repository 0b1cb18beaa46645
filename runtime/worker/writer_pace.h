/// The pauses of a thread that writes beside the steps of a learner.
///
/// With nice 19 such a thread has 1.5 % of a core that others want too. Threads of a step wait for
/// each other, so the whole step lasts 1.5 % longer. A pause after each piece brings that to 0.4 %.
/// There is no pause while no step runs, while the thread gets a core whenever it wants one, and
/// once `kPausesMax` has passed: then the checkpoint matters more.
///
/// A value; one thread. Sleeps are the caller's.
#pragma once

#include <optional>

#include "graph/base/clock.h"
#include "graph/base/descriptor.h"

namespace primerl {

/// The sum of all pauses of one checkpoint.
inline constexpr Duration kPausesMax = Duration::seconds(300);

class WriterPace {
 public:
  /// The sleep after a piece that lasted `lasted`, of which the thread waited `waited` for
  /// a core. `is_computing`: a step runs.
  Duration pause_after(Duration lasted, Duration waited, bool is_computing);

 private:
  Duration sum_;  // of the pauses so far
};

/// The time that the calling thread has waited for a core, from the system's accounting. Empty if
/// the system has none. Opened once, by the thread that is measured.
class CoreWaits {
 public:
  CoreWaits();
  std::optional<Duration> read() const;

 private:
  Descriptor file_;
};

}  // namespace primerl
