#include "kernels/weights/shm_publisher.h"

#include <algorithm>
#include <utility>

namespace primerl {

void PublishedHere::add(uint64_t publication, std::shared_ptr<const DeviceBuffer> buffer) {
  const std::lock_guard lock(mutex_);
  std::erase_if(buffers_, [](const auto& each) { return each.second.expired(); });
  buffers_[publication] = std::move(buffer);
}

std::shared_ptr<const DeviceBuffer> PublishedHere::find(uint64_t publication) const {
  const std::lock_guard lock(mutex_);
  const auto found = buffers_.find(publication);
  return found == buffers_.end() ? nullptr : found->second.lock();
}

Result<std::unique_ptr<ShmPublisher>> ShmPublisher::make(const ChannelSetup& setup,
                                                         PublishedHere& here) {
  ASSIGN_OR_RETURN(auto directory, ShmDirectory::claim(setup));
  auto publisher = std::make_unique<ShmPublisher>(setup, std::move(directory), here);
  RETURN_IF_ERROR(publisher->take_over());
  return publisher;
}

/// Versions of a dead publisher stay readable until this publisher's first version of their key,
/// except those that were on its device.
Status ShmPublisher::take_over() {
  ASSIGN_OR_RETURN(ShmTable left, directory_->read());
  directory_->forget_refusal();
  uses_devices_ = setup_.devices != nullptr;
  std::vector<std::string> known = {ShmDirectory::slot_name(directory_->key(), 0)};
  for (const auto& slot : left.slots) {
    serial_ = std::max(serial_, slot.serial);
    publication_ = std::max(publication_, slot.publication);
    const std::string name = ShmDirectory::slot_name(directory_->key(), slot.serial);
    auto segment = ShmSegment::open(name, ShmSegment::Access::kWrite);
    // A free slot that the dead publisher had given up before it updated the table.
    if (!segment.ok() && segment.error().code() == Code::kNotFound) continue;
    ASSIGN_OR_RETURN(slots_[slot.serial].segment, std::move(segment));
    mark_lost(*slots_[slot.serial].segment);
    table_.slots.push_back(slot);
    known.push_back(name);
  }
  ShmLeftover removed{directory_->key(), setup_.run_folder.string(), 0, 0};
  const std::string prefix = ShmDirectory::kPrefix + directory_->key() + "-";
  for (const auto& name : shm_names(prefix)) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    removed.num_segments += 1;
    removed.num_bytes += shm_size(name);
    shm_remove(name);
  }
  if (removed.num_segments > 0 && setup_.log) setup_.log(removed.text());
  return ok();
}

Status ShmPublisher::publish(const std::shared_ptr<const WeightSnapshot>& snapshot,
                             Handshake& handshake) {
  RETURN_IF_ERROR(check_rises(newest_, snapshot->name()));
  RETURN_IF_ERROR(check_capacity(snapshot->key));
  ASSIGN_OR_RETURN(const auto manifest, manifest_of(*snapshot));
  RETURN_IF_ERROR(handshake.offer(manifest, snapshot->name()));
  ASSIGN_OR_RETURN(ShmSlotEntry written, write(snapshot, manifest, publication_ + 1));
  probe("turn the directory");
  ++publication_;
  retire(snapshot->key);
  written.version = snapshot->name();
  entry_of(written.serial) = written;
  CHECK(newest_.set(snapshot->key, snapshot->version), "a key more than was checked");
  directory_->write(table_);
  release_unread_devices();
  probe("return");
  return ok();
}

/// Receivers must not find a segment in the table that is gone: the table says first that they are
/// free.
void ShmPublisher::drop(WeightsKey key) {
  newest_.erase(key);
  std::vector<uint64_t> given_up;
  for (auto& entry : table_.slots) {
    if (entry.is_free() || entry.version.key != key) continue;
    entry.version = {};
    given_up.push_back(entry.serial);
  }
  if (given_up.empty()) return;
  directory_->write(table_);
  for (const uint64_t serial : given_up) abandon(serial);
  directory_->write(table_);
  release_unread_devices();
}

