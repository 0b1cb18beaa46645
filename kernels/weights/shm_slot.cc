#include "kernels/weights/shm_slot.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "graph/base/crc32c.h"
#include "kernels/weights/byte_codec.h"
#include "kernels/weights/shm_directory.h"

namespace primerl {
namespace {

constexpr uint64_t kSlotMagic = 0x3574'6f6c'7377'6d70;  // "pmwslot5"
constexpr uint64_t kSlotAlignment = 64;
// Small enough that the checksum reads the copied bytes from the L2 cache.
constexpr size_t kPieceBytes = 128 * 1024;

enum Where : uint64_t { kOnHost = 0, kOnDevice = 1, kLost = 2 };

/// All sizes in bytes; data starts at the first multiple of 64 after the record.
struct Header {
  std::atomic<uint64_t> magic;  // 0 while the slot is being written
  uint64_t publication;
  uint64_t manifest_bytes;
  uint64_t record_bytes;
  uint64_t data_bytes;
  std::atomic<uint64_t> where;  // kOnHost, kOnDevice or kLost
};
static_assert(sizeof(Header) <= kSlotAlignment);

uint64_t aligned(uint64_t offset) {
  return (offset + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

struct Layout {
  uint64_t manifest_begin = 0, record_begin = 0, data_begin = 0, end = 0;
};

Layout layout_of(uint64_t manifest_bytes, uint64_t record_bytes, uint64_t data_bytes) {
  Layout layout;
  layout.manifest_begin = kSlotAlignment;
  layout.record_begin = layout.manifest_begin + manifest_bytes;
  layout.data_begin = aligned(layout.record_begin + record_bytes);
  layout.end = layout.data_begin + data_bytes;
  return layout;
}

/// Size of the tensors, each starting at a multiple of 64.
Result<uint64_t> data_bytes_of(const WeightManifest& manifest) {
  uint64_t total = 0;
  for (const auto& facts : manifest.tensors) {
    ASSIGN_OR_RETURN(const uint64_t size, num_bytes(facts));
    if (size > (uint64_t{1} << 62) || total > (uint64_t{1} << 62))
      return error(Code::kExhausted, "tensor '{}' is too large: {}", facts.name, describe(facts));
    total += aligned(size);
  }
  return total;
}

uint64_t record_bytes_of(const WeightManifest& manifest) {
  VersionRecord record;
  record.checks.resize(manifest.tensors.size());
  return encode(record).size();
}

/// Copies and returns the CRC-32C; each byte is read from memory once.
uint32_t copy_checked(std::span<const std::byte> from, std::byte* to) {
  uint32_t check = 0;
  while (!from.empty()) {
    const auto piece = from.first(std::min(kPieceBytes, from.size()));
    check = crc32c(piece, check);
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
    from = from.subspan(piece.size());
  }
  return check;
}

void write(ByteWriter& writer, const NamedPlace& named) {
  writer.number(named.place);
  writer.bytes(named.handle.bytes);
  writer.number(named.handle.num_bytes);
}

/// False: malformed.
bool read(ByteReader& reader, NamedPlace& named) {
  named.place = reader.number<uint64_t>();
  const auto handle = reader.bytes(named.handle.bytes.size());
  named.handle.num_bytes = reader.number<uint64_t>();
  if (!reader.is_good() || named.place >= kShmPlacesMax) return false;
  std::ranges::copy(handle, named.handle.bytes.begin());
  return true;
}

std::vector<std::byte> encode(const DevicePlace& place) {
  ByteWriter writer;
  write(writer, place.here);
  for (const uint64_t offset : place.offsets) writer.number(offset);
  writer.number(uint64_t{place.next.size()});
  for (const NamedPlace& named : place.next) write(writer, named);
  return writer.take();
}

/// Writes everything but the data of a slot; it is readable after finish().
class Filling {
 public:
  Filling(ShmSegment& slot, const WeightManifest& manifest, uint64_t record_bytes,
          uint64_t data_bytes)
      : bytes_(slot.writable()), header_(reinterpret_cast<Header*>(bytes_.data())) {
    header_->magic.store(0, std::memory_order_release);
    const auto encoded = encode(manifest);
    layout_ = layout_of(encoded.size(), record_bytes, data_bytes);
    CHECK(layout_.end <= bytes_.size(), "a slot is smaller than its content");
    std::memcpy(bytes_.data() + layout_.manifest_begin, encoded.data(), encoded.size());
    header_->manifest_bytes = encoded.size();
    header_->record_bytes = record_bytes;
    header_->data_bytes = data_bytes;
  }
  std::byte* data() const { return bytes_.data() + layout_.data_begin; }
  void finish(uint64_t publication, const VersionRecord& record, Where where) {
    const auto encoded = encode(record);
    CHECK(encoded.size() == header_->record_bytes, "a record of another size than was counted");
    std::memcpy(bytes_.data() + layout_.record_begin, encoded.data(), encoded.size());
    header_->publication = publication;
    header_->where.store(where, std::memory_order_relaxed);
    header_->magic.store(kSlotMagic, std::memory_order_release);
  }

 private:
  const std::span<std::byte> bytes_;
  Header* const header_;
  Layout layout_;
};

}  // namespace

Result<uint64_t> shm_slot_bytes(const WeightManifest& manifest) {
  ASSIGN_OR_RETURN(const uint64_t data, data_bytes_of(manifest));
  return layout_of(encode(manifest).size(), record_bytes_of(manifest), data).end;
}

void fill_slot(ShmSegment& slot, const WeightManifest& manifest, uint64_t publication,
               const WeightSnapshot& snapshot) {
  Filling filling(slot, manifest, record_bytes_of(manifest), data_bytes_of(manifest).value());
  VersionRecord record{snapshot.name(), manifest.hash(), {}};
  std::byte* to = filling.data();
  for (const auto& tensor : snapshot.tensors) {
    record.checks.push_back(copy_checked(tensor.bytes.bytes(), to));
    to += aligned(tensor.bytes.size());
  }
  filling.finish(publication, record, kOnHost);
}

uint64_t shm_device_slot_bytes(const WeightManifest& manifest, const DevicePlace& place) {
  return layout_of(encode(manifest).size(), encode(VersionRecord()).size(), encode(place).size())
      .end;
}

void fill_device_slot(ShmSegment& slot, const WeightManifest& manifest, uint64_t publication,
                      const KeyedVersion& version, const DevicePlace& place) {
  const auto encoded = encode(place);
  Filling filling(slot, manifest, encode(VersionRecord()).size(), encoded.size());
  std::memcpy(filling.data(), encoded.data(), encoded.size());
  filling.finish(publication, {version, manifest.hash(), {}}, kOnDevice);
}

Result<DevicePlace> device_place_of(const ShmSlotContent& content, const WeightManifest& manifest) {
  ByteReader reader(content.data);
  DevicePlace place;
  bool is_good = content.is_on_device && read(reader, place.here);
  for (size_t i = 0; i < manifest.tensors.size() && reader.is_good(); ++i)
    place.offsets.push_back(reader.number<uint64_t>());
  const auto num_next = reader.number<uint64_t>();
  is_good = is_good && num_next < kShmPlacesMax;
  for (uint64_t i = 0; is_good && i < num_next; ++i)
    is_good = read(reader, place.next.emplace_back());
  if (is_good && reader.is_done()) return place;
  return error(Code::kCorrupt, "{} has no location on its device", content.record.version);
}

void mark_lost(ShmSegment& slot) {
  const auto content = read_slot(slot.bytes());
  if (content.ok() && content->is_on_device)
    reinterpret_cast<Header*>(slot.writable().data())->where.store(kLost);
}

bool is_marked_lost(const ShmSlotContent& content) {
  return content.where->load(std::memory_order_seq_cst) == kLost;
}

std::shared_ptr<const void> ShmSlot::hold() {
  const std::lock_guard lock(mutex_);
  if (num_holds_ == 0 && !segment_->lock(0, ShmSegment::Lock::kShared)) return nullptr;
  ++num_holds_;
  return {static_cast<const void*>(this),
          [self = shared_from_this()](const void*) { self->release(); }};
}

void ShmSlot::release() {
  const std::lock_guard lock(mutex_);
  if (--num_holds_ == 0) segment_->lock(0, ShmSegment::Lock::kNone);
}

Result<ShmSlotContent> read_slot(std::span<const std::byte> bytes) {
  const auto corrupt = [] {
    return error(Code::kCorrupt, "a slot of shared memory does not match its header");
  };
  if (bytes.size() < kSlotAlignment) return corrupt();
  const auto* header = reinterpret_cast<const Header*>(bytes.data());
  if (header->magic.load(std::memory_order_acquire) != kSlotMagic) return corrupt();
  const uint64_t size = bytes.size();
  if (header->manifest_bytes > size || header->record_bytes > size || header->data_bytes > size)
    return corrupt();
  const Layout layout = layout_of(header->manifest_bytes, header->record_bytes, header->data_bytes);
  if (layout.end > size) return corrupt();
  ShmSlotContent content;
  content.publication = header->publication;
  content.where = &header->where;
  content.is_on_device = header->where.load(std::memory_order_relaxed) != kOnHost;
  content.manifest = bytes.subspan(layout.manifest_begin, header->manifest_bytes);
  content.data = bytes.subspan(layout.data_begin, header->data_bytes);
  ASSIGN_OR_RETURN(content.record,
                   decode_version_record(bytes.subspan(layout.record_begin, header->record_bytes)));
  return content;
}

Result<std::shared_ptr<const WeightSnapshot>> snapshot_of(const ShmSlotContent& content,
                                                          const WeightManifest& manifest,
                                                          std::shared_ptr<const void> hold) {
  ASSIGN_OR_RETURN(const uint64_t expected, data_bytes_of(manifest));
  if (expected != content.data.size())
    return error(Code::kCorrupt, "{} has {} bytes of data, its manifest needs {}",
                 content.record.version, content.data.size(), expected);
  auto snapshot = std::make_shared<WeightSnapshot>();
  snapshot->key = content.record.version.key;
  snapshot->version = content.record.version.version;
  uint64_t at = 0;
  for (const auto& facts : manifest.tensors) {
    const uint64_t size = num_bytes(facts).value();
    snapshot->tensors.push_back(
        {facts.name, facts.type, facts.shape, Blob(hold, content.data.subspan(at, size))});
    at += aligned(size);
  }
  RETURN_IF_ERROR(check_bytes(*snapshot, content.record));
  return std::shared_ptr<const WeightSnapshot>(std::move(snapshot));
}

}  // namespace primerl
