/// Shared code of the ATen operations of cuda_ops.h: tensors over the caller's memory, on its
/// stream.
///
/// These operations replace the kernels of ops/cuda in builds without nvcc. They are the same
/// functions and refuse the same arguments (cuda_checks.h). They differ in three ways: they
/// allocate, some wait for the device, and none may be captured in a CUDA graph. With a CUDA
/// libtorch (PRIMERL_ATEN_ON_CUDA), memory is on the device. Otherwise it is on the host and the
/// stream is null, so that tests can compare them with the CPU's on any machine.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/core/InferenceMode.h>

#ifdef PRIMERL_ATEN_ON_CUDA
#include <c10/cuda/CUDAGuard.h>
#endif

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/cuda/ops/cuda_checks.h"

namespace primerl::cuda {

/// Elements of one part of the rows: an operation allocates a few times that.
inline constexpr int64_t kPartNumbers = int64_t{1} << 24;
/// Rows of a table of unknown length. Only the named rows are touched.
inline constexpr int64_t kAnyRows = 0x7fffffff;

at::ScalarType scalar_type(Type type);

/// While it exists, libtorch computes on `stream`, without gradients.
class OnStream {
 public:
  explicit OnStream(Stream stream);

  /// Tensors over the caller's memory; dense except as `strides` says.
  at::Tensor of(Type type, const void* data, at::IntArrayRef sizes) const;
  at::Tensor of(Type type, const void* data, at::IntArrayRef sizes, at::IntArrayRef strides) const;
  at::Tensor floats(const float* data, at::IntArrayRef sizes) const;
  at::Tensor ints(const int32_t* data, at::IntArrayRef sizes) const;
  at::Tensor ints(const int32_t* data, at::IntArrayRef sizes, at::IntArrayRef strides) const;
  at::Tensor bytes(const void* data, int64_t count) const;

  at::TensorOptions options(at::ScalarType type) const;
  /// A copy on the host; waits for the device.
  at::Tensor on_host(const at::Tensor& values) const;

 private:
  at::Tensor over(const void* data, at::ScalarType type, at::IntArrayRef sizes,
                  at::IntArrayRef strides) const;

  const c10::InferenceMode no_gradients_;
#ifdef PRIMERL_ATEN_ON_CUDA
  std::optional<c10::cuda::CUDAStreamGuard> guard_;
#endif
  c10::Device device_;
};

/// Calls body(first, count) for parts of `rows` rows, each of about kPartNumbers elements.
template <class Body>
void for_parts(int64_t rows, int64_t width, Body&& body) {
  const int64_t most = std::max<int64_t>(1, kPartNumbers / std::max<int64_t>(1, width));
  for (int64_t first = 0; first < rows; first += most) body(first, std::min(most, rows - first));
}

/// In fp32; copied only if it is another type.
inline at::Tensor wide(const at::Tensor& values) { return values.to(at::kFloat); }

}  // namespace primerl::cuda
