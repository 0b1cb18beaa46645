/// The memory of one device as weight channels use it: ownership of buffers, and their names for
/// other processes of the machine. Nothing here depends on the kind of device.
///
/// DeviceBuffer is one buffer; it exists while it is referenced. DeviceMemory allocates buffers and
/// opens those of other processes. DeviceBufferPool is a bounded number of equal buffers that are
/// reused. All are thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

/// Names a buffer for other processes of the machine. Only DeviceMemory interprets its content.
struct DeviceHandle {
  std::array<std::byte, 96> bytes{};
  uint64_t num_bytes = 0;  // of the buffer

  friend bool operator==(const DeviceHandle&, const DeviceHandle&) = default;
};

class DeviceBuffer : public std::enable_shared_from_this<DeviceBuffer> {
 public:
  virtual ~DeviceBuffer() = default;
  /// The buffer itself. For a buffer lent by a pool, it keeps the memory, but not the loan.
  std::shared_ptr<const DeviceBuffer> memory() const { return shared_from_this(); }
  /// N of "cuda:N" of the buffer's device; -1: the device has no number in this process.
  virtual int32_t device_index() const = 0;
  /// Its address for operations of the device; the host must not read it.
  virtual void* data() const = 0;
  virtual uint64_t num_bytes() const = 0;
  /// Copies bytes from `offset` on to the host; complete when it returns. Operations that write
  /// them must have finished before.
  virtual Status read(uint64_t offset, std::span<std::byte> to) const = 0;
  /// Allows operations of another CUDA device of this process to read it, at the speed of their
  /// connection.
  virtual Status reach_from(int32_t device_index) const = 0;
  /// A handle for DeviceMemory::open() in another process, valid while this buffer exists.
  /// kUnavailable says why the system does not support it.
  virtual Result<DeviceHandle> handle() const = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// kExhausted: the device has less free memory.
  virtual Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t num_bytes) = 0;
  /// Opens a buffer of another process for reading. Its memory stays valid until it is released,
  /// even if the other process ends. kUnavailable says why this process cannot open it.
  virtual Result<std::shared_ptr<DeviceBuffer>> open(const DeviceHandle& handle) = 0;
};

/// Lends at most `buffers_max` buffers of `num_bytes`, allocated on demand or in advance.
class DeviceBufferPool {
 public:
  DeviceBufferPool(std::shared_ptr<DeviceMemory> memory, uint64_t num_bytes, size_t buffers_max);
  /// Lent buffers stay with their owners.
  ~DeviceBufferPool();
  DeviceBufferPool(const DeviceBufferPool&) = delete;
  DeviceBufferPool& operator=(const DeviceBufferPool&) = delete;

  /// Lends a free buffer until its last pointer is destroyed. Null: all are lent, or the device has
  /// no space for another. Never waits.
  std::shared_ptr<DeviceBuffer> take();
  /// Allocates a buffer in advance. False: there are buffers_max() already, or the device has no
  /// space.
  bool make();
  /// The free buffers. take() returns one of these next, unless they are freed before.
  std::vector<std::weak_ptr<const DeviceBuffer>> free() const;
  /// Frees the buffers that are not lent.
  void release_free();

  size_t buffers_max() const { return buffers_max_; }
  size_t num_held() const;
  size_t num_made() const;  // lent and free

 private:
  struct Shared {
    std::mutex mutex;
    std::vector<std::shared_ptr<DeviceBuffer>> free;
    size_t num_held = 0;
    bool is_closed = false;  // the pool is gone: returned buffers are freed
  };
  /// Wraps a buffer as take() returns it.
  std::shared_ptr<DeviceBuffer> lent(std::shared_ptr<DeviceBuffer> buffer) const;

  const std::shared_ptr<DeviceMemory> memory_;
  const uint64_t num_bytes_;
  const size_t buffers_max_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace primerl
