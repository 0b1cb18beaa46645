// WeightChannel over files: one folder per version, and an index of the complete ones.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "kernels/weights/channel.h"
#include "kernels/weights/device_weights.h"
#include "kernels/weights/version_folder.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kVersionsMax = 1024;  // limit of ChannelSetup::versions_max
constexpr size_t kIndexBytesMax = size_t{256} << 20;
constexpr int kTriesMax = 16;  // consecutive reads that the publisher overtook

/// A readable version.
struct IndexEntry {
  KeyedVersion version;
  std::string folder;  // name of its folder
};
using Index = std::vector<IndexEntry>;  // oldest first

VersionsByKey newest_of(const Index& index) {
  VersionsByKey newest;
  for (const auto& [version, folder] : index)
    // The publisher never writes too many keys; in a hand-written index the first ones count.
    if (!newest.set(version.key, version.version)) break;
  return newest;
}

fs::path channel_folder(const ChannelSetup& setup) {
  return setup.run_folder / "weights" / setup.resource;
}

Result<Index> parse_index(const std::string& text, const fs::path& file) {
  ASSIGN_OR_RETURN(const auto json, parse_json(text, file.string()));
  const Json* versions = json.find("versions");
  if (versions == nullptr || !versions->is_array())
    return error(Code::kCorrupt, "{}: 'versions' is missing or not an array", file.string());
  Index index;
  for (const auto& item : versions->as_array()) {
    const auto version = keyed_version_of(item);
    if (!version.ok()) return Error(version.error()).while_doing(file.string());
    ASSIGN_OR_RETURN(auto folder, item.get_string("folder"));
    if (version->version.is_none() || folder.empty() || folder.front() == '.' ||
        folder.find('/') != std::string::npos)
      return error(Code::kCorrupt, "{}: {} cannot be in folder '{}'", file.string(), *version,
                   folder);
    index.push_back({*version, std::move(folder)});
  }
  return index;
}

/// Empty if nothing was published.
Result<Index> read_index(const fs::path& folder) {
  const fs::path file = folder / "index.json";
  const auto text = read_text_file(file, kIndexBytesMax);
  if (!text.ok() && text.error().code() == Code::kNotFound) return Index();
  if (!text.ok()) return text.error();
  return parse_index(*text, file);
}

/// Versions appear and disappear only by this one atomic step.
Status write_index(const fs::path& folder, const Index& index) {
  Json versions = Json::array();
  for (const auto& [version, folder_name] : index)
    versions.push_back(Json::object()
                           .set("tenant", version.key.tenant.value)
                           .set("adapter", version.key.adapter.value)
                           .set("version", version.version.value)
                           .set("folder", folder_name));
  const std::string text = Json::object().set("versions", std::move(versions)).dump() + "\n";
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  RETURN_IF_ERROR(write_file_synced(folder / ".index.json", {&part, 1}));
  std::error_code fault;
  fs::rename(folder / ".index.json", folder / "index.json", fault);
  if (fault)
    return error(Code::kIo, "cannot replace '{}': {}", (folder / "index.json").string(),
                 fault.message());
  return system_files().sync(folder);
}

/// Owns a lock that ends with its process.
class PublisherLock {
 public:
  static Result<std::unique_ptr<PublisherLock>> take(const fs::path& file) {
    const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0)
      return error(Code::kIo, "cannot open '{}': {}", file.string(), std::strerror(errno));
    std::unique_ptr<PublisherLock> lock(new PublisherLock(descriptor));
    struct flock range = {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    if (::fcntl(descriptor, F_OFD_SETLK, &range) == 0) return lock;
    if (errno == EAGAIN || errno == EACCES)
      return error(Code::kExists, "the weights of '{}' have a publisher already",
                   file.parent_path().string())
          .note("one process publishes; another may take over when it has ended");
    return error(Code::kIo, "cannot lock '{}': {}", file.string(), std::strerror(errno));
  }
  ~PublisherLock() { ::close(descriptor_); }
  PublisherLock(const PublisherLock&) = delete;
  PublisherLock& operator=(const PublisherLock&) = delete;

