/// A device for tests of weight channels on a machine without one. Its memory is named shared
/// memory, which another process can open like a device's; faults can be injected.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/weights/device_weights.h"
#include "kernels/weights/manifest.h"
#include "kernels/weights/shm_segment.h"

namespace primerl {

/// Injected faults of a device, and its counters.
struct FakeDeviceFacts {
  std::atomic<bool> cannot_name = false;  // its memory cannot be named for others
  std::atomic<bool> cannot_open = false;  // memory of others cannot be opened
  std::atomic<bool> cannot_read = false;  // memory cannot be read to the host
  std::atomic<uint64_t> bytes_free = uint64_t{1} << 40;
  std::atomic<int> num_buffers = 0;  // existing own buffers
  std::atomic<int> num_opened = 0;   // open buffers of others
  std::atomic<int> num_opens = 0;    // tried
  std::atomic<int> num_reads = 0;    // reads to the host
  std::atomic<int> num_torn = 0;     // own buffers that were freed while this device had them open

  std::mutex opening;  // locked by each open
  std::mutex mutex;    // guards the following members
  std::multiset<std::string> open_names;
};

class FakeDeviceBuffer final : public DeviceBuffer {
 public:
  FakeDeviceBuffer(std::shared_ptr<FakeDeviceFacts> facts, std::unique_ptr<ShmSegment> segment,
                   uint64_t num_bytes, bool is_own)
      : facts_(std::move(facts)),
        segment_(std::move(segment)),
        num_bytes_(num_bytes),
        is_own_(is_own) {
    ++(is_own_ ? facts_->num_buffers : facts_->num_opened);
    const std::lock_guard lock(facts_->mutex);
    if (!is_own_) facts_->open_names.insert(segment_->name());
  }
  ~FakeDeviceBuffer() override {
    if (is_own_) segment_->remove();
    --(is_own_ ? facts_->num_buffers : facts_->num_opened);
    const std::lock_guard lock(facts_->mutex);
    const auto open = facts_->open_names.find(segment_->name());
    if (open == facts_->open_names.end()) return;
    if (is_own_)
      ++facts_->num_torn;
    else
      facts_->open_names.erase(open);
  }
  int32_t device_index() const override { return 0; }
  void* data() const override { return const_cast<std::byte*>(segment_->bytes().data()); }
  uint64_t num_bytes() const override { return num_bytes_; }
  Status read(uint64_t offset, std::span<std::byte> to) const override {
    ++facts_->num_reads;
    if (facts_->cannot_read) return error(Code::kInternal, "the device does not answer");
    std::memcpy(to.data(), segment_->bytes().data() + offset, to.size());
    return ok();
  }
  Status reach_from(int32_t) const override { return ok(); }
  Result<DeviceHandle> handle() const override {
    if (facts_->cannot_name) return error(Code::kUnavailable, "its memory has no name");
    DeviceHandle handle;
    handle.num_bytes = num_bytes_;
    CHECK(segment_->name().size() < handle.bytes.size(), "a long name");
    std::memcpy(handle.bytes.data(), segment_->name().data(), segment_->name().size());
    return handle;
  }

 private:
  const std::shared_ptr<FakeDeviceFacts> facts_;
  const std::unique_ptr<ShmSegment> segment_;
  const uint64_t num_bytes_;
  const bool is_own_;
};

class FakeDevice final : public DeviceMemory {
 public:
  /// `name` is unique among all processes.
  explicit FakeDevice(std::string name) : name_(std::move(name)) {}

  Result<std::shared_ptr<DeviceBuffer>> allocate(uint64_t num_bytes) override {
    if (num_bytes > facts_->bytes_free) return error(Code::kExhausted, "the device is full");
    const std::string name = fmt::format("primerl-fake-{}-{}-{}", name_, ::getpid(), ++number_);
    ASSIGN_OR_RETURN(auto segment, ShmSegment::create(name, std::max<uint64_t>(num_bytes, 1)));
    return std::shared_ptr<DeviceBuffer>(
        std::make_shared<FakeDeviceBuffer>(facts_, std::move(segment), num_bytes, true));
  }
  Result<std::shared_ptr<DeviceBuffer>> open(const DeviceHandle& handle) override {
    const std::lock_guard lock(facts_->opening);
    ++facts_->num_opens;
    if (facts_->cannot_open) return error(Code::kUnavailable, "the system forbids it");
    const std::string name(reinterpret_cast<const char*>(handle.bytes.data()));
    ASSIGN_OR_RETURN(auto segment, ShmSegment::open(name, ShmSegment::Access::kRead));
    return std::shared_ptr<DeviceBuffer>(
        std::make_shared<FakeDeviceBuffer>(facts_, std::move(segment), handle.num_bytes, false));
  }
  FakeDeviceFacts& facts() { return *facts_; }

