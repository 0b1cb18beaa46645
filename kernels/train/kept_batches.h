/// The batches of the last steps, kept as files for `primerl-graph train-step` (batch_file.h).
///
/// The file is step_NNNNNN.safetensors, and step_NNNNNN.2.safetensors for a second batch of the
/// same step, which follows a skipped one. At most `files_max` files of this object exist at once:
/// the oldest is deleted before the next is written. Files of earlier runs are not deleted, but one
/// of the same name is replaced. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>

#include "kernels/train/learner.h"

namespace primerl {

class KeptBatches {
 public:
  KeptBatches(std::filesystem::path folder, size_t files_max)
      : folder_(std::move(folder)), files_max_(files_max) {}

  /// Creates the folder and checks that it is writable.
  Status prepare();
  Status keep(int64_t step, const TrainBatch& batch);

 private:
  const std::filesystem::path folder_;
  const size_t files_max_;
  std::deque<std::filesystem::path> files_;  // oldest first
  int64_t step_ = -1;
  int32_t num_of_step_ = 0;
};

}  // namespace primerl
