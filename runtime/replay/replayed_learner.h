/// A Learner that records its answers, and one that answers from the record.
///
/// With the answers in the trace, the Trainer can be replayed without computing a gradient (`replay
/// --depth control`). Of a step only the TrainReport is recorded; the snapshots of a recorded
/// learner have a version but no tensors, which are not needed at that depth.
///
/// Threads: those of the learner that they replace.
#pragma once

#include <memory>

#include "kernels/train/learner.h"
#include "runtime/replay/replayed_answer.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

std::unique_ptr<Learner> make_recording_learner(std::unique_ptr<Learner> learner, KeepAnswer keep);

std::unique_ptr<Learner> make_replayed_learner(NextAnswer next);

/// Number of training steps in a group's record, without skipped ones.
int64_t num_recorded_steps(const Trace& trace, GroupId group);

}  // namespace primerl
