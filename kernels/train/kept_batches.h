/// The batches of the last steps, kept as files for `primerl-graph train-step` (batch_file.h).
///
/// step_NNNNNN.safetensors, and step_NNNNNN.2.safetensors for a second batch of the same step,
/// which comes after one that was skipped. At most `files_max` files of this object are there at
/// once: the oldest goes before the next is written. Files of earlier runs are left alone, or
/// replaced by one of the same name. One thread.
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

  /// Makes the folder and sees whether it takes files.
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
