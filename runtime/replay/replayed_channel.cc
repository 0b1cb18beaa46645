#include "runtime/replay/replayed_channel.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "runtime/exec/actor_group.h"

namespace primerl {
namespace {

using Keep = std::function<void(GroupId, std::vector<std::byte>)>;
using Next = std::function<const std::vector<std::byte>*(GroupId)>;

constexpr size_t kVersionBytes = 2 * sizeof(uint64_t);  // key and number

/// The answered version: the fetched one, or the newest.
std::vector<std::byte> answer_of(const KeyedVersion& version) {
  const uint64_t key = uint64_t{version.key.tenant.value} << 32 | version.key.adapter.value;
  std::vector<std::byte> bytes(kVersionBytes);
  std::memcpy(bytes.data(), &key, sizeof key);
  std::memcpy(bytes.data() + sizeof key, &version.version.value, sizeof version.version.value);
  return bytes;
}

/// No version, and the reason: one byte of code, then text.
std::vector<std::byte> answer_of(WeightsKey key, const Error& why) {
  std::vector<std::byte> bytes = answer_of({key, PolicyVersion()});
  bytes.push_back(static_cast<std::byte>(why.code()));
  const std::string text = why.text();
  const auto words = std::as_bytes(std::span(text));
  bytes.insert(bytes.end(), words.begin(), words.end());
  return bytes;
}

KeyedVersion version_of(std::span<const std::byte> bytes) {
  KeyedVersion version;
  if (bytes.size() < kVersionBytes) return version;
  uint64_t key = 0;
  std::memcpy(&key, bytes.data(), sizeof key);
  std::memcpy(&version.version.value, bytes.data() + sizeof key, sizeof version.version.value);
  version.key = {TenantSlot(static_cast<uint32_t>(key >> 32)),
                 AdapterId(static_cast<uint32_t>(key))};
  return version;
}

Error error_of(const std::vector<std::byte>& bytes, const KeyedVersion& version) {
  if (bytes.size() <= kVersionBytes)
    return error(Code::kNotFound, "the record has no reason why {} was not there", version);
  return Error(static_cast<Code>(bytes[kVersionBytes]),
               std::string(reinterpret_cast<const char*>(bytes.data()) + kVersionBytes + 1,
                           bytes.size() - kVersionBytes - 1));
}

/// The notes also have answers of engines and learners, which are longer.
bool is_version(const std::vector<std::byte>& answer) { return answer.size() == kVersionBytes; }

class TracedChannel final : public WeightChannel {
 public:
  explicit TracedChannel(ReplayedChannelSetup setup)
      : channel_(std::move(setup.channel)),
        next_(std::move(setup.next)),
        keep_(std::move(setup.keep)),
        without_tensors_(setup.without_tensors),
        may_come_(std::move(setup.may_come)),
        told_published_(std::move(setup.published)),
        told_dropped_(std::move(setup.dropped)) {}

  Status publish(std::shared_ptr<const WeightSnapshot> snapshot) override {
    // A version without tensors is not published: fetch() makes it from its number.
    if (without_tensors_ && snapshot != nullptr && snapshot->tensors.empty()) return ok();
    const KeyedVersion version = snapshot == nullptr ? KeyedVersion() : snapshot->name();
    const Status published = channel_->publish(std::move(snapshot));
    if (told_published_ != nullptr && published.ok()) told_published_(version);
    const std::lock_guard lock(mutex_);
    published_.notify_all();
    return published;
  }
  Result<std::shared_ptr<const WeightSnapshot>> fetch(WeightsKey key,
                                                      PolicyVersion version) override {
    const KeyedVersion wanted{key, version};
    if (const auto* told = recorded(); told != nullptr && version_of(*told).version.is_none())
      return error_of(*told, wanted);
    else if (told != nullptr)
      return replayed(wanted);
    auto fetched = channel_->fetch(key, version);
    keep(fetched.ok() ? answer_of(wanted) : answer_of(key, fetched.error()));
    return fetched;
  }
  PolicyVersion newest(WeightsKey key) const override {
    if (const auto* told = recorded(); told != nullptr) return version_of(*told).version;
    const PolicyVersion newest = channel_->newest(key);
    keep(answer_of({key, newest}));
    return newest;
  }
  /// Groups of a replay are not at the same step: one may drop a key while another has recorded
  /// steps left that fetch it. So the newest drops are carried out later.
  void drop(WeightsKey key) override {
    if (next_ == nullptr) return channel_->drop(key);
    WeightsKey oldest = key;
    {
      const std::lock_guard lock(mutex_);
      if (std::ranges::find(dropped_, key) != dropped_.end()) return;
      dropped_.push_back(key);
      if (dropped_.size() <= kDroppedLaterMax) return;
      oldest = dropped_.front();
      dropped_.pop_front();
    }
    channel_->drop(oldest);
    if (told_dropped_ != nullptr) told_dropped_(oldest);
  }
  bool wait_for(WeightsKey key, PolicyVersion version, Duration at_most) override {
    if (may_come_ == nullptr || !may_come_()) return channel_->wait_for(key, version, at_most);
    std::unique_lock lock(mutex_);
    return published_.wait_for(lock, std::chrono::nanoseconds(at_most.to_nanoseconds()),
                               [&] { return channel_->newest(key) >= version; });
  }
  Status expect(const WeightManifest& wanted) override { return channel_->expect(wanted); }
  std::string describe() const override { return channel_->describe(); }

