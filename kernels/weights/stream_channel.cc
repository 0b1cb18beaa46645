#include "kernels/weights/stream_channel.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>

#include "kernels/weights/device_weights.h"

namespace primerl {
namespace {

using Snapshot = std::shared_ptr<const WeightSnapshot>;

constexpr int kCorruptMax = 3;     // corrupt transfers of one version
constexpr size_t kRetiredMax = 1;  // versions that wait for another thread to free them
/// Dropped keys of which no version is kept that still arrives: the publisher may drop them later.
constexpr size_t kDroppedMax = 256;
constexpr Duration kWaitMax = Duration::seconds(24 * 3600);  // limit that a clock can add without
                                                             // overflow

class ConnectionEnd final : public StreamChannel {
 public:
  explicit ConnectionEnd(StreamChannelSetup setup)
      : setup_(std::move(setup)), library_(std::make_shared<StreamLibrary>(setup_.versions_max)) {
    CHECK(setup_.versions_max > 0, "a weight channel that keeps no version");
  }

  // WeightChannel
  Status publish(Snapshot snapshot) override;
  Result<Snapshot> fetch(WeightsKey key, PolicyVersion version) override;
  PolicyVersion newest(WeightsKey key) const override {
    const std::lock_guard lock(mutex_);
    return newest_here(key);
  }
  void drop(WeightsKey key) override;
  bool wait_for(WeightsKey key, PolicyVersion version, Duration at_most) override;
  Status expect(const WeightManifest& wanted) override;
  std::string describe() const override;

  // StreamChannel
  std::optional<PeerFrame> next(uint32_t peer, uint32_t incarnation) override;
  void handle(uint32_t peer, uint32_t incarnation, const PeerFrame& frame) override;
  void peer_ended(uint32_t peer, uint32_t incarnation) override;

 private:
  struct Peer {
    Peer(uint32_t number, std::shared_ptr<const StreamLibrary> library,
         const StreamChannelSetup& setup)
        : incarnation(number),
          sender(std::move(library), setup.chunk_bytes),
          receiver(setup.bytes_max) {}
    uint32_t incarnation;
    WeightStreamSender sender;
    WeightStreamReceiver receiver;
    VersionsByKey above;  // the versions named in its request
    bool owes_want = true;
    bool is_publisher = false;  // it has offered a version
    bool is_refusing = false;   // ignores further frames of a refused version
    int num_corrupt = 0;        // corrupt transfers of the current version
  };
  struct Fault {
    PolicyVersion version;
    Error why;
  };

  // Call with mutex_ locked:
  Peer* peer_of(uint32_t number, uint32_t incarnation);
  PolicyVersion newest_here(WeightsKey key) const {
    if (publishes_) return library_->newest(key);
    const auto found = versions_.find(key);
    return found == versions_.end() ? PolicyVersion() : found->second.back()->version;
  }
  bool is_refused(WeightsKey key, PolicyVersion version) const {
    const auto fault = faults_.find(key);
    return fault != faults_.end() && fault->second.version >= version;
  }
  bool is_dropped(WeightsKey key) const {
    return std::ranges::find(dropped_, key) != dropped_.end();
  }
  Snapshot find(const KeyedVersion& version) const;
  Error not_here(const KeyedVersion& version) const;
  void take(uint32_t number, Peer& peer, std::vector<Snapshot>& dropped);
  void refuse(uint32_t number, Peer& peer, const Error& why);
  void note_offer(uint32_t number, Peer& peer);
  std::string name_of(uint32_t number) const {
    return number < setup_.names.size() ? fmt::format("'{}'", setup_.names[number])
                                        : fmt::format("process {}", number);
  }
  void say(const std::string& words) const {
    if (setup_.log != nullptr) setup_.log(words);
  }

  const StreamChannelSetup setup_;
  const std::shared_ptr<StreamLibrary> library_;  // has its own lock

  mutable std::mutex mutex_;  // guards the following members
  std::condition_variable has_come_;
  bool publishes_ = false;
  std::map<uint32_t, Peer> peers_;
  WeightManifest wanted_;
  Handshake handshake_;
  std::pair<uint32_t, uint32_t> source_{};  // peer and incarnation that published versions_
  /// Received versions, oldest first; no key without one.
  std::map<WeightsKey, std::deque<Snapshot>> versions_;
  std::vector<Snapshot> retired_;       // freed by the next fetch
  std::deque<WeightsKey> dropped_;      // the newest last, at most kDroppedMax
  bool had_publisher_ = false;          // some peer has offered a version
  std::map<WeightsKey, Fault> faults_;  // why the newest offer of a key was refused
};

Status ConnectionEnd::publish(Snapshot snapshot) {
  ASSIGN_OR_RETURN(snapshot, on_host(std::move(snapshot)));
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, peer] : peers_)
      if (peer.is_publisher)
        return error(Code::kExists, "weight channel '{}' has a publisher already: {}",
                     setup_.resource, name_of(number));
  }
  if (snapshot != nullptr) {
    ASSIGN_OR_RETURN(const auto manifest, manifest_of(*snapshot));
    if (const size_t size = encode(manifest).size(); size > kStreamManifestBytesMax)
      return error(Code::kExhausted,
                   "the names and shapes of {} tensors need {} bytes, a link carries {}",
                   manifest.tensors.size(), size, kStreamManifestBytesMax)
          .note("backend 'files' carries more");
  }
  RETURN_IF_ERROR(library_->publish(std::move(snapshot)));
  std::map<WeightsKey, std::deque<Snapshot>> of_another;  // freed without the lock
  {
    const std::lock_guard lock(mutex_);
    publishes_ = true;
    of_another.swap(versions_);
    has_come_.notify_all();
  }
  if (setup_.has_news != nullptr) setup_.has_news();
  return ok();
}