 private:
  const std::string name_;
  std::atomic<int> number_ = 0;
  const std::shared_ptr<FakeDeviceFacts> facts_ = std::make_shared<FakeDeviceFacts>();
};

/// `weights` with its bytes in a buffer of `pool`, as a learner on a device publishes it; null: no
/// buffer is free.
inline std::shared_ptr<const WeightSnapshot> on_device(const WeightSnapshot& weights,
                                                       DeviceBufferPool& pool) {
  const auto buffer = pool.take();
  if (buffer == nullptr) return nullptr;
  auto moved = std::make_shared<WeightSnapshot>(weights);
  std::vector<uint64_t> offsets;
  uint64_t offset = 0;
  for (WeightTensor& tensor : moved->tensors) {
    CHECK(offset + tensor.bytes.size() <= buffer->num_bytes(), "a buffer that is too small");
    if (!tensor.bytes.empty())
      std::memcpy(static_cast<std::byte*>(buffer->data()) + offset, tensor.bytes.bytes().data(),
                  tensor.bytes.size());
    offsets.push_back(offset);
    offset += tensor.bytes.size();
    tensor.bytes = {};
  }
  moved->device = std::make_shared<const DeviceWeights>(buffer, std::move(offsets), pool.free());
  return moved;
}

/// fetch(), repeated while the memory of a device is being opened.
inline Result<std::shared_ptr<const WeightSnapshot>> fetch_opened(WeightChannel& channel,
                                                                  WeightsKey key, int64_t version) {
  for (;;) {
    auto fetched = channel.fetch(key, PolicyVersion(version));
    if (fetched.ok() || fetched.error().text().find("is being opened") == std::string::npos)
      return fetched;
    std::this_thread::yield();
  }
}

/// A channel whose publisher has its weights on a device, while the device has space, and whose
/// receiver wants their bytes.
class ChannelOfDevice final : public WeightChannel {
 public:
  /// `channel` may be both ends of one; a version has at most `num_bytes`.
  ChannelOfDevice(std::shared_ptr<WeightChannel> channel, std::shared_ptr<FakeDevice> device,
                  uint64_t num_bytes)
      : channel_(std::move(channel)), pool_(std::move(device), num_bytes, 3) {}

  Status publish(std::shared_ptr<const WeightSnapshot> snapshot) override {
    // Inconsistent snapshots are passed on unchanged.
    if (snapshot == nullptr || !manifest_of(*snapshot).ok())
      return channel_->publish(std::move(snapshot));
    auto moved = on_device(*snapshot, pool_);
    return channel_->publish(moved == nullptr ? std::move(snapshot) : std::move(moved));
  }
  Result<std::shared_ptr<const WeightSnapshot>> fetch(WeightsKey key,
                                                      PolicyVersion version) override {
    ASSIGN_OR_RETURN(auto fetched, fetch_opened(*channel_, key, version.value));
    const std::lock_guard lock(mutex_);
    if (source_.lock() == fetched)
      if (auto same = bytes_.lock()) return same;
    ASSIGN_OR_RETURN(auto bytes, on_host(fetched));
    source_ = fetched;
    // The bytes keep their source alive.
    const WeightSnapshot* const raw = bytes.get();
    auto pair = std::make_shared<std::pair<decltype(fetched), decltype(bytes)>>(fetched, bytes);
    std::shared_ptr<const WeightSnapshot> both(std::move(pair), raw);
    bytes_ = both;
    return both;
  }
  PolicyVersion newest(WeightsKey key) const override { return channel_->newest(key); }
  void drop(WeightsKey key) override { channel_->drop(key); }
  size_t num_held() const { return pool_.num_held(); }
  Status expect(const WeightManifest& wanted) override { return channel_->expect(wanted); }

 private:
  const std::shared_ptr<WeightChannel> channel_;
  DeviceBufferPool pool_;
  std::mutex mutex_;
  std::weak_ptr<const WeightSnapshot> source_, bytes_;
};

}  // namespace primerl
