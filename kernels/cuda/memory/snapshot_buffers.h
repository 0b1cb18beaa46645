/// The buffers of a CUDA device from which engines copy a learner's weights. They are optional
/// memory: they are allocated only if the device has free memory beside the learner's steps. All
/// are allocated with the first snapshot, so that engines open them before their first step. A
/// buffer that was freed since is allocated again when needed. One thread; a lent buffer may be
/// released on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/weights/device_weights.h"

namespace primerl {

class SnapshotBuffers {
 public:
  /// At most `buffers_max` buffers of `num_bytes`. `kept_bytes` always stay free; until
  /// has_stepped() also `first_step_bytes`.
  SnapshotBuffers(int32_t device_index, uint64_t num_bytes, int32_t buffers_max, double kept_bytes,
                  double first_step_bytes);

  /// Null: all are in use, and there is no free memory for another. Then the snapshot is copied
  /// through the host, which is counted.
  std::shared_ptr<DeviceBuffer> take();
  /// The address of later snapshots.
  DeviceWeights::Buffers next() const { return pool_.free(); }
  void has_stepped() { first_step_bytes_ = 0; }
  /// Frees the unused ones.
  void release_free() { pool_.release_free(); }
  /// "3 buffers for engines, 0 snapshots by the host".
  std::string text() const;

 private:
  bool has_space() const;
  void make_all();

  const int32_t device_index_;
  const uint64_t num_bytes_;
  const double kept_bytes_;
  double first_step_bytes_;
  bool were_made_ = false;
  int64_t num_by_host_ = 0;
  DeviceBufferPool pool_;
};

}  // namespace primerl
