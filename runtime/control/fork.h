/// `run --fork RUN@step=N`: a new run that begins after training step N of another one.
///
/// If the other run has no complete checkpoint of that step, its record is read, and
/// primerl-worker makes the checkpoint again (runtime/replay/remade_checkpoint.h), in the folder of
/// the new run. The other run is not changed. A tenant that has not taken step
/// N begins from its newest checkpoint before, or from its first step. If tenants came and
/// went, the fork has those that were there at the step (runtime/replay/forked_graph.h); one that
/// had joined begins from a checkpoint that was kept.
#pragma once

#include <string>

#include "graph/plan.h"
#include "runtime/control/run_preparation.h"

namespace primerl {

/// Parses RUN@step=N.
Result<ResumeChoice> read_fork(const std::string& fork);

/// Finds every tenant's checkpoint, or what must be played to make it again
/// (ResumeChoice::remakes).
Status choose_fork_points(const Plan& plan, ResumeChoice& choice);

/// Makes the checkpoints of choice.remakes again, in the new run `folder`, and sets the points. One
/// worker after the other; kCancelled after Ctrl-C. Call it from the main thread, while a
/// SignalCounter lives.
Status make_fork_checkpoints(const Plan& plan, const RunFolder& folder, ResumeChoice& choice);

}  // namespace primerl
