/// The publisher's part of a shared-memory weight channel: one slot (shm_slot.h) for each readable
/// version.
///
/// With ChannelSetup::devices, weights on a device stay there and their slot has their location.
/// The publisher keeps the loan of the buffer until the version is retired and no receiver reads
/// the slot; the slot's lock shows that, also for a killed receiver. It keeps the memory until no
/// receiver has it open (shm_places.h). If a receiver refuses, or a buffer cannot be named, all
/// versions are sent as bytes. Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/weights/device_weights.h"
#include "kernels/weights/handshake.h"
#include "kernels/weights/shm_directory.h"
#include "kernels/weights/shm_places.h"
#include "kernels/weights/shm_slot.h"

namespace primerl {

/// Device versions that this process has published, for receivers in the same process: memory
/// cannot be opened by the process that owns it. Thread-safe.
class PublishedHere {
 public:
  void add(uint64_t publication, std::shared_ptr<const DeviceBuffer> buffer);
  /// Null: published by another process, or retired.
  std::shared_ptr<const DeviceBuffer> find(uint64_t publication) const;

 private:
  mutable std::mutex mutex_;
  std::map<uint64_t, std::weak_ptr<const DeviceBuffer>> buffers_;
};

class ShmPublisher {
 public:
  ShmPublisher(const ChannelSetup& setup, std::unique_ptr<ShmDirectory> directory,
               PublishedHere& here)
      : setup_(setup), directory_(std::move(directory)), here_(here), places_(*directory_) {}

  /// kExists if another publisher is alive. `here` must stay valid while the result exists.
  static Result<std::unique_ptr<ShmPublisher>> make(const ChannelSetup& setup, PublishedHere& here);
  Status publish(const std::shared_ptr<const WeightSnapshot>& snapshot, Handshake& handshake);

  /// Gives up the segments of all versions of `key`; receivers that read one keep their mapping.
  void drop(WeightsKey key);

  /// Whether a readable version has its bytes only on a device.
  bool has_device_versions() const;
  /// Call it regularly from the first such version on. It releases buffers that receivers no longer
  /// read or have open, and sends the versions as bytes if a receiver has refused. False: nothing
  /// is left to watch.
  bool attend();

 private:
  /// Weights that stay on their device, and the places in their slot.
  struct OnDevice {
    std::shared_ptr<const WeightSnapshot> snapshot;
    DevicePlace place;
    std::vector<std::shared_ptr<const ShmPlace>> numbers;
  };
  struct Slot {
    std::unique_ptr<ShmSegment> segment;
    std::shared_ptr<const OnDevice> on_device{};  // set while the version may be read there
  };

  Status take_over();
  Status check_capacity(WeightsKey key) const;
  /// Null if they must be sent as bytes, also if no place is free.
  std::shared_ptr<const OnDevice> on_device(const std::shared_ptr<const WeightSnapshot>& snapshot);
  Result<ShmSlotEntry> write(const std::shared_ptr<const WeightSnapshot>& snapshot,
                             const WeightManifest& manifest, uint64_t publication);
  Result<ShmSlotEntry> write_bytes(const WeightSnapshot& snapshot, const WeightManifest& manifest,
                                   uint64_t publication);
  /// The serial number of a free slot of that size, locked.
  Result<uint64_t> locked_slot(uint64_t num_bytes);
  void abandon(uint64_t serial);
  /// Frees versions of `key` that are no longer among the newest, counting the new one.
  void retire(WeightsKey key);
  /// Releases weights on a device that are no longer read.
  void release_unread_devices();
  void stop_devices(std::string_view why);
  Status send_as_bytes(uint64_t serial);
  ShmSlotEntry& entry_of(uint64_t serial);
  void probe(std::string_view step) const {
    if (setup_.probe) setup_.probe(step);
  }

  const ChannelSetup setup_;
  const std::unique_ptr<ShmDirectory> directory_;
  PublishedHere& here_;
  OfferedPlaces places_;                   // of buffers on a device
  std::map<uint64_t, Slot> slots_;         // by serial number; those in table_
  std::vector<Slot> retained_by_readers_;  // on a device, and still being read
  ShmTable table_;
  uint64_t serial_ = 0;        // last used
  uint64_t publication_ = 0;   // last used
  VersionsByKey newest_;       // published by this object
  bool uses_devices_ = false;  // false after the first failure
  bool is_refusal_answered_ = false;
};

}  // namespace primerl
