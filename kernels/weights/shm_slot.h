/// One version in one segment of shared memory: header, manifest, record, and the tensors or, of
/// weights that stay on their device, where they lie.
///
/// A slot is written under its exclusive lock and read under a shared one; the kernel lets go of
/// both when an end dies, so no slot is ever rewritten under a reader. The bytes are verified by
/// the reader, so what is torn or changed is refused whatever the header says. Tensors begin at
/// multiples of 64 bytes, in order of names. Weights on a device have no checks: what is published
/// was written before, and while the slot is held nobody writes there.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "kernels/weights/device_memory.h"
#include "kernels/weights/manifest.h"
#include "kernels/weights/shm_segment.h"

namespace primerl {

/// Bytes a slot needs for a version of this manifest.
Result<uint64_t> shm_slot_bytes(const WeightManifest& manifest);

/// Fills a slot that the caller has locked exclusively; it cannot be read before this returns. The
/// bytes are copied and checked in one pass.
void fill_slot(ShmSegment& slot, const WeightManifest& manifest, uint64_t publication,
               const WeightSnapshot& snapshot);

/// A piece of a device's memory, for another process.
struct NamedPlace {
  uint64_t place = 0;  // a ShmPlace
  DeviceHandle handle;
};
/// Where the weights of a version lie on a device.
struct DevicePlace {
  NamedPlace here;
  std::vector<uint64_t> offsets;  // of each tensor, in bytes
  std::vector<NamedPlace> next;   // where later versions will lie, to be opened before they come
};
uint64_t shm_device_slot_bytes(const WeightManifest& manifest, const DevicePlace& place);
/// As fill_slot(), of weights that stay on their device.
void fill_device_slot(ShmSegment& slot, const WeightManifest& manifest, uint64_t publication,
                      const KeyedVersion& version, const DevicePlace& place);

/// By a publisher that finds the slot of one that has ended: what lay on its device is lost.
void mark_lost(ShmSegment& slot);

/// A slot of another process, mapped read-only. Thread-safe. Several holds of one process share
/// its lock.
class ShmSlot : public std::enable_shared_from_this<ShmSlot> {
 public:
  explicit ShmSlot(std::unique_ptr<ShmSegment> segment) : segment_(std::move(segment)) {}
  /// Keeps the slot from being rewritten while the answer lives; null when it is being rewritten.
  std::shared_ptr<const void> hold();
  std::span<const std::byte> bytes() const { return segment_->bytes(); }

 private:
  void release();

  std::mutex mutex_;
  const std::unique_ptr<ShmSegment> segment_;  // its lock is guarded by mutex_
  int64_t num_holds_ = 0;
};

/// What a slot says it holds; nothing of it is verified yet.
struct ShmSlotContent {
  uint64_t publication = 0;
  VersionRecord record;
  std::span<const std::byte> manifest;           // encoded
  const std::atomic<uint64_t>* where = nullptr;  // in the slot
  bool is_on_device = false;
  std::span<const std::byte> data;  // tensors, or an encoded DevicePlace
};
/// Whether mark_lost() has been said of the slot by now.
bool is_marked_lost(const ShmSlotContent& content);
/// Reads the header of a held slot. kCorrupt when it cannot be one.
Result<ShmSlotContent> read_slot(std::span<const std::byte> bytes);

/// The snapshot of a held slot, its tensors viewing `data`, every checksum verified.
Result<std::shared_ptr<const WeightSnapshot>> snapshot_of(const ShmSlotContent& content,
                                                          const WeightManifest& manifest,
                                                          std::shared_ptr<const void> hold);

/// kCorrupt when the data of the slot are not a place of as many tensors.
Result<DevicePlace> device_place_of(const ShmSlotContent& content, const WeightManifest& manifest);

}  // namespace primerl
