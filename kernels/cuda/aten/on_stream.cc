#include "kernels/cuda/aten/on_stream.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace primerl::cuda {
namespace {

at::DimVector dense_strides(at::IntArrayRef sizes) {
  at::DimVector strides(sizes.size(), 1);
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  return strides;
}

}  // namespace

#ifdef PRIMERL_ATEN_ON_CUDA

OnStream::OnStream(Stream stream) : device_(c10::DeviceType::CUDA, c10::cuda::current_device()) {
  if (c10::cuda::getCurrentCUDAStream(device_.index()).stream() == stream) return;
  guard_.emplace(c10::cuda::getStreamFromExternal(stream, device_.index()));
}

/// Pageable memory would be copied much slower.
at::Tensor OnStream::on_host(const at::Tensor& values) const {
  const auto pinned = at::TensorOptions().dtype(values.scalar_type()).pinned_memory(true);
  at::Tensor host = at::empty(values.sizes(), pinned);
  return host.copy_(values);
}

#else

OnStream::OnStream(Stream) : device_(c10::DeviceType::CPU) {}

at::Tensor OnStream::on_host(const at::Tensor& values) const { return values.clone(); }

#endif

at::ScalarType scalar_type(Type type) {
  return type == Type::kFloat32 ? at::kFloat : at::kBFloat16;
}

bool has_own_kernels() { return false; }

at::TensorOptions OnStream::options(at::ScalarType type) const {
  return at::TensorOptions(device_).dtype(type);
}

/// from_blob() asks the driver for the memory's device unless the caller names it.
at::Tensor OnStream::over(const void* data, at::ScalarType type, at::IntArrayRef sizes,
                          at::IntArrayRef strides) const {
  return at::for_blob(const_cast<void*>(data), sizes)
      .strides(strides)
      .options(options(type))
      .target_device(device_)
      .make_tensor();
}

at::Tensor OnStream::of(Type type, const void* data, at::IntArrayRef sizes) const {
  return over(data, scalar_type(type), sizes, dense_strides(sizes));
}
at::Tensor OnStream::of(Type type, const void* data, at::IntArrayRef sizes,
                        at::IntArrayRef strides) const {
  return over(data, scalar_type(type), sizes, strides);
}
at::Tensor OnStream::floats(const float* data, at::IntArrayRef sizes) const {
  return over(data, at::kFloat, sizes, dense_strides(sizes));
}
at::Tensor OnStream::ints(const int32_t* data, at::IntArrayRef sizes) const {
  return over(data, at::kInt, sizes, dense_strides(sizes));
}
at::Tensor OnStream::ints(const int32_t* data, at::IntArrayRef sizes,
                          at::IntArrayRef strides) const {
  return over(data, at::kInt, sizes, strides);
}
at::Tensor OnStream::bytes(const void* data, int64_t count) const {
  return over(data, at::kByte, {count}, {1});
}

}  // namespace primerl::cuda
