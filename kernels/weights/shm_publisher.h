/// The writing half of a weight channel by shared memory: one slot (shm_slot.h) for each version
/// that can be read.
///
/// Weights that lie on a device stay there while ChannelSetup::devices is given: their slot says
/// where, and the publisher holds them until the version is retired and no receiver reads the slot
/// any more, which its lock says, also of one that was killed. Their memory it keeps until no
/// receiver has it open (shm_places.h). Once a receiver refuses, or a buffer cannot be named,
/// everything goes as bytes. Not thread-safe.
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

/// What this process has published and holds on its device, for its own receivers: memory cannot be
/// opened by the process that it is of. Thread-safe.
class PublishedHere {
 public:
  void add(uint64_t publication, std::shared_ptr<const DeviceBuffer> buffer);
  /// Null: it is not of this process, or is gone.
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

  /// kExists when another one lives. `here` outlives it.
  static Result<std::unique_ptr<ShmPublisher>> make(const ChannelSetup& setup, PublishedHere& here);
  Status publish(const std::shared_ptr<const WeightSnapshot>& snapshot, Handshake& handshake);

  /// Whether a version can be read whose bytes are on a device alone.
  bool has_device_versions() const;
  /// To be called now and then from the first such version on: lets go of what receivers no longer
  /// read or have open, and sends such versions as bytes when a receiver has refused. False: there
  /// is nothing left to watch.
  bool attend();

 private:
  /// Weights that stay on their device, and the places that their slot names.
  struct OnDevice {
    std::shared_ptr<const WeightSnapshot> snapshot;
    DevicePlace place;
    std::vector<std::shared_ptr<const ShmPlace>> numbers;
  };
  struct Slot {
    std::unique_ptr<ShmSegment> segment;
    std::shared_ptr<const OnDevice> on_device{};  // as long as somebody may read them there
  };

  Status take_over();
  Status check_room(WeightsKey key) const;
  /// Null when they go as bytes, which they do as well where no place is left.
  std::shared_ptr<const OnDevice> on_device(const std::shared_ptr<const WeightSnapshot>& snapshot);
  Result<ShmSlotEntry> write(const std::shared_ptr<const WeightSnapshot>& snapshot,
                             const WeightManifest& manifest, uint64_t publication);
  Result<ShmSlotEntry> write_bytes(const WeightSnapshot& snapshot, const WeightManifest& manifest,
                                   uint64_t publication);
  /// The serial of a free slot of that size, locked.
  Result<uint64_t> locked_slot(uint64_t num_bytes);
  void abandon(uint64_t serial);
  /// Frees what is no longer among the newest of `key`, counting the one that comes.
  void retire(WeightsKey key);
  /// Lets go of weights on a device that nobody reads any more.
  void release_unread();
  void stop_devices(std::string_view why);
  Status send_as_bytes(uint64_t serial);
  ShmSlotEntry& entry_of(uint64_t serial);
  void probe(std::string_view step) const {
    if (setup_.probe) setup_.probe(step);
  }

  const ChannelSetup setup_;
  const std::unique_ptr<ShmDirectory> directory_;
  PublishedHere& here_;
  OfferedPlaces places_;            // of what lies on a device
  std::map<uint64_t, Slot> slots_;  // by serial, those of table_
  std::vector<Slot> given_up_;      // on a device, and still read
  ShmTable table_;
  uint64_t serial_ = 0;        // last given out
  uint64_t publication_ = 0;   // last made
  VersionsByKey newest_;       // published by this one
  bool uses_devices_ = false;  // until something is in the way
  bool is_refusal_answered_ = false;
};

}  // namespace primerl
