/// A Learner that answers from the record up to the newest checkpoint, is loaded from it, and takes
/// every later step for real: recorded ones again, with the same outcome or not at all.
///
/// So the weights of every version after the checkpoint are made again, bit for bit where the
/// backend computes so (CPU, equal `threads`), and nothing before it is computed twice. Snapshots
/// of versions before the checkpoint have no tensors.
///
/// Threads: those of the learner it stands for.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "kernels/train/learner.h"
#include "runtime/replay/replayed_answer.h"

namespace primerl {

struct ResumingLearnerSetup {
  std::unique_ptr<Learner> learner;  // the real one, as made
  NextAnswer next;
  std::function<bool()> is_live;
  std::filesystem::path checkpoint;  // to load; empty: none, every step is taken again
  int64_t num_steps = 0;             // that the record takes before it
  /// A step came out otherwise than recorded.
  std::function<void(std::string what)> on_divergence;
};
std::unique_ptr<Learner> make_resuming_learner(ResumingLearnerSetup setup);

}  // namespace primerl
