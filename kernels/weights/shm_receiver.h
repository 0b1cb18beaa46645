/// The reading half of a weight channel by shared memory: finds a version in the directory, holds
/// its slot, and gives what lies there, bytes or the memory of a device. Not thread-safe.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/weights/handshake.h"
#include "kernels/weights/shm_directory.h"
#include "kernels/weights/shm_publisher.h"
#include "kernels/weights/shm_slot.h"

namespace primerl {

class ShmReceiver {
 public:
  using Fetched = Result<std::shared_ptr<const WeightSnapshot>>;

  /// Both outlive it.
  ShmReceiver(const ChannelSetup& setup, const PublishedHere& here) : setup_(setup), here_(here) {}

  Fetched fetch(const KeyedVersion& version, Handshake& handshake);
  PolicyVersion newest(WeightsKey key);
  VersionsByKey newest_by_key();

 private:
  struct Mapped {
    std::shared_ptr<ShmSlot> slot;
    uint64_t publication = 0;
    std::weak_ptr<const WeightSnapshot> snapshot;  // of that publication
  };
  using Opened = Result<std::shared_ptr<const DeviceBuffer>>;

  Status join();
  void forget_others(const ShmTable& table);
  /// `was_overtaken`: the publisher was faster, look again.
  Fetched read(const ShmSlotEntry& entry, Handshake& handshake, bool& was_overtaken);
  Fetched read_from_device(const ShmSlotContent& content, std::shared_ptr<const void> hold);
  /// The buffer of another process, open as long as somebody holds it.
  Opened open(const ShmSlotContent& content, const DeviceHandle& handle);

  const ChannelSetup& setup_;
  const PublishedHere& here_;
  std::unique_ptr<ShmDirectory> directory_;  // null before a publisher came
  std::map<uint64_t, Mapped> mapped_;        // by serial
  WeightManifest manifest_;                  // of the version read last
  uint64_t manifest_hash_ = 0;
  std::vector<std::pair<DeviceHandle, std::weak_ptr<const DeviceBuffer>>> opened_;
};

}  // namespace primerl
