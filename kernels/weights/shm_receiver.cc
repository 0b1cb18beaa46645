#include "kernels/weights/shm_receiver.h"

#include <algorithm>

namespace primerl {
namespace {

constexpr int kFetchesMax = 100;  // consecutive fetches that the publisher overtook

std::vector<PolicyVersion> versions_of(const ShmTable& table, WeightsKey key) {
  std::vector<PolicyVersion> versions;
  for (const auto& entry : table.slots)
    if (!entry.is_free() && entry.version.key == key) versions.push_back(entry.version.version);
  return versions;
}

Error lost(const KeyedVersion& version) {
  return error(
      Code::kUnavailable,
      "{} was in device memory of a process that has ended; its successor publishes it again",
      version);
}

}  // namespace

Status ShmReceiver::join() {
  if (directory_ != nullptr && directory_->is_named()) return ok();
  directory_.reset();
  mapped_.clear();
  ASSIGN_OR_RETURN(directory_, ShmDirectory::join(setup_));
  return ok();
}

PolicyVersion ShmReceiver::newest(WeightsKey key) {
  if (!join().ok()) return PolicyVersion();
  const auto table = directory_->read();
  const ShmSlotEntry* entry = table.ok() ? table->newest(key) : nullptr;
  return entry == nullptr ? PolicyVersion() : entry->version.version;
}

VersionsByKey ShmReceiver::newest_by_key() {
  VersionsByKey newest;
  if (!join().ok()) return newest;
  const auto table = directory_->read();
  if (!table.ok()) return newest;
  for (const auto& entry : table->slots)
    if (!entry.is_free() && !newest.raise(entry.version.key, entry.version.version)) break;
  return newest;
}

ShmReceiver::Fetched ShmReceiver::fetch(const KeyedVersion& version, Handshake& handshake) {
  if (const Status joined = join(); !joined.ok()) {
    if (joined.error().code() != Code::kNotFound) return joined.error();
    return not_in_channel(version, {});
  }
  for (int i = 0; i < kFetchesMax; ++i) {
    ASSIGN_OR_RETURN(const ShmTable table, directory_->read());
    unmap_unlisted(table);
    const ShmSlotEntry* entry = table.find(version);
    if (entry == nullptr) return not_in_channel(version, versions_of(table, version.key));
    bool was_overtaken = false;
    auto fetched = read(*entry, handshake, was_overtaken);
    if (!was_overtaken) return fetched;
  }
  return error(Code::kUnavailable, "{} could not be read: the publisher was faster", version);
}

ShmReceiver::Fetched ShmReceiver::read(const ShmSlotEntry& entry, Handshake& handshake,
                                       bool& was_overtaken) {
  const auto overtaken = [&was_overtaken] {
    was_overtaken = true;
    return error(Code::kUnavailable, "the slot has changed");
  };
  Mapped& mapped = mapped_[entry.serial];
  if (mapped.slot == nullptr) {
    auto segment = ShmSegment::open(ShmDirectory::slot_name(directory_->key(), entry.serial),
                                    ShmSegment::Access::kRead);
    if (!segment.ok()) {
      if (segment.error().code() == Code::kNotFound) return overtaken();
      return std::move(segment).error();
    }
    mapped.slot = std::make_shared<ShmSlot>(std::move(segment).value());
  }
  if (auto same = mapped.snapshot.lock();
      same != nullptr && mapped.publication == entry.publication)
    return same;
  if (setup_.probe) setup_.probe("hold a slot");
  auto hold = mapped.slot->hold();
  if (hold == nullptr) return overtaken();
  ASSIGN_OR_RETURN(const ShmSlotContent content, read_slot(mapped.slot->bytes()));
  if (content.publication != entry.publication) return overtaken();
  if (content.is_on_device && !is_live(entry)) return overtaken();
  if (manifest_hash_ != content.record.manifest_hash || manifest_.empty()) {
    ASSIGN_OR_RETURN(manifest_, decode_manifest(content.manifest));
    manifest_hash_ = content.record.manifest_hash;
  }
  RETURN_IF_ERROR(handshake.accept(manifest_, manifest_hash_));
  ASSIGN_OR_RETURN(auto snapshot, content.is_on_device
                                      ? read_from_device(content, std::move(hold))
                                      : snapshot_of(content, manifest_, std::move(hold)));
  mapped.publication = entry.publication;
  mapped.snapshot = snapshot;
  return snapshot;
}

/// For a slot that is retained. Bytes stay readable in a retired slot, but a device buffer may be
/// overwritten.
bool ShmReceiver::is_live(const ShmSlotEntry& entry) const {
  const auto table = directory_->read();
  const ShmSlotEntry* now = table.ok() ? table->find(entry.version) : nullptr;
  return now != nullptr && now->serial == entry.serial && now->publication == entry.publication;
}

ShmReceiver::Fetched ShmReceiver::read_from_device(const ShmSlotContent& content,
                                                   std::shared_ptr<const void> hold) {
  ASSIGN_OR_RETURN(DevicePlace place, device_place_of(content, manifest_));
  struct Held {
    std::shared_ptr<const void> slot;  // its lock is released after the buffer
    std::shared_ptr<const DeviceBuffer> buffer;
  };
  auto held = std::make_shared<Held>();
  held->slot = std::move(hold);
  held->buffer = here_.find(content.publication);
  if (held->buffer == nullptr) {
    ASSIGN_OR_RETURN(held->buffer, open(content, place, held->slot));
  }
  auto snapshot = std::make_shared<WeightSnapshot>();
  snapshot->key = content.record.version.key;
  snapshot->version = content.record.version.version;
  for (const auto& facts : manifest_.tensors)
    snapshot->tensors.push_back({facts.name, facts.type, facts.shape, {}});
  const DeviceBuffer* const buffer = held->buffer.get();
  snapshot->device = std::make_shared<const DeviceWeights>(
      std::shared_ptr<const DeviceBuffer>(std::move(held), buffer), std::move(place.offsets));
  if (const Status fits = check_device_weights(*snapshot); !fits.ok())
    return error(Code::kCorrupt, "{}", fits.error().text());
  return std::shared_ptr<const WeightSnapshot>(std::move(snapshot));
}

/// No failure here is final: the buffer is being opened, or the publisher sends bytes, or a new
/// publisher starts. Until then the version is unavailable.
ShmReceiver::Opened ShmReceiver::open(const ShmSlotContent& content, const DevicePlace& place,
                                      const std::shared_ptr<const void>& hold) {
  const KeyedVersion& version = content.record.version;
  if (is_lost(content)) return lost(version);
  if (setup_.devices == nullptr) return refused(version, "a receiver has no device");
  RETURN_IF_ERROR(want(content, place.here, hold));
  for (const NamedPlace& next : place.next) RETURN_IF_ERROR(want(content, next, hold));
  // The first version is fetched before an engine's first step, so opening buffers with it blocks
  // no step.
  const auto is_wanted = [this](const NamedPlace& named) {
    return places_.is_wanted(static_cast<ShmPlace>(named.place));
  };
  auto known = places_.find(static_cast<ShmPlace>(place.here.place));
  if (known != nullptr && std::ranges::none_of(place.next, is_wanted)) return known;
  return error(Code::kUnavailable, "{} is in device memory that is being opened", version);
}

Status ShmReceiver::want(const ShmSlotContent& content, const NamedPlace& named,
                         const std::shared_ptr<const void>& hold) {
  const KeyedVersion& version = content.record.version;
  const auto place = static_cast<ShmPlace>(named.place);
  if (places_.find(place) != nullptr || places_.is_wanted(place)) return ok();
  ASSIGN_OR_RETURN(auto lock, directory_->hold(place));
  // While the slot is retained, no publisher reuses the place for another buffer.
  if (is_lost(content)) return lost(version);
  if (ShmDirectory::is_offered(*lock, place))
    places_.want({place, version, named.handle, hold, std::move(lock)});
  return ok();
}

void ShmReceiver::keep(std::vector<WantedPlace> opened) {
  for (WantedPlace& each : opened) {
    // Versions lost with a dead publisher cannot be sent as bytes by the next one.
    if (!each.opened.ok() && directory_ != nullptr &&
        ShmDirectory::is_offered(*each.lock, each.place))
      static_cast<void>(refused(each.version, each.opened.error().text()));
    places_.keep(std::move(each));
  }
}

Error ShmReceiver::refused(const KeyedVersion& version, std::string_view why) {
  directory_->refuse_devices(why);
  return error(Code::kUnavailable,
               "{} is on a device that cannot be read here, and will be sent as bytes: {}", version,
               why);
}

/// Reads it from the retained slot: a new publisher marks it lost before it offers a place.
bool ShmReceiver::is_lost(const ShmSlotContent& content) const {
  return !directory_->has_publisher() || is_marked_lost(content);
}

void ShmReceiver::unmap_given_up() {
  if (directory_ == nullptr || !directory_->is_named()) return;
  if (const auto table = directory_->read(); table.ok()) unmap_unlisted(*table);
}

/// Mappings of slots that the publisher gave up would keep their memory.
void ShmReceiver::unmap_unlisted(const ShmTable& table) {
  std::erase_if(mapped_, [&](const auto& one) {
    return std::none_of(table.slots.begin(), table.slots.end(),
                        [&](const auto& entry) { return entry.serial == one.first; });
  });
}

}  // namespace primerl
