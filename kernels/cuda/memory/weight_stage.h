/// A second set of an engine's weights, which is filled while steps continue.
///
/// Owns the buffer and the thread that fills it. begin(), holds() and wait() are called on the
/// engine's thread. begin() retains its snapshot, so that the same bytes are recognised by their
/// address.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "kernels/cuda/memory/weight_upload.h"
#include "kernels/weights/device_weights.h"

namespace primerl {

/// Whether a mixture has router biases, which are exact only in fp32, also with bf16 weights.
bool has_selection_biases(const TensorTable& table);
/// The type of a snapshot on a device whose buffer has the layout of `table`; empty: another
/// layout, or on the host.
std::optional<at::ScalarType> type_on_device(const TensorTable& table,
                                             const WeightSnapshot& snapshot);
/// Whether one copy of the snapshot's buffer fills a flat buffer of `type`.
bool has_same_layout(const TensorTable& table, at::ScalarType type, const WeightSnapshot& snapshot);

class WeightStage {
 public:
  /// `table` and `upload` must stay valid while it exists. Only this object uses `upload` between
  /// begin() and wait() or stop().
  WeightStage(const TensorTable& table, const at::Tensor& like, WeightUpload& upload);
  ~WeightStage() { stop(); }

  /// Fills the buffer with `snapshot`, on another thread, from the host or from another device; an
  /// earlier fill is cancelled. Host tensors that do not match the model are refused at once. For
  /// tensors on a device wait() reports that, since their bytes cannot be checked before.
  Status begin(const std::shared_ptr<const WeightSnapshot>& snapshot);
  /// Whether the tensors of `snapshot` are those that were begun, in the same memory.
  bool holds(const WeightSnapshot& snapshot) const;
  /// Whether the begun fill is of a newer version than `snapshot`.
  bool is_newer_than(const WeightSnapshot& snapshot) const {
    return snapshot_ != nullptr && snapshot_->version > snapshot.version;
  }
  /// Whether wait() would not wait.
  bool is_done() const { return is_done_.load(std::memory_order_acquire); }
  /// Waits until the buffer is filled and returns the result. After a failure the buffer is empty.
  Status wait();
  /// Cancels the fill; the buffer is empty.
  void stop();

  const at::Tensor& flat() const { return flat_; }

 private:
  Status fill(const std::stop_token& stop);

  const TensorTable& table_;
  WeightUpload& upload_;
  const at::Tensor flat_;
  std::shared_ptr<const WeightSnapshot> snapshot_;
  std::atomic<bool> is_done_ = true;
  Status outcome_;  // of the thread, once it is done
  std::jthread thread_;
};

}  // namespace primerl
