// WeightChannel by shared memory: the publisher copies each version into a slot, receivers map it.
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/weights/channel.h"
#include "kernels/weights/handshake.h"
#include "kernels/weights/shm_directory.h"
#include "kernels/weights/shm_slot.h"

namespace primerl {
namespace {

constexpr int kFetchesMax = 100;  // fetches overtaken by the publisher, one after the other

Status check_setup(const ChannelSetup& setup) {
  if (setup.versions_max >= 1 && setup.versions_max <= kShmVersionsMax) return ok();
  return error(Code::kInvalid, "weight channel '{}' is to keep {} versions", setup.resource,
               setup.versions_max)
      .note(fmt::format("shm keeps 1 to {}", kShmVersionsMax));
}

/// The writing half. Not thread-safe.
class ShmPublisher {
 public:
  ShmPublisher(const ChannelSetup& setup, std::unique_ptr<ShmDirectory> directory)
      : setup_(setup), directory_(std::move(directory)) {}

  static Result<std::unique_ptr<ShmPublisher>> make(const ChannelSetup& setup);
  Status publish(const WeightSnapshot& snapshot, Handshake& handshake);

 private:
  Status take_over();
  Status check_room(WeightsKey key) const;
  Result<ShmSegment*> locked_slot(uint64_t num_bytes);
  void abandon(uint64_t serial);
  /// Frees what is no longer among the newest of `key`, counting the one that comes.
  void retire(WeightsKey key);
  void probe(std::string_view step) const {
    if (setup_.probe) setup_.probe(step);
  }

