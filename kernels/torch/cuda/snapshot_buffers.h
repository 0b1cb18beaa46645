/// The buffers of a CUDA device from which engines take a learner's weights. They are not counted
/// as needed: they are made where the device has room for them beside what the learner's steps
/// take, all with the first snapshot, so that engines open them before their first step; one that
/// was given back since, when it is needed.
/// One thread; what is lent may die on any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/weights/device_weights.h"

namespace primerl {

class SnapshotBuffers {
 public:
  /// At most `buffers_max` of `num_bytes`. `kept_bytes` stay free for whatever comes, and until
  /// has_stepped() `first_step_bytes` beside them.
  SnapshotBuffers(int32_t card, uint64_t num_bytes, int32_t buffers_max, double kept_bytes,
                  double first_step_bytes);

  /// Null: all are held, or there is no room for another; the snapshot goes through the host, which
  /// is counted.
  std::shared_ptr<DeviceBuffer> take();
  /// Where later snapshots will lie.
  DeviceWeights::Buffers next() const { return pool_.free(); }
  void has_stepped() { first_step_bytes_ = 0; }
  /// Those that nobody holds go back to the device.
  void release_free() { pool_.release_free(); }
  /// "3 buffers for engines, 0 snapshots by the host".
  std::string text() const;

 private:
  bool has_room() const;
  void make_all();

  const int32_t card_;
  const uint64_t num_bytes_;
  const double kept_bytes_;
  double first_step_bytes_;
  bool were_made_ = false;
  int64_t num_by_host_ = 0;
  DeviceBufferPool pool_;
};

}  // namespace primerl
