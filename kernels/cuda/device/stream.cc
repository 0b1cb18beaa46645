#include "kernels/cuda/device/stream.h"

#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "graph/base/real_clock.h"
#include "kernels/common/boundary.h"
#include "kernels/cuda/device/cuda_devices.h"

namespace primerl {

Status launched(cuda::Outcome outcome, std::string_view what) {
  if (outcome.is_ok()) return ok();
  return error(Code::kInternal, "CUDA operation '{}': {}", what, outcome.fault);
}

Status done(cudaError_t code, std::string_view what) {
  if (code == cudaSuccess) return ok();
  static_cast<void>(cudaGetLastError());
  const bool is_full = code == cudaErrorMemoryAllocation;
  return error(is_full ? Code::kExhausted : Code::kInternal, "{}: {}", what,
               cudaGetErrorString(code));
}

cuda::Type op_type(at::ScalarType type) {
  return type == at::kFloat ? cuda::Type::kFloat32 : cuda::Type::kBfloat16;
}

void release_kept_memory() {
  static_cast<void>(at_boundary("giving memory back", [] {
    c10::cuda::CUDACachingAllocator::emptyCache();
    return ok();
  }));
}

at::Tensor CudaStream::ints(const std::vector<int32_t>& values) const {
  auto* data = const_cast<int32_t*>(values.data());  // not written
  return at::from_blob(data, {std::ssize(values)}, at::kInt).to(device());
}

at::Tensor CudaStream::bytes(std::span<const std::byte> bytes) const {
  auto* data = const_cast<std::byte*>(bytes.data());  // not written
  return at::from_blob(data, {std::ssize(bytes)}, at::kByte).to(device());
}

Status CudaStream::copy(void* to, const void* from, size_t bytes) const {
  return done(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, raw()), "a copy to the device");
}

Status CudaStream::copy_rows(void* to, const void* from, size_t stride, size_t width,
                             size_t rows) const {
  return done(cudaMemcpy2DAsync(to, stride, from, stride, width, rows, cudaMemcpyDefault, raw()),
              "a copy of rows to the device");
}

/// The error that a failed capture leaves says nothing about the device.
Status CudaStream::check_device(std::string_view doing) const {
  static_cast<void>(cudaGetLastError());
  const cudaError_t code = cudaStreamQuery(raw());
  const bool is_capture =
      code >= cudaErrorStreamCaptureUnsupported && code <= cudaErrorStreamCaptureWrongThread;
  if (code == cudaSuccess || code == cudaErrorNotReady || is_capture) return ok();
  return device_lost(doing, cudaGetErrorName(code), cudaGetErrorString(code));
}

Status CudaStream::outcome_of(std::string_view doing, Status outcome) const {
  if (outcome.ok()) return outcome;
  RETURN_IF_ERROR(check_device(doing));
  return outcome;
}

/// Busy-waits: a sleeping wait would add its wake-up time to every token.
template <class IsDone>
Status CudaStream::wait_until(const IsDone& is_done) const {
  const auto deadline = deadline_after(kCudaWaitMax);
  for (;;) {
    ASSIGN_OR_RETURN(const bool has_happened, is_done());
    if (has_happened) return ok();
    if (std::chrono::steady_clock::now() < deadline) continue;
    return error(Code::kDeadline, "the device has been busy with one step for {} s",
                 kCudaWaitMax.to_seconds());
  }
}

Status CudaStream::wait() const {
  return wait_until([this]() -> Result<bool> {
    const cudaError_t code = cudaStreamQuery(raw());
    if (code == cudaErrorNotReady) return false;
    RETURN_IF_ERROR(done(code, "the device failed"));
    return true;
  });
}

/// Querying an event throws if the device has failed.
Status CudaStream::wait(const c10::Event& event) const {
  return wait_until([&]() -> Result<bool> { return event.query(); });
}

}  // namespace primerl