  const ChannelSetup setup_;
  const std::unique_ptr<ShmDirectory> directory_;
  std::map<uint64_t, std::unique_ptr<ShmSegment>> slots_;  // by serial, those of table_
  ShmTable table_;
  uint64_t serial_ = 0;       // last given out
  uint64_t publication_ = 0;  // last made
  VersionsByKey newest_;      // published by this one
};

Result<std::unique_ptr<ShmPublisher>> ShmPublisher::make(const ChannelSetup& setup) {
  ASSIGN_OR_RETURN(auto directory, ShmDirectory::claim(setup));
  auto publisher = std::make_unique<ShmPublisher>(setup, std::move(directory));
  RETURN_IF_ERROR(publisher->take_over());
  return publisher;
}

/// What a publisher that died left: its versions stay readable until this one's first of their key.
Status ShmPublisher::take_over() {
  ASSIGN_OR_RETURN(ShmTable left, directory_->read());
  std::vector<std::string> known = {ShmDirectory::slot_name(directory_->key(), 0)};
  for (const auto& slot : left.slots) {
    serial_ = std::max(serial_, slot.serial);
    publication_ = std::max(publication_, slot.publication);
    const std::string name = ShmDirectory::slot_name(directory_->key(), slot.serial);
    auto segment = ShmSegment::open(name, ShmSegment::Access::kWrite);
    // A free slot that it had given up, before it could say so.
    if (!segment.ok() && segment.error().code() == Code::kNotFound) continue;
    ASSIGN_OR_RETURN(slots_[slot.serial], std::move(segment));
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

Status ShmPublisher::publish(const WeightSnapshot& snapshot, Handshake& handshake) {
  RETURN_IF_ERROR(check_rises(newest_, snapshot.name()));
  RETURN_IF_ERROR(check_room(snapshot.key));
  ASSIGN_OR_RETURN(const auto manifest, manifest_of(snapshot));
  RETURN_IF_ERROR(handshake.offer(manifest, snapshot.name()));
  ASSIGN_OR_RETURN(const uint64_t num_bytes, shm_slot_bytes(manifest));
  if (num_bytes > setup_.bytes_max)
    return error(Code::kExhausted, "{} needs {} bytes, more than the limit of {}", snapshot.name(),
                 num_bytes, setup_.bytes_max);
  probe("take a slot");
  ASSIGN_OR_RETURN(ShmSegment* const slot, locked_slot(num_bytes));
  probe("fill the slot");
  fill_slot(*slot, manifest, publication_ + 1, snapshot);
  slot->lock(0, ShmSegment::Lock::kNone);
  probe("turn the directory");
  ++publication_;
  retire(snapshot.key);
  for (auto& entry : table_.slots)
    if (slots_[entry.serial].get() == slot) {
      entry.version = snapshot.name();
      entry.publication = publication_;
    }
  CHECK(newest_.set(snapshot.key, snapshot.version), "a key more than was checked");
  directory_->write(table_);
  probe("return");
  return ok();
}

/// Whether there are segments for all versions of `key`, with those of all others and the one that
/// is written.
Status ShmPublisher::check_room(WeightsKey key) const {
  std::map<WeightsKey, size_t> num_versions;
  for (const auto& entry : table_.slots)
    if (!entry.is_free()) ++num_versions[entry.version.key];
  const bool is_new = num_versions.try_emplace(key).second;
  size_t num_slots = 1;
  for (const auto& [each, count] : num_versions) num_slots += std::max(count, setup_.versions_max);
  if (!is_new || num_slots <= kShmSlotsMax) return ok();
  return error(Code::kExhausted, "weight channel '{}' holds {} versions each of {} others than {}",
               setup_.resource, setup_.versions_max, num_versions.size() - 1, key)
      .note(fmt::format("shm has {} segments; lower 'versions_max', or choose backend \"files\"",
                        kShmSlotsMax));
}

/// A free slot of that size: an old one that nobody reads, else a new one. Never waits: a slot that
/// a receiver still reads is given up to it.
Result<ShmSegment*> ShmPublisher::locked_slot(uint64_t num_bytes) {
  std::vector<uint64_t> given_up;
  for (const auto& entry : table_.slots) {
    if (!entry.is_free()) continue;
    ShmSegment& slot = *slots_.at(entry.serial);
    if (slot.bytes().size() >= num_bytes && slot.lock(0, ShmSegment::Lock::kExclusive))
      return &slot;
    given_up.push_back(entry.serial);
  }
  for (const uint64_t serial : given_up) abandon(serial);
  const uint64_t serial = ++serial_;
  ASSIGN_OR_RETURN(
      auto made, ShmSegment::create(ShmDirectory::slot_name(directory_->key(), serial), num_bytes));
  CHECK(made->lock(0, ShmSegment::Lock::kExclusive), "a new slot is locked by somebody else");
  table_.slots.push_back({{}, serial, 0, num_bytes});
  return (slots_[serial] = std::move(made)).get();
}

void ShmPublisher::abandon(uint64_t serial) {
  std::erase_if(table_.slots, [serial](const auto& entry) { return entry.serial == serial; });
  slots_.at(serial)->remove();
  slots_.erase(serial);
}

void ShmPublisher::retire(WeightsKey key) {
  std::vector<ShmSlotEntry*> readable;
  for (auto& entry : table_.slots)
    if (!entry.is_free() && entry.version.key == key) readable.push_back(&entry);
  std::sort(readable.begin(), readable.end(),
            [](const auto* a, const auto* b) { return a->publication > b->publication; });
  // What a publisher before this one left is readable until the first of its key.
  const size_t kept = newest_.of(key).is_none() ? 0 : setup_.versions_max - 1;
  for (size_t i = kept; i < readable.size(); ++i) readable[i]->version = {};
}

std::vector<PolicyVersion> versions_of(const ShmTable& table, WeightsKey key) {
  std::vector<PolicyVersion> versions;
  for (const auto& entry : table.slots)
    if (!entry.is_free() && entry.version.key == key) versions.push_back(entry.version.version);
  return versions;
}

/// The reading half. Not thread-safe.
class ShmReceiver {
 public:
  explicit ShmReceiver(const ChannelSetup& setup) : setup_(setup) {}

  Result<std::shared_ptr<const WeightSnapshot>> fetch(const KeyedVersion& version,
                                                      Handshake& handshake);
  PolicyVersion newest(WeightsKey key);
  VersionsByKey newest_by_key();

 private:
  struct Mapped {
    std::shared_ptr<ShmSlot> slot;
    uint64_t publication = 0;
    std::weak_ptr<const WeightSnapshot> snapshot;  // of that publication
  };
  using Fetched = Result<std::shared_ptr<const WeightSnapshot>>;

  Status join();
  void forget_others(const ShmTable& table);
  /// kUnavailable: the publisher was faster, look again.
  Fetched read(const ShmSlotEntry& entry, Handshake& handshake);

  const ChannelSetup setup_;
  std::unique_ptr<ShmDirectory> directory_;  // null before a publisher came
  std::map<uint64_t, Mapped> mapped_;        // by serial
  WeightManifest manifest_;                  // of the version read last
  uint64_t manifest_hash_ = 0;
};

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
    forget_others(table);
    const ShmSlotEntry* entry = table.find(version);
    if (entry == nullptr) return not_in_channel(version, versions_of(table, version.key));
    auto fetched = read(*entry, handshake);
    if (fetched.ok() || fetched.error().code() != Code::kUnavailable) return fetched;
  }
  return error(Code::kUnavailable, "{} could not be held while the publisher went on", version);
}

ShmReceiver::Fetched ShmReceiver::read(const ShmSlotEntry& entry, Handshake& handshake) {
  const auto overtaken = [] { return error(Code::kUnavailable, "the slot has changed"); };
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
  auto hold = mapped.slot->hold();
  if (hold == nullptr) return overtaken();
  ASSIGN_OR_RETURN(const ShmSlotContent content, read_slot(mapped.slot->bytes()));
  if (content.publication != entry.publication) return overtaken();
  if (manifest_hash_ != content.record.manifest_hash || manifest_.empty()) {
    ASSIGN_OR_RETURN(manifest_, decode_manifest(content.manifest));
    manifest_hash_ = content.record.manifest_hash;
  }
  RETURN_IF_ERROR(handshake.accept(manifest_, manifest_hash_));
  ASSIGN_OR_RETURN(auto snapshot, snapshot_of(content, manifest_, std::move(hold)));
  mapped.publication = entry.publication;
  mapped.snapshot = snapshot;
  return snapshot;
}

/// Mappings of slots that the publisher gave up would keep their memory.
void ShmReceiver::forget_others(const ShmTable& table) {
  std::erase_if(mapped_, [&](const auto& one) {
    return std::none_of(table.slots.begin(), table.slots.end(),
                        [&](const auto& entry) { return entry.serial == one.first; });
  });
}

class ShmChannel final : public WeightChannel {
 public:
  explicit ShmChannel(ChannelSetup setup) : setup_(std::move(setup)), receiver_(setup_) {}

