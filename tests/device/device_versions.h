/// Versions of weights in the memory of a CUDA device for tests: every byte depends on the version.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/weights/device_weights.h"

namespace primerl {

inline constexpr int64_t kCudaElements = int64_t{3} << 20;  // of bf16, in two tensors

inline std::byte byte_of(int64_t version, size_t at) {
  return static_cast<std::byte>(static_cast<size_t>(version) * 31 + at * 7 + at / 4096);
}

/// In a buffer of `pool`, on `device_index`; as bytes on the host if all buffers are in use.
inline std::shared_ptr<const WeightSnapshot> device_version(DeviceBufferPool& pool,
                                                            int device_index, int64_t version) {
  auto made = std::make_shared<WeightSnapshot>();
  made->version = PolicyVersion(version);
  made->tensors = {{"a.weight", DataType::kBF16, {kCudaElements / 4, 3}, {}},
                   {"b.weight", DataType::kBF16, {kCudaElements / 4}, {}}};
  std::vector<std::byte> bytes(static_cast<size_t>(kCudaElements) * 2);
  for (size_t at = 0; at < bytes.size(); ++at) bytes[at] = byte_of(version, at);
  const size_t second = bytes.size() / 4 * 3;
  const auto buffer = pool.take();
  if (buffer == nullptr) {
    made->tensors[0].bytes = Blob({bytes.begin(), bytes.begin() + static_cast<int64_t>(second)});
    made->tensors[1].bytes = Blob({bytes.begin() + static_cast<int64_t>(second), bytes.end()});
    return made;
  }
  EXPECT_EQ(cudaSetDevice(device_index), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(buffer->data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
            cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  made->device = std::make_shared<const DeviceWeights>(
      buffer, std::vector<uint64_t>{0, uint64_t{second}}, pool.free());
  return made;
}

inline bool is_whole_device_version(const WeightSnapshot& snapshot, int64_t version) {
  const auto tensors = tensors_on_host(snapshot);
  if (!tensors.ok() || snapshot.version != PolicyVersion(version)) return false;
  size_t at = 0;
  for (const auto& tensor : *tensors)
    for (const std::byte byte : tensor.bytes.bytes())
      if (byte != byte_of(version, at++)) return false;
  return at == static_cast<size_t>(kCudaElements) * 2;
}

}  // namespace primerl
