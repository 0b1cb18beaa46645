/// Copies weights to a flat buffer of a CUDA device, from the host's memory or from a buffer of a
/// device.
///
/// Owns a stream and two pinned parts: while one is copied to the device, the host fills the other.
/// So pageable memory is read at full speed, and no copy of it blocks. Weights of another type are
/// converted on the device. One thread at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <array>
#include <stop_token>
#include <vector>

#include "kernels/cuda/device/stream.h"
#include "kernels/models/tensors.h"
#include "kernels/weights/device_memory.h"

namespace primerl {

class WeightUpload {
 public:
  /// Into buffers of `type` (kFloat or kBFloat16) on `device`.
  WeightUpload(at::ScalarType type, c10::Device device);

  /// Fills `flat` from memory of the host, directly where it is pinned. `flat` must be unused
  /// meanwhile; it is complete when this returns ok. If `stop` is requested, it ends between two
  /// parts with kUnavailable. Uses the calling thread's device.
  Status run(const TensorMatch& match, const at::Tensor& flat, const std::stop_token& stop);

  /// Copies a buffer of the same layout and type into `flat`; complete when this returns ok.
  Status take(const DeviceBuffer& buffer, const at::Tensor& flat);

  /// Bytes that it allocates on the device.
  static double bytes_needed();

  /// Waits for the event `is_done`, asleep between polls; kDeadline after kCudaWaitMax. Any thread.
  static Status await(const c10::Event& is_done);

 private:
  struct Part {
    at::Tensor host, device;  // [bytes], the host's pinned
    c10::Event is_read{c10::DeviceType::CUDA};
  };

  /// Numbers that are adjacent at both ends: one tensor, or several.
  struct Piece {
    const std::byte* from = nullptr;
    at::ScalarType type = at::kFloat;
    int64_t to = 0, count = 0;  // numbers of `flat`
  };
  static std::vector<Piece> pieces_of(const TensorMatch& match);
  Status copy(const Piece& piece, const at::Tensor& flat, const std::stop_token& stop);

  const at::ScalarType type_;
  const CudaStream stream_;
  std::array<Part, 2> parts_;
  size_t now_ = 0;    // index of the part being filled
  int64_t used_ = 0;  // bytes of it
};

}  // namespace primerl
