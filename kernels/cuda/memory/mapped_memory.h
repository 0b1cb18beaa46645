/// One allocation of a CUDA device by the driver's virtual memory management, mapped in this
/// process: its own, or another process's, which has sent a descriptor of it.
///
/// It is read as fast as memory of cudaMalloc(), also over NVLink; what cudaIpcOpenMemHandle() maps
/// of another device is not, since a copy then waits for the device's tables of addresses. Each
/// device that is to read it is named. Torch-free to include; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

#include "graph/base/descriptor.h"
#include "graph/base/result.h"

namespace primerl {

class MappedMemory {
 public:
  /// At least `num_bytes` of a CUDA device. kExhausted: it has less free memory.
  static Result<std::unique_ptr<MappedMemory>> make(int32_t device_index, uint64_t num_bytes);
  /// Maps the memory that share() of another process has sent, `num_bytes` in all, for `reader` to
  /// read.
  static Result<std::unique_ptr<MappedMemory>> take(const Descriptor& sent, int32_t reader,
                                                    uint64_t num_bytes);
  /// Users must have waited for their launches.
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  void* data() const;
  /// Bytes of the mapping: the next multiple of the driver's granularity.
  uint64_t num_bytes() const { return num_bytes_; }
  /// Allows operations of a CUDA device to read and write it.
  Status let_use(int32_t device_index);
  /// For take() of another process. kUnavailable says why the system does not support it.
  Result<Descriptor> share() const;

 private:
  MappedMemory(uint64_t allocation, uint64_t num_bytes)
      : allocation_(allocation), num_bytes_(num_bytes) {}
  Status map();

  const uint64_t allocation_;  // the driver's number of it
  const uint64_t num_bytes_;
  uint64_t address_ = 0;  // 0: not reserved yet
  bool is_mapped_ = false;
  std::mutex mutex_;
  std::set<int32_t> users_;
};

}  // namespace primerl