 private:
  Result<std::shared_ptr<const WeightSnapshot>> replayed(const KeyedVersion& wanted) {
    const auto [key, version] = wanted;
    if (without_tensors_) {
      auto snapshot = std::make_shared<WeightSnapshot>();
      snapshot->key = key;
      snapshot->version = version;
      return std::shared_ptr<const WeightSnapshot>(std::move(snapshot));
    }
    if (may_come_ != nullptr && may_come_()) (void)wait_for(key, version, kPublishMax);
    return channel_->fetch(key, version);
  }
  const std::vector<std::byte>* recorded() const {
    const GroupId group = ActorGroup::running_here();
    return next_ == nullptr || group.is_none() ? nullptr : next_(group);
  }
  void keep(std::vector<std::byte> told) const {
    const GroupId group = ActorGroup::running_here();
    if (keep_ != nullptr && !group.is_none()) keep_(group, std::move(told));
  }

  const std::shared_ptr<WeightChannel> channel_;
  const Next next_;
  const Keep keep_;
  const bool without_tensors_;
  const std::function<bool()> may_come_;
  const std::function<void(const KeyedVersion&)> told_published_;
  const std::function<void(WeightsKey)> told_dropped_;
  std::mutex mutex_;
  std::deque<WeightsKey> dropped_;  // guarded by mutex_; by calls of a replay, the newest last
  std::condition_variable published_;
};

}  // namespace

void PublishedVersions::forget(int32_t channel, WeightsKey key) {
  const std::lock_guard lock(mutex_);
  newest_[static_cast<size_t>(channel)].erase(key);
}

void PublishedVersions::add(int32_t channel, const KeyedVersion& version) {
  const std::lock_guard lock(mutex_);
  CHECK(newest_[static_cast<size_t>(channel)].raise(version.key, version.version),
        "a channel of too many keys");
}

bool PublishedVersions::has(GroupId group, std::span<const std::vector<std::byte>> answers,
                            std::span<const EngineResume> engine_resumes) const {
  VersionsByKey needed;
  for (const EngineResume& resume : engine_resumes)
    for (const auto& [key, version] : resume.versions.list())
      if (!needed.raise(key, version)) return false;
  for (const auto& answer : answers)
    if (is_version(answer)) {
      const auto [key, version] = version_of(answer);
      if (!needed.raise(key, version)) return false;
    }
  if (needed.empty()) return true;
  std::vector<int32_t> channels;
  for (const InstanceId instance : plan_.group(group).instances)
    for (const int32_t resource : plan_.instance(instance).resources)
      if (resource >= 0) channels.push_back(resource);
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(needed.list(), [&](const KeyedVersion& one) {
    return std::ranges::any_of(channels, [&](int32_t channel) {
      return newest_[static_cast<size_t>(channel)].of(one.key) >= one.version;
    });
  });
}

/// Answers of engines and learners begin with a msgpack map, so they never look like this number
/// for "no version".
bool is_failed_channel_answer(std::span<const std::byte> note) {
  return note.size() > kVersionBytes && version_of(note).version.is_none() &&
         static_cast<uint8_t>(note[kVersionBytes]) <= static_cast<uint8_t>(Code::kDeviceLost);
}

std::shared_ptr<WeightChannel> make_recording_channel(std::shared_ptr<WeightChannel> channel,
                                                      Keep keep) {
  ReplayedChannelSetup setup;
  setup.channel = std::move(channel);
  setup.keep = std::move(keep);
  return std::make_unique<TracedChannel>(std::move(setup));
}

std::shared_ptr<WeightChannel> make_replayed_channel(ReplayedChannelSetup setup) {
  return std::make_unique<TracedChannel>(std::move(setup));
}

}  // namespace primerl