 private:
  explicit PublisherLock(int descriptor) : descriptor_(descriptor) {}
  const int descriptor_;
};

/// The publisher's part. Not thread-safe.
class FilesPublisher {
 public:
  FilesPublisher(const ChannelSetup& setup, std::unique_ptr<PublisherLock> lock, Index index)
      : setup_(setup),
        folder_(channel_folder(setup)),
        lock_(std::move(lock)),
        index_(std::move(index)) {}

  static Result<std::unique_ptr<FilesPublisher>> make(const ChannelSetup& setup);
  Status publish(const WeightSnapshot& snapshot, Handshake& handshake);
  /// Removes the folders of all versions of `key`.
  Status drop(WeightsKey key);

 private:
  /// Removes every folder that is not in the index. Returns their number.
  Result<size_t> remove_unnamed() const;
  Status check(const WeightSnapshot& snapshot) const;
  Index with(KeyedVersion version, std::string name) const;
  std::string fresh_name(const KeyedVersion& version) const;
  void probe(std::string_view step) const {
    if (setup_.probe) setup_.probe(step);
  }

  const ChannelSetup setup_;
  const fs::path folder_;
  const std::unique_ptr<PublisherLock> lock_;
  Index index_;           // as on disk
  VersionsByKey newest_;  // published by this object
};

Result<std::unique_ptr<FilesPublisher>> FilesPublisher::make(const ChannelSetup& setup) {
  const fs::path folder = channel_folder(setup);
  std::error_code fault;
  fs::create_directories(folder, fault);
  if (fault)
    return error(Code::kIo, "cannot make folder '{}': {}", folder.string(), fault.message());
  ASSIGN_OR_RETURN(auto lock, PublisherLock::take(folder / ".publisher.lock"));
  ASSIGN_OR_RETURN(auto index, read_index(folder));
  auto publisher = std::make_unique<FilesPublisher>(setup, std::move(lock), std::move(index));
  ASSIGN_OR_RETURN(const size_t num_removed, publisher->remove_unnamed());
  if (num_removed > 0 && setup.log)
    setup.log(fmt::format("removed {} unfinished weight folders that a crashed run left: {}",
                          num_removed, folder.string()));
  return publisher;
}

Result<size_t> FilesPublisher::remove_unnamed() const {
  size_t num_removed = 0;
  std::error_code fault;
  std::vector<fs::path> unnamed;
  for (const auto& entry : fs::directory_iterator(folder_, fault)) {
    const std::string name = entry.path().filename().string();
    const bool is_version = name.starts_with("version_") || name.starts_with(".writing_");
    const bool is_named = std::any_of(index_.begin(), index_.end(),
                                      [&](const auto& one) { return one.folder == name; });
    if (is_version && !is_named) unnamed.push_back(entry.path());
  }
  if (fault)
    return error(Code::kIo, "cannot list folder '{}': {}", folder_.string(), fault.message());
  for (const auto& path : unnamed) {
    fs::remove(path / kVersionFile, fault);  // first: a partly removed folder must not look
                                             // complete
    fs::remove_all(path, fault);
    if (fault) return error(Code::kIo, "cannot remove '{}': {}", path.string(), fault.message());
    ++num_removed;
  }
  return num_removed;
}

Status FilesPublisher::check(const WeightSnapshot& snapshot) const {
  RETURN_IF_ERROR(check_rises(newest_, snapshot.name()));
  uint64_t num_bytes = 0;
  for (const auto& tensor : snapshot.tensors) num_bytes += tensor.bytes.size();
  if (num_bytes <= setup_.bytes_max) return ok();
  return error(Code::kExhausted, "{} has {} bytes, more than the limit of {}", snapshot.name(),
               num_bytes, setup_.bytes_max);
}

