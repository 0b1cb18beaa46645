/// The receiver's part of a shared-memory weight channel: finds a version in the directory, retains
/// its slot, and returns its bytes or device memory. Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/weights/handshake.h"
#include "kernels/weights/shm_directory.h"
#include "kernels/weights/shm_places.h"
#include "kernels/weights/shm_publisher.h"
#include "kernels/weights/shm_slot.h"

namespace primerl {

class ShmReceiver {
 public:
  using Fetched = Result<std::shared_ptr<const WeightSnapshot>>;

  /// Both must stay valid while this object exists.
  ShmReceiver(const ChannelSetup& setup, const PublishedHere& here) : setup_(setup), here_(here) {}

  Fetched fetch(const KeyedVersion& version, Handshake& handshake);
  PolicyVersion newest(WeightsKey key);
  VersionsByKey newest_by_key();
  /// Unmaps the slots that the publisher has given up.
  void unmap_given_up();
  /// Device buffers. Another thread opens and closes them, so that fetch() does not wait for it.
  OpenPlaces& places() { return places_; }
  /// Stores the results of opening wanted places. If one could not be opened, devices are refused
  /// and the publisher sends bytes.
  void keep(std::vector<WantedPlace> opened);

 private:
  struct Mapped {
    std::shared_ptr<ShmSlot> slot;
    uint64_t publication = 0;
    std::weak_ptr<const WeightSnapshot> snapshot;  // of that publication
  };
  using Opened = Result<std::shared_ptr<const DeviceBuffer>>;

  Status join();
  void unmap_unlisted(const ShmTable& table);
  /// `was_overtaken`: the publisher was faster, read again.
  Fetched read(const ShmSlotEntry& entry, Handshake& handshake, bool& was_overtaken);
  Fetched read_from_device(const ShmSlotContent& content, std::shared_ptr<const void> hold);
  bool is_live(const ShmSlotEntry& entry) const;
  bool is_lost(const ShmSlotContent& content) const;
  /// The buffer of another process, which stays open for later versions. kUnavailable: it is being
  /// opened, or another buffer that the slot names is.
  Opened open(const ShmSlotContent& content, const DevicePlace& place,
              const std::shared_ptr<const void>& hold);
  /// Requests that a place is opened, if it is offered and not open.
  Status want(const ShmSlotContent& content, const NamedPlace& named,
              const std::shared_ptr<const void>& hold);
  Error refused(const KeyedVersion& version, std::string_view why);

  const ChannelSetup& setup_;
  const PublishedHere& here_;
  std::unique_ptr<ShmDirectory> directory_;  // null before the first publisher
  std::map<uint64_t, Mapped> mapped_;        // by serial number
  WeightManifest manifest_;                  // of the version that was read last
  uint64_t manifest_hash_ = 0;
  OpenPlaces places_;
};

}  // namespace primerl
