#include "kernels/cuda/device/device.h"

#include <cuda_runtime_api.h>

#include <cstdlib>

namespace primerl {
namespace {

/// Asks the device itself, which fails if another process uses it exclusively.
cudaError_t ask_for_memory(int32_t device_index, size_t& free_bytes, size_t& total_bytes) {
  int before = 0;
  cudaError_t fault = cudaGetDevice(&before);
  if (fault == cudaSuccess) fault = cudaSetDevice(device_index);
  if (fault == cudaSuccess) fault = cudaMemGetInfo(&free_bytes, &total_bytes);
  // Clears the error, so that the next call does not report it.
  if (fault != cudaSuccess) static_cast<void>(cudaGetLastError());
  static_cast<void>(cudaSetDevice(before));
  return fault;
}

class DriverDevices final : public CudaDeviceSource {
 public:
  CudaDriver driver() override {
    CudaDriver driver;
    driver.built_for = CUDART_VERSION;
    if (cudaDriverGetVersion(&driver.version) != cudaSuccess) driver.version = 0;
    const cudaError_t fault = cudaGetDeviceCount(&driver.num_cuda_devices);
    if (fault != cudaSuccess) driver.num_cuda_devices = 0;
    if (fault != cudaSuccess && fault != cudaErrorNoDevice)
      driver.fault = cudaGetErrorString(fault);
    static_cast<void>(cudaGetLastError());
    if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr)
      driver.visible = visible;
    return driver;
  }

  CudaDeviceFacts facts(int32_t index) override {
    CudaDeviceFacts facts;
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t fault = ask_for_memory(index, free_bytes, total_bytes);
    cudaDeviceProp properties{};
    if (fault == cudaSuccess) fault = cudaGetDeviceProperties(&properties, index);
    if (fault != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      facts.fault = cudaGetErrorString(fault);
      return facts;
    }
    facts.free_bytes = static_cast<double>(free_bytes);
    facts.total_bytes = static_cast<double>(total_bytes);
    facts.num_processors = properties.multiProcessorCount;
    facts.name = properties.name;
    facts.capability_major = properties.major;
    return facts;
  }
};

}  // namespace

std::string why_no_cuda_device(std::string_view device) {
  DriverDevices devices;
  return why_not_on_cuda_device(devices, device);
}

Result<CudaDeviceFacts> cuda_device_facts(int32_t device_index) {
  CudaDeviceFacts facts = DriverDevices().facts(device_index);
  if (!facts.fault.empty())
    return error(Code::kUnavailable, "cuda:{}: {}", device_index, facts.fault);
  return facts;
}

bool is_pinned(const void* memory) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, memory) == cudaSuccess)
    return attributes.type == cudaMemoryTypeHost;
  static_cast<void>(cudaGetLastError());  // so that no later call reports it
  return false;
}

}  // namespace primerl
