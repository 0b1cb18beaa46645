/// One allocation of a CUDA device by the driver's virtual memory management, mapped in this
/// process: its own, or one of another process that has sent a descriptor.
///
/// Reading is as fast as from memory of cudaMalloc(), also over NVLink. Memory of another device
/// mapped by cudaIpcOpenMemHandle() is slower, since a copy then waits for the device's page
/// tables. Each device that will read it must be named. Independent of torch; thread-safe.
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
  /// At least `num_bytes` of a CUDA device. kExhausted: the device has less free memory.
  static Result<std::unique_ptr<MappedMemory>> make(int32_t device_index, uint64_t num_bytes);
  /// Maps the memory of another process, received from its share(): `num_bytes` in all, readable by
  /// `reader`.
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
  /// Returns a descriptor for take() in another process. kUnavailable says why the system does not
  /// support it.
  Result<Descriptor> share() const;

 private:
  MappedMemory(uint64_t allocation, uint64_t num_bytes)
      : allocation_(allocation), num_bytes_(num_bytes) {}
  Status map();

  const uint64_t allocation_;  // the driver's handle
  const uint64_t num_bytes_;
  uint64_t address_ = 0;  // 0: not reserved
  bool is_mapped_ = false;
  std::mutex mutex_;
  std::set<int32_t> users_;
};

}  // namespace primerl