Snapshot ConnectionEnd::find(const KeyedVersion& version) const {
  if (publishes_) {
    const auto published = library_->find(version);
    return published == nullptr ? nullptr : published->snapshot;
  }
  const auto found = versions_.find(version.key);
  if (found == versions_.end()) return nullptr;
  for (const Snapshot& one : found->second)
    if (one->version == version.version) return one;
  return nullptr;
}

Result<Snapshot> ConnectionEnd::fetch(WeightsKey key, PolicyVersion version) {
  std::vector<Snapshot> retired;  // freed without the lock
  const std::lock_guard lock(mutex_);
  retired.swap(retired_);
  if (version.is_none()) return error(Code::kNotFound, "no version was asked for");
  const Snapshot found = find({key, version});
  if (found == nullptr) return not_here({key, version});
  // Versions that arrived before expect() were not compared yet.
  ASSIGN_OR_RETURN(const auto manifest, manifest_of(*found));
  RETURN_IF_ERROR(handshake_.accept(manifest, manifest.hash()));
  return found;
}

/// The key's version stays in the requests, so that it is not sent again before the publisher has
/// dropped it too.
void ConnectionEnd::drop(WeightsKey key) {
  std::deque<Snapshot> freed;  // without the lock
  library_->drop(key);
  const std::lock_guard lock(mutex_);
  if (const auto found = versions_.find(key); found != versions_.end()) {
    freed.swap(found->second);
    versions_.erase(found);
  }
  std::erase_if(retired_, [&](const Snapshot& one) {
    if (one->key != key) return false;
    freed.push_back(one);
    return true;
  });
  faults_.erase(key);
  if (publishes_ || is_dropped(key)) return;
  dropped_.push_back(key);
  if (dropped_.size() <= kDroppedMax) return;
  for (auto& [number, peer] : peers_) peer.above.erase(dropped_.front());
  dropped_.pop_front();
}

Error ConnectionEnd::not_here(const KeyedVersion& version) const {
  const PolicyVersion newest = newest_here(version.key);
  if (publishes_ || newest > version.version)
    return error(Code::kNotFound, "{} is not in the weight channel", version)
        .note(newest.is_none() ? fmt::format("nothing of {} was published yet", version.key)
                               : fmt::format("its newest is version {}", newest));
  if (is_refused(version.key, version.version)) return faults_.at(version.key).why;
  Error later = error(Code::kUnavailable, "{} has not arrived yet", version);
  for (const auto& [number, peer] : peers_)
    if (peer.receiver.num_expected() > 0)
      return std::move(later).note(
          fmt::format("{} of {} bytes of {} have arrived from {}", peer.receiver.num_received(),
                      peer.receiver.num_expected(), peer.receiver.offered(), name_of(number)));
  return std::move(later).note("nothing is being sent");
}

bool ConnectionEnd::wait_for(WeightsKey key, PolicyVersion version, Duration at_most) {
  std::unique_lock lock(mutex_);
  const auto most = std::chrono::nanoseconds(std::min(at_most, kWaitMax).to_nanoseconds());
  has_come_.wait_for(lock, most,
                     [&] { return newest_here(key) >= version || is_refused(key, version); });
  return newest_here(key) >= version;
}

Status ConnectionEnd::expect(const WeightManifest& wanted) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(handshake_.expect(wanted));
  if (wanted.empty()) return ok();
  wanted_ = wanted;
  for (auto& [number, peer] : peers_) RETURN_IF_ERROR(peer.receiver.expect(wanted_));
  return ok();
}

std::string ConnectionEnd::describe() const {
  const std::lock_guard lock(mutex_);
  if (publishes_) return describe_newest(library_->newest_by_key());
  VersionsByKey newest;
  for (const auto& [key, versions] : versions_)
    if (!newest.set(key, versions.back()->version)) break;
  return describe_newest(newest);
}