Result<ShmSlotEntry> ShmPublisher::write(const std::shared_ptr<const WeightSnapshot>& snapshot,
                                         const WeightManifest& manifest, uint64_t publication) {
  auto stays = on_device(snapshot);
  if (stays == nullptr) {
    ASSIGN_OR_RETURN(const auto bytes, on_host(snapshot));
    return write_bytes(*bytes, manifest, publication);
  }
  probe("take a slot");
  const uint64_t num_bytes = shm_device_slot_bytes(manifest, stays->place);
  ASSIGN_OR_RETURN(const uint64_t serial, locked_slot(num_bytes));
  probe("fill the slot");
  Slot& slot = slots_.at(serial);
  fill_device_slot(*slot.segment, manifest, publication, snapshot->name(), stays->place);
  slot.on_device = std::move(stays);
  here_.add(publication, snapshot->device->shared_buffer());
  slot.segment->lock(0, ShmSegment::Lock::kNone);
  ShmSlotEntry written = entry_of(serial);
  written.publication = publication;
  return written;
}

Result<ShmSlotEntry> ShmPublisher::write_bytes(const WeightSnapshot& snapshot,
                                               const WeightManifest& manifest,
                                               uint64_t publication) {
  ASSIGN_OR_RETURN(const uint64_t num_bytes, shm_slot_bytes(manifest));
  if (num_bytes > setup_.bytes_max)
    return error(Code::kExhausted, "{} needs {} bytes, more than the limit of {}", snapshot.name(),
                 num_bytes, setup_.bytes_max);
  probe("take a slot");
  ASSIGN_OR_RETURN(const uint64_t serial, locked_slot(num_bytes));
  probe("fill the slot");
  ShmSegment& segment = *slots_.at(serial).segment;
  fill_slot(segment, manifest, publication, snapshot);
  segment.lock(0, ShmSegment::Lock::kNone);
  ShmSlotEntry written = entry_of(serial);
  written.publication = publication;
  return written;
}

/// If the buffers of later versions cannot be named, those versions report it.
std::shared_ptr<const ShmPublisher::OnDevice> ShmPublisher::on_device(
    const std::shared_ptr<const WeightSnapshot>& snapshot) {
  if (snapshot->device == nullptr || !uses_devices_) return nullptr;
  if (const std::string why = directory_->devices_refused(); !why.empty()) {
    stop_devices(why);
    return nullptr;
  }
  const DeviceWeights& weights = *snapshot->device;
  const auto here = places_.offer(weights.buffer());
  if (!here.ok()) stop_devices(here.error().text());
  if (!here.ok() || !here->has_value()) return nullptr;
  auto made = std::make_shared<OnDevice>();
  made->snapshot = snapshot;
  made->place.offsets.assign(weights.offsets().begin(), weights.offsets().end());
  const auto name = [&](const OfferedPlaces::Named& named) {
    made->numbers.push_back(named.place);
    return NamedPlace{*named.place, named.handle};
  };
  made->place.here = name(**here);
  for (const auto& each : weights.next())
    if (const auto buffer = each.lock())
      if (const auto next = places_.offer(*buffer); next.ok() && next->has_value())
        made->place.next.push_back(name(**next));
  return made;
}

void ShmPublisher::stop_devices(std::string_view why) {
  if (std::exchange(uses_devices_, false) && setup_.log)
    setup_.log(fmt::format(
        "weights of channel '{}' go through the host's shared memory, not from device to device: "
        "{}",
        setup_.resource, why));
}

bool ShmPublisher::has_device_versions() const {
  return std::ranges::any_of(table_.slots, [this](const ShmSlotEntry& entry) {
    return !entry.is_free() && slots_.at(entry.serial).on_device != nullptr;
  });
}

bool ShmPublisher::attend() {
  release_unread_devices();
  places_.attend();
  const std::string why = directory_->devices_refused();
  if (why.empty() || std::exchange(is_refusal_answered_, true)) return !places_.empty();
  stop_devices(why);
  std::vector<uint64_t> waiting;
  for (const auto& entry : table_.slots)
    if (!entry.is_free() && slots_.at(entry.serial).on_device != nullptr)
      waiting.push_back(entry.serial);
  for (const uint64_t serial : waiting)
    if (const Status sent = send_as_bytes(serial); !sent.ok() && setup_.log)
      setup_.log(fmt::format("{} cannot be sent as bytes: {}", entry_of(serial).version,
                             sent.error().text()));
  directory_->write(table_);
  release_unread_devices();
  return !places_.empty();
}

