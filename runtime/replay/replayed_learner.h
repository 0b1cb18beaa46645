/// A Learner that writes down what it answers, and one that answers from the record.
///
/// With the answers in the trace, the Trainer can be replayed without computing a gradient
/// (`replay --depth control`). What is kept of a step is its TrainReport; the snapshots of a
/// recorded learner have a version and no tensors, which nobody reads at that depth.
///
/// Threads: those of the learner they stand for.
#pragma once

#include <memory>

#include "kernels/train/learner.h"
#include "runtime/replay/replayed_answer.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

std::unique_ptr<Learner> make_recording_learner(std::unique_ptr<Learner> learner, KeepAnswer keep);

std::unique_ptr<Learner> make_replayed_learner(NextAnswer next);

/// Training steps that a group's record holds, skipped ones not counted.
int64_t num_recorded_steps(const Trace& trace, GroupId group);

}  // namespace primerl
