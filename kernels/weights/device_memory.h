/// The memory of one device as weight channels use it: who has a piece of it, and how another
/// process of the machine names that piece. Nothing here knows which device it is.
///
/// DeviceBuffer is one piece; it lives as long as somebody holds it. DeviceMemory makes pieces and
/// opens those of other processes. DeviceBufferPool is a bounded number of equal pieces, which are
/// used again. All are thread-safe.
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

/// Names a piece for the other processes of a machine. What it says is for its DeviceMemory alone.
struct DeviceHandle {
  std::array<std::byte, 96> bytes{};
  uint64_t num_bytes = 0;  // of the piece

  friend bool operator==(const DeviceHandle&, const DeviceHandle&) = default;
};

class DeviceBuffer : public std::enable_shared_from_this<DeviceBuffer> {
 public:
  virtual ~DeviceBuffer() = default;
  /// The piece itself, also of one that a pool has lent: keeps its memory, and not the loan.
  std::shared_ptr<const DeviceBuffer> memory() const { return shared_from_this(); }
  /// N of "cuda:N" where the piece lies; -1: on a device that has no number in this process.
  virtual int32_t device_index() const = 0;
  /// Where operations of the device find it; the host may not read it.
  virtual void* data() const = 0;
  virtual uint64_t num_bytes() const = 0;
  /// Bytes from `offset` on to the host; has them when it returns. What was launched to write them
  /// must be done.
  virtual Status read(uint64_t offset, std::span<std::byte> to) const = 0;
  /// Lets operations of another card of this process read it, as fast as the two can.
  virtual Status reach_from(int32_t device_index) const = 0;
  /// For DeviceMemory::open() of another process, while this piece lives. kUnavailable says why
  /// the system has no such thing.
  virtual Result<DeviceHandle> handle() const = 0;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  /// kExhausted: the device has not so much left.
  virtual Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t num_bytes) = 0;
  /// A piece of another process, to read. Its memory stays until it is let go, also when the other
  /// process ends. kUnavailable says why this process cannot have it.
  virtual Result<std::shared_ptr<DeviceBuffer>> open(const DeviceHandle& handle) = 0;
};

/// Hands out at most `buffers_max` pieces of `num_bytes`, made when they are needed or before.
class DeviceBufferPool {
 public:
  DeviceBufferPool(std::shared_ptr<DeviceMemory> memory, uint64_t num_bytes, size_t buffers_max);
  /// What is held stays with its holders.
  ~DeviceBufferPool();
  DeviceBufferPool(const DeviceBufferPool&) = delete;
  DeviceBufferPool& operator=(const DeviceBufferPool&) = delete;

  /// One that nobody holds, until its last pointer dies. Null: all are held, or the device has no
  /// room for another. Never waits.
  std::shared_ptr<DeviceBuffer> take();
  /// One more before it is needed. False: there are buffers_max(), or the device has no room.
  bool make();
  /// Those that nobody holds, in which what is taken next will lie unless they are released.
  std::vector<std::weak_ptr<const DeviceBuffer>> free() const;
  /// Gives those that nobody holds back to the device.
  void release_free();

  size_t buffers_max() const { return buffers_max_; }
  size_t num_held() const;
  size_t num_made() const;  // held and free

 private:
  struct Shared {
    std::mutex mutex;
    std::vector<std::shared_ptr<DeviceBuffer>> free;
    size_t num_held = 0;
    bool is_closed = false;  // the pool is gone: what comes back is not kept
  };
  /// As an answer of take().
  std::shared_ptr<DeviceBuffer> lent(std::shared_ptr<DeviceBuffer> buffer) const;

  const std::shared_ptr<DeviceMemory> memory_;
  const uint64_t num_bytes_;
  const size_t buffers_max_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace primerl
