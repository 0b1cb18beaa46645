/// A Learner that writes down what it answers, and one that answers from the record.
///
/// With the answers in the trace, the Trainer can be replayed without computing a gradient
/// (`replay --depth control`). What is kept of a step is its TrainReport; the snapshots of a
/// recorded learner have a version and no tensors, which nobody reads at that depth.
///
/// Threads: those of the learner they stand for.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/train/learner.h"

namespace primerl {

/// Takes one answer; called inside the learner's calls.
using KeepAnswer = std::function<void(std::vector<std::byte>)>;
std::unique_ptr<Learner> make_recording_learner(std::unique_ptr<Learner> learner, KeepAnswer keep);

/// The next answer of the step in hand; null: the recorded run asked for fewer.
using NextAnswer = std::function<const std::vector<std::byte>*()>;
std::unique_ptr<Learner> make_recorded_learner(NextAnswer next);

/// Answers from the record up to training step `checkpoint_step`, then is the real learner, loaded
/// from the checkpoint of that step (at step 0: from the start, without one). As long as the record
/// goes on, each real step must report what the record says, bit for bit: an error names the
/// number that differs. Beyond it every answer is kept.
struct RecoveredLearnerSetup {
  NextAnswer next;
  std::function<Result<std::unique_ptr<Learner>>()> make;
  std::filesystem::path checkpoint;
  int64_t checkpoint_step = 0;
  KeepAnswer keep;
};
Result<std::unique_ptr<Learner>> make_recovered_learner(RecoveredLearnerSetup setup);

}  // namespace primerl