  Status publish(std::shared_ptr<const WeightSnapshot> snapshot) override {
    if (snapshot == nullptr) return error(Code::kInvalid, "published weights are missing");
    const std::lock_guard lock(publish_mutex_);
    if (publisher_ == nullptr) {
      ASSIGN_OR_RETURN(publisher_, ShmPublisher::make(setup_));
    }
    return publisher_->publish(*snapshot, offered_);
  }
  Result<std::shared_ptr<const WeightSnapshot>> fetch(WeightsKey key,
                                                      PolicyVersion version) override {
    const std::lock_guard lock(fetch_mutex_);
    return receiver_.fetch({key, version}, wanted_);
  }
  PolicyVersion newest(WeightsKey key) const override {
    const std::lock_guard lock(fetch_mutex_);
    return receiver_.newest(key);
  }
  Status expect(const WeightManifest& wanted) override {
    const std::lock_guard lock(fetch_mutex_);
    return wanted_.expect(wanted);
  }
  std::string describe() const override {
    const std::lock_guard lock(fetch_mutex_);
    return fmt::format("shared memory, {}", describe_newest(receiver_.newest_by_key()));
  }

 private:
  const ChannelSetup setup_;
  // Guarded by publish_mutex_.
  std::mutex publish_mutex_;
  Handshake offered_;
  std::unique_ptr<ShmPublisher> publisher_;  // null until the first publish
  // Guarded by fetch_mutex_.
  mutable std::mutex fetch_mutex_;
  Handshake wanted_;
  mutable ShmReceiver receiver_;
};

}  // namespace

Result<std::shared_ptr<WeightChannel>> make_shm_channel(ChannelSetup setup) {
  RETURN_IF_ERROR(check_setup(setup));
  return std::shared_ptr<WeightChannel>(std::make_shared<ShmChannel>(std::move(setup)));
}

}  // namespace primerl