ConnectionEnd::Peer* ConnectionEnd::peer_of(uint32_t number, uint32_t incarnation) {
  auto found = peers_.find(number);
  if (found != peers_.end() && found->second.incarnation > incarnation) return nullptr;
  if (found != peers_.end() && found->second.incarnation == incarnation) return &found->second;
  if (found != peers_.end()) peers_.erase(found);
  Peer& peer = peers_.try_emplace(number, incarnation, library_, setup_).first->second;
  // Receivers of a process must all expect the same; others were refused before.
  CHECK(peer.receiver.expect(wanted_).ok(), "a receiver expects other tensors");
  return &peer;
}

std::optional<PeerFrame> ConnectionEnd::next(uint32_t number, uint32_t incarnation) {
  const std::lock_guard lock(mutex_);
  Peer* peer = peer_of(number, incarnation);
  if (peer == nullptr) return std::nullopt;
  if (std::exchange(peer->owes_want, false)) return peer->receiver.ask({}, peer->above);
  return peer->sender.next();
}

void ConnectionEnd::handle(uint32_t number, uint32_t incarnation, const PeerFrame& frame) {
  std::vector<Snapshot> dropped;  // freed without the lock
  const std::lock_guard lock(mutex_);
  Peer* peer = peer_of(number, incarnation);
  if (peer == nullptr) return;
  if (kind_of(frame) == WeightFrameKind::kWant) {
    if (const Status wanted = peer->sender.handle(frame); !wanted.ok())
      say(fmt::format("weight channel '{}': {} sent an invalid request: {}", setup_.resource,
                      name_of(number), wanted.error().text()));
    return;
  }
  if (kind_of(frame) != WeightFrameKind::kChunk) peer->is_refusing = false;
  if (peer->is_refusing) return;
  const KeyedVersion offered = peer->receiver.offered();
  const Status handled = peer->receiver.handle(frame);
  if (peer->receiver.offered() != offered) note_offer(number, *peer);
  if (!handled.ok()) return refuse(number, *peer, handled.error());
  take(number, *peer, dropped);
}

void ConnectionEnd::note_offer(uint32_t number, Peer& peer) {
  peer.num_corrupt = 0;
  if (std::exchange(peer.is_publisher, true)) return;
  // Versions of the earlier publisher do not arrive any more. A client's snapshots may have the
  // same numbers again, because the new one may have started from an older checkpoint.
  if (std::exchange(had_publisher_, true)) dropped_.clear();
  if (!publishes_) return;
  say(fmt::format("weight channel '{}': {} publishes too; its versions are ignored",
                  setup_.resource, name_of(number)));
}

void ConnectionEnd::take(uint32_t number, Peer& peer, std::vector<Snapshot>& dropped) {
  Snapshot snapshot = peer.receiver.take();
  // A publisher requests no versions.
  if (snapshot == nullptr || publishes_) return;
  const WeightsKey key = snapshot->key;
  if (!peer.above.set(key, snapshot->version))
    return refuse(
        number, peer,
        error(Code::kExhausted, "{} arrived, but there are already weights of {} others here",
              snapshot->name(), kWeightsKeysMax));
  peer.owes_want = true;
  if (is_dropped(key)) return dropped.push_back(std::move(snapshot));
  const std::pair<uint32_t, uint32_t> source(number, peer.incarnation);
  const auto retire = [&](Snapshot old) {
    (retired_.size() < kRetiredMax ? retired_ : dropped).push_back(std::move(old));
  };
  // A new publisher may start at any version: it resumes from a checkpoint.
  if (std::exchange(source_, source) != source) {
    for (auto& [of, versions] : std::exchange(versions_, {}))
      for (auto& old : versions) retire(std::move(old));
    faults_.clear();
  }
  auto& versions = versions_[key];
  while (versions.size() >= setup_.versions_max) {
    retire(std::move(versions.front()));
    versions.pop_front();
  }
  versions.push_back(std::move(snapshot));
  faults_.erase(key);
  has_come_.notify_all();
}

void ConnectionEnd::refuse(uint32_t number, Peer& peer, const Error& why) {
  peer.owes_want = !publishes_;
  peer.is_refusing = true;
  if (why.code() == Code::kCorrupt && ++peer.num_corrupt <= kCorruptMax) {
    return say(fmt::format("weight channel '{}': {} from {} is requested again: {}",
                           setup_.resource, peer.receiver.offered(), name_of(number), why.text()));
  }
  const auto& [key, version] = peer.receiver.offered();
  // If there are too many keys, stop requesting: the same version would be offered again.
  if (!peer.above.set(key, version)) peer.owes_want = false;
  if (is_dropped(key)) return;
  if (faults_.size() < kWeightsKeysMax || faults_.contains(key))
    faults_.insert_or_assign(key, Fault{version, why});
  has_come_.notify_all();
}

void ConnectionEnd::peer_ended(uint32_t number, uint32_t incarnation) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(number);
  if (found != peers_.end() && found->second.incarnation <= incarnation) peers_.erase(found);
}

}  // namespace

std::shared_ptr<StreamChannel> make_stream_channel(StreamChannelSetup setup) {
  return std::make_shared<ConnectionEnd>(std::move(setup));
}

}  // namespace primerl
