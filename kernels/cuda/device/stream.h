/// CudaStream: the stream on which an engine's device work is ordered.
///
/// Owns a stream of libtorch's pool. An engine works on its device under a Use, on the engine's
/// thread. libtorch's operations and those of cuda_ops.h then use this stream, one after the other.
/// Copies wait for earlier launches, and the host waits for both in wait().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/result.h"
#include "kernels/cuda/ops/cuda_ops.h"

namespace primerl {

/// The longest that one step may keep a device busy.
inline constexpr Duration kCudaWaitMax = Duration::seconds(300);

/// Converts the outcome of an operation or of a runtime call to a Status; `what` names it.
Status launched(cuda::Outcome outcome, std::string_view what);
Status done(cudaError_t code, std::string_view what);

/// The operations' type for fp32 or bf16; they support no other.
cuda::Type op_type(at::ScalarType type);

/// Frees memory that libtorch caches. An error here occurs again in the next call, which reports
/// it.
void release_kept_memory();

class CudaStream {
 public:
  /// kLow: work waits if the device cannot run both.
  enum class Urgency { kHigh, kLow };

  explicit CudaStream(int32_t device_index, Urgency urgency = Urgency::kHigh)
      : stream_(c10::cuda::getStreamFromPool(urgency == Urgency::kHigh,
                                             static_cast<c10::DeviceIndex>(device_index))) {}

  /// Makes the device and the stream current for the calling thread while it exists.
  class Use {
   public:
    explicit Use(const CudaStream& stream) : guard_(stream.stream_) {}

   private:
    const c10::cuda::CUDAStreamGuard guard_;
  };

  c10::Device device() const { return stream_.device(); }
  cuda::Stream raw() const { return stream_.stream(); }

  /// A copy of `values` on the device; `values` have been read when it returns.
  at::Tensor ints(const std::vector<int32_t>& values) const;
  /// The same for the bytes of `values`.
  template <class T>
  at::Tensor values(std::span<const T> values) const {
    return bytes(std::as_bytes(values));
  }
  at::Tensor bytes(std::span<const std::byte> bytes) const;
  /// Copies bytes to or from the device. Host memory must be pinned and stay valid until wait().
  Status copy(void* to, const void* from, size_t bytes) const;
  /// Copies `rows` rows of `width` bytes, `stride` apart in both.
  Status copy_rows(void* to, const void* from, size_t stride, size_t width, size_t rows) const;

  /// `event` fires when all work launched so far is done.
  void record(c10::Event& event) const { event.record(stream_.unwrap()); }
  /// Later launches wait, on the device, until `event` has fired.
  void wait_for(c10::Event& event) const { event.block(stream_.unwrap()); }
  /// Waits until all launched work is done; kDeadline after kCudaWaitMax.
  Status wait() const;
  /// Waits until `event` has fired, with the same deadline.
  Status wait(const c10::Event& event) const;
  /// After a failure: whether the device still computes for this process. kDeviceLost if not; no
  /// later call changes that. `doing` names the computation that failed.
  Status check_device(std::string_view doing) const;
  /// Returns `outcome`, or kDeviceLost if a lost device is the reason for its failure.
  Status outcome_of(std::string_view doing, Status outcome) const;

 private:
  template <class IsDone>
  Status wait_until(const IsDone& is_done) const;

  const c10::cuda::CUDAStream stream_;
};

}  // namespace primerl