/// "version_42", "version_42-tenant_1", "version_42-tenant_1-adapter_2"; with suffix "-2" if an
/// earlier publisher left a folder of that name.
std::string FilesPublisher::fresh_name(const KeyedVersion& version) const {
  std::string first = fmt::format("version_{}", version.version);
  if (version.key != WeightsKey()) first += fmt::format("-tenant_{}", version.key.tenant);
  if (!version.key.is_whole()) first += fmt::format("-adapter_{}", version.key.adapter);
  std::string name = first;
  for (int number = 2; std::any_of(index_.begin(), index_.end(),
                                   [&](const auto& entry) { return entry.folder == name; });
       ++number)
    name = fmt::format("{}-{}", first, number);
  return name;
}

/// `index` with the new version, and without those that it retires: of an earlier publisher, all
/// versions of the key.
Index FilesPublisher::with(KeyedVersion version, std::string name) const {
  const bool is_first = newest_.of(version.key).is_none();
  const size_t num_kept = is_first ? 0 : setup_.versions_max - 1;
  auto num_left =
      static_cast<size_t>(std::count_if(index_.begin(), index_.end(), [&](const auto& one) {
        return one.version.key == version.key;
      }));
  Index next;
  for (const auto& entry : index_)
    if (entry.version.key != version.key || num_left-- <= num_kept) next.push_back(entry);
  next.push_back({version, std::move(name)});
  return next;
}

Status FilesPublisher::publish(const WeightSnapshot& snapshot, Handshake& handshake) {
  RETURN_IF_ERROR(check(snapshot));
  ASSIGN_OR_RETURN(const auto manifest, manifest_of(snapshot));
  RETURN_IF_ERROR(handshake.offer(manifest, snapshot.name()));
  const std::string name = fresh_name(snapshot.name());
  const fs::path writing = folder_ / (".writing_" + name);
  std::error_code fault;
  fs::remove_all(writing, fault);  // both from a failed publish; neither is in the index
  fs::remove_all(folder_ / name, fault);
  if (!fs::create_directory(writing, fault) || fault)
    return error(Code::kIo, "cannot make folder '{}': {}", writing.string(), fault.message());
  probe("write the folder");
  RETURN_IF_ERROR(write_version_folder(writing, snapshot, manifest, setup_.model_folder));
  probe("name the folder");
  fs::rename(writing, folder_ / name, fault);
  if (fault)
    return error(Code::kIo, "cannot name '{}' '{}': {}", writing.string(), name, fault.message());
  RETURN_IF_ERROR(system_files().sync(folder_));
  probe("replace the index");
  Index next = with(snapshot.name(), name);
  RETURN_IF_ERROR(write_index(folder_, next));
  index_ = std::move(next);
  CHECK(newest_.set(snapshot.key, snapshot.version), "a key more than was checked");
  probe("remove what is old");
  ASSIGN_OR_RETURN([[maybe_unused]] const size_t num_removed, remove_unnamed());
  return ok();
}

/// If the index cannot be written now, the next publish() writes it.
Status FilesPublisher::drop(WeightsKey key) {
  newest_.erase(key);
  const size_t num_removed =
      std::erase_if(index_, [&](const IndexEntry& one) { return one.version.key == key; });
  if (num_removed == 0) return ok();
  probe("replace the index");
  RETURN_IF_ERROR(write_index(folder_, index_));
  probe("remove what is old");
  ASSIGN_OR_RETURN([[maybe_unused]] const size_t num_folders, remove_unnamed());
  return ok();
}

class FilesChannel final : public WeightChannel {
 public:
  explicit FilesChannel(ChannelSetup setup)
      : setup_(std::move(setup)), folder_(channel_folder(setup_)) {}

  Status publish(std::shared_ptr<const WeightSnapshot> snapshot) override {
    if (snapshot == nullptr) return error(Code::kInvalid, "published weights are missing");
    ASSIGN_OR_RETURN(snapshot, on_host(std::move(snapshot)));
    const std::lock_guard lock(publish_mutex_);
    if (publisher_ == nullptr) {
      ASSIGN_OR_RETURN(publisher_, FilesPublisher::make(setup_));
    }
    return publisher_->publish(*snapshot, offered_);
  }
  Result<std::shared_ptr<const WeightSnapshot>> fetch(WeightsKey key,
                                                      PolicyVersion version) override;
  PolicyVersion newest(WeightsKey key) const override { return newest_by_key().of(key); }
  void drop(WeightsKey key) override;
  Status expect(const WeightManifest& wanted) override {
    const std::lock_guard lock(fetch_mutex_);
    return wanted_.expect(wanted);
  }
  std::string describe() const override {
    return fmt::format("folder '{}', {}", folder_.string(), describe_newest(newest_by_key()));
  }

