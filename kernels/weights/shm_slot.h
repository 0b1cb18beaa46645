/// One version in one segment of shared memory: header, manifest, record, and the tensors. For
/// weights that stay on their device: their location instead of the tensors.
///
/// A slot is written under its exclusive lock and read under a shared one. The kernel releases both
/// when an end dies, so no slot is overwritten while it is read. The reader verifies the bytes, so
/// torn or changed data is refused whatever the header says. Tensors start at multiples of 64
/// bytes, in order of names. Weights on a device have no checksums: they were written before they
/// were published, and are not overwritten while the slot is retained.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "kernels/weights/device_memory.h"
#include "kernels/weights/manifest.h"
#include "kernels/weights/shm_segment.h"

namespace primerl {

/// Bytes of a slot for a version of this manifest.
Result<uint64_t> shm_slot_bytes(const WeightManifest& manifest);

/// Fills a slot that the caller has locked exclusively; it is not readable before this returns. The
/// bytes are copied and checksummed in one pass.
void fill_slot(ShmSegment& slot, const WeightManifest& manifest, uint64_t publication,
               const WeightSnapshot& snapshot);

/// A device buffer, named for another process.
struct NamedPlace {
  uint64_t place = 0;  // a ShmPlace
  DeviceHandle handle;
};
/// The location of a version's weights on a device.
struct DevicePlace {
  NamedPlace here;
  std::vector<uint64_t> offsets;  // of each tensor, in bytes
  std::vector<NamedPlace> next;   // buffers of later versions, so that receivers can open them
                                  // early
};
uint64_t shm_device_slot_bytes(const WeightManifest& manifest, const DevicePlace& place);
/// Like fill_slot(), for weights that stay on their device.
void fill_device_slot(ShmSegment& slot, const WeightManifest& manifest, uint64_t publication,
                      const KeyedVersion& version, const DevicePlace& place);

/// For a publisher that finds the slot of a dead one: its device memory is lost.
void mark_lost(ShmSegment& slot);

/// A slot of another process, mapped read-only. Thread-safe. All users in one process share one
/// lock.
class ShmSlot : public std::enable_shared_from_this<ShmSlot> {
 public:
  explicit ShmSlot(std::unique_ptr<ShmSegment> segment) : segment_(std::move(segment)) {}
  /// Prevents overwriting of the slot while the result exists; null if it is being written.
  std::shared_ptr<const void> hold();
  std::span<const std::byte> bytes() const { return segment_->bytes(); }

 private:
  void release();

  std::mutex mutex_;
  const std::unique_ptr<ShmSegment> segment_;  // its lock is guarded by mutex_
  int64_t num_holds_ = 0;
};

/// The content of a slot according to its header; not verified yet.
struct ShmSlotContent {
  uint64_t publication = 0;
  VersionRecord record;
  std::span<const std::byte> manifest;           // encoded
  const std::atomic<uint64_t>* where = nullptr;  // in the slot
  bool is_on_device = false;
  std::span<const std::byte> data;  // tensors, or an encoded DevicePlace
};
/// Whether mark_lost() was called for the slot.
bool is_marked_lost(const ShmSlotContent& content);
/// Reads the header of a retained slot. kCorrupt if it is malformed.
Result<ShmSlotContent> read_slot(std::span<const std::byte> bytes);

/// The snapshot of a retained slot; its tensors are views of `data`, every checksum verified.
Result<std::shared_ptr<const WeightSnapshot>> snapshot_of(const ShmSlotContent& content,
                                                          const WeightManifest& manifest,
                                                          std::shared_ptr<const void> hold);

/// kCorrupt if the data of the slot are not the location of exactly these tensors.
Result<DevicePlace> device_place_of(const ShmSlotContent& content, const WeightManifest& manifest);

}  // namespace primerl