/// Publishes the same version and publication in another slot.
Status ShmPublisher::send_as_bytes(uint64_t serial) {
  ASSIGN_OR_RETURN(const auto bytes, on_host(slots_.at(serial).on_device->snapshot));
  ASSIGN_OR_RETURN(const auto manifest, manifest_of(*bytes));
  ASSIGN_OR_RETURN(ShmSlotEntry written,
                   write_bytes(*bytes, manifest, entry_of(serial).publication));
  written.version = std::exchange(entry_of(serial).version, {});
  entry_of(written.serial) = written;
  return ok();
}

ShmSlotEntry& ShmPublisher::entry_of(uint64_t serial) {
  const auto found = std::ranges::find(table_.slots, serial, &ShmSlotEntry::serial);
  CHECK(found != table_.slots.end(), "a slot that is not in its table");
  return *found;
}

/// Checks that there are segments for all versions of `key`, those of all other keys, and the one
/// in progress.
Status ShmPublisher::check_capacity(WeightsKey key) const {
  std::map<WeightsKey, size_t> num_versions;
  for (const auto& entry : table_.slots)
    if (!entry.is_free()) ++num_versions[entry.version.key];
  const bool is_new = num_versions.try_emplace(key).second;
  size_t num_slots = 1;
  for (const auto& [each, count] : num_versions) num_slots += std::max(count, setup_.versions_max);
  if (!is_new || num_slots <= kShmSlotsMax) return ok();
  return error(Code::kExhausted,
               "weight channel '{}' holds {} versions of each of {} keys besides {}",
               setup_.resource, setup_.versions_max, num_versions.size() - 1, key)
      .note(fmt::format("shm has {} segments; lower 'versions_max', or choose backend \"files\"",
                        kShmSlotsMax));
}

/// A free slot that is not being read, else a new one. Never waits: a slot that a receiver still
/// reads is given up.
Result<uint64_t> ShmPublisher::locked_slot(uint64_t num_bytes) {
  std::vector<uint64_t> given_up;
  for (const auto& entry : table_.slots) {
    if (!entry.is_free()) continue;
    Slot& slot = slots_.at(entry.serial);
    if (slot.segment->bytes().size() >= num_bytes &&
        slot.segment->lock(0, ShmSegment::Lock::kExclusive)) {
      slot.on_device = nullptr;
      return entry.serial;
    }
    given_up.push_back(entry.serial);
  }
  for (const uint64_t serial : given_up) abandon(serial);
  const uint64_t serial = ++serial_;
  ASSIGN_OR_RETURN(
      auto made, ShmSegment::create(ShmDirectory::slot_name(directory_->key(), serial), num_bytes));
  CHECK(made->lock(0, ShmSegment::Lock::kExclusive), "a new slot is locked by another process");
  table_.slots.push_back({{}, serial, 0, num_bytes});
  slots_[serial].segment = std::move(made);
  return serial;
}

void ShmPublisher::abandon(uint64_t serial) {
  std::erase_if(table_.slots, [serial](const auto& entry) { return entry.serial == serial; });
  Slot slot = std::move(slots_.at(serial));
  slots_.erase(serial);
  slot.segment->remove();
  if (slot.on_device != nullptr) retained_by_readers_.push_back(std::move(slot));
}

void ShmPublisher::retire(WeightsKey key) {
  std::vector<ShmSlotEntry*> readable;
  for (auto& entry : table_.slots)
    if (!entry.is_free() && entry.version.key == key) readable.push_back(&entry);
  std::sort(readable.begin(), readable.end(),
            [](const auto* a, const auto* b) { return a->publication > b->publication; });
  // Versions of an earlier publisher are readable until the first version of their key.
  const size_t kept = newest_.of(key).is_none() ? 0 : setup_.versions_max - 1;
  for (size_t i = kept; i < readable.size(); ++i) readable[i]->version = {};
}

/// A slot's lock shows whether it is being read. A receiver that starts now reads the directory
/// first and does not find it.
void ShmPublisher::release_unread_devices() {
  const auto is_unread = [](Slot& slot) {
    if (!slot.segment->lock(0, ShmSegment::Lock::kExclusive)) return false;
    slot.segment->lock(0, ShmSegment::Lock::kNone);
    return true;
  };
  for (const auto& entry : table_.slots)
    if (Slot& slot = slots_.at(entry.serial);
        entry.is_free() && slot.on_device != nullptr && is_unread(slot))
      slot.on_device = nullptr;
  std::erase_if(retained_by_readers_, is_unread);
}

}  // namespace primerl