 private:
  VersionsByKey newest_by_key() const {
    const auto index = read_index(folder_);
    return index.ok() ? newest_of(*index) : VersionsByKey();
  }
  void unmap_unlisted(const Index& index);

  const ChannelSetup setup_;
  const fs::path folder_;
  // Guarded by publish_mutex_.
  std::mutex publish_mutex_;
  Handshake offered_;
  std::unique_ptr<FilesPublisher> publisher_;  // null until the first publish
  // Guarded by fetch_mutex_.
  std::mutex fetch_mutex_;
  Handshake wanted_;
  // by folder, of those in the index
  std::map<std::string, std::weak_ptr<const WeightSnapshot>> fetched_;
};

Result<std::shared_ptr<const WeightSnapshot>> FilesChannel::fetch(WeightsKey key,
                                                                  PolicyVersion version) {
  const KeyedVersion wanted{key, version};
  const std::lock_guard lock(fetch_mutex_);
  for (int i = 0; i < kTriesMax; ++i) {
    ASSIGN_OR_RETURN(const Index index, read_index(folder_));
    unmap_unlisted(index);
    std::vector<PolicyVersion> held;
    const IndexEntry* entry = nullptr;
    for (const auto& one : index) {
      if (one.version.key == key) held.push_back(one.version.version);
      if (!version.is_none() && one.version == wanted) entry = &one;
    }
    if (entry == nullptr) return not_in_channel(wanted, held);
    auto same = fetched_[entry->folder].lock();
    if (same != nullptr) return same;
    auto fetched = read_version_folder(folder_ / entry->folder, wanted_);
    // retired in the meantime
    if (!fetched.ok() && fetched.error().code() == Code::kNotFound) continue;
    if (!fetched.ok()) return fetched;
    if ((*fetched)->name() != wanted)
      return error(Code::kCorrupt, "'{}' holds {}, its index says {}",
                   (folder_ / entry->folder).string(), (*fetched)->name(), wanted);
    fetched_[entry->folder] = *fetched;
    return fetched;
  }
  return error(Code::kCorrupt, "'{}' names {}, but its folder is not there or not whole",
               (folder_ / "index.json").string(), wanted);
}

/// A process that has not published owns no folder, but may have mapped some.
void FilesChannel::drop(WeightsKey key) {
  {
    const std::lock_guard lock(publish_mutex_);
    offered_.forget(key);
    const Status dropped = publisher_ == nullptr ? ok() : publisher_->drop(key);
    if (!dropped.ok() && setup_.log)
      setup_.log(fmt::format("weight channel '{}': the versions of {} are not removed yet: {}",
                             setup_.resource, key, dropped.error().text()));
  }
  const std::lock_guard lock(fetch_mutex_);
  if (const auto index = read_index(folder_); index.ok()) unmap_unlisted(*index);
}

void FilesChannel::unmap_unlisted(const Index& index) {
  std::erase_if(fetched_, [&](const auto& one) {
    return std::none_of(index.begin(), index.end(),
                        [&](const auto& entry) { return entry.folder == one.first; });
  });
}

}  // namespace

Result<std::shared_ptr<WeightChannel>> make_files_channel(ChannelSetup setup) {
  if (setup.versions_max < 1 || setup.versions_max > kVersionsMax)
    return error(Code::kInvalid, "weight channel '{}' cannot keep {} versions", setup.resource,
                 setup.versions_max)
        .note(fmt::format("files keeps 1 to {}", kVersionsMax));
  if (setup.resource.empty() || setup.resource.find('/') != std::string::npos)
    return error(Code::kInvalid, "'{}' cannot name a folder", setup.resource);
  return std::shared_ptr<WeightChannel>(std::make_shared<FilesChannel>(std::move(setup)));
}

}  // namespace primerl
