#include "runtime/replay/replayed_channel.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "runtime/exec/actor_group.h"

namespace primerl {
namespace {

using Keep = std::function<void(GroupId, std::vector<std::byte>)>;
using Next = std::function<const std::vector<std::byte>*(GroupId)>;

/// The version that was answered: the fetched one, or the newest.
std::vector<std::byte> answer_of(PolicyVersion version) {
  std::vector<std::byte> bytes(sizeof version.value);
  std::memcpy(bytes.data(), &version.value, sizeof version.value);
  return bytes;
}

/// No version, and the reason: one byte of code, then text.
std::vector<std::byte> answer_of(const Error& why) {
  std::vector<std::byte> bytes = answer_of(PolicyVersion());
  bytes.push_back(static_cast<std::byte>(why.code()));
  const std::string text = why.text();
  const auto words = std::as_bytes(std::span(text));
  bytes.insert(bytes.end(), words.begin(), words.end());
  return bytes;
}

PolicyVersion version_of(const std::vector<std::byte>& bytes) {
  PolicyVersion version;
  if (bytes.size() >= sizeof version.value)
    std::memcpy(&version.value, bytes.data(), sizeof version.value);
  return version;
}

Error error_of(const std::vector<std::byte>& bytes, PolicyVersion version) {
  constexpr size_t kCodeAt = sizeof version.value;
  if (bytes.size() <= kCodeAt)  // format of older traces
    return error(Code::kNotFound, "version {} was not in the weight channel any more",
                 version.value);
  return Error(static_cast<Code>(bytes[kCodeAt]),
               std::string(reinterpret_cast<const char*>(bytes.data()) + kCodeAt + 1,
                           bytes.size() - kCodeAt - 1));
}

/// Answers of a channel are among those of engines and learners, which are longer.
bool is_version(const std::vector<std::byte>& answer) {
  return answer.size() == sizeof(PolicyVersion::value);
}

class TracedChannel final : public WeightChannel {
 public:
  explicit TracedChannel(ReplayedChannelSetup setup)
      : channel_(std::move(setup.channel)),
        next_(std::move(setup.next)),
        keep_(std::move(setup.keep)),
        without_tensors_(setup.without_tensors),
        may_come_(std::move(setup.may_come)),
        told_published_(std::move(setup.published)) {}

  Status publish(std::shared_ptr<const WeightSnapshot> snapshot) override {
    // A version without tensors is not published: fetch() makes it from its number.
    if (without_tensors_ && snapshot != nullptr && snapshot->tensors.empty()) return ok();
    const PolicyVersion version = snapshot == nullptr ? PolicyVersion() : snapshot->version;
    const Status published = channel_->publish(std::move(snapshot));
    if (told_published_ != nullptr && published.ok()) told_published_(version);
    const std::lock_guard lock(mutex_);
    published_.notify_all();
    return published;
  }
  Result<std::shared_ptr<const WeightSnapshot>> fetch(PolicyVersion version) override {
    if (const auto* told = recorded(); told != nullptr && version_of(*told).is_none())
      return error_of(*told, version);
    else if (told != nullptr)
      return replayed(version);
    auto fetched = channel_->fetch(version);
    keep(fetched.ok() ? answer_of(version) : answer_of(fetched.error()));
    return fetched;
  }
  PolicyVersion newest() const override {
    if (const auto* told = recorded(); told != nullptr) return version_of(*told);
    const PolicyVersion newest = channel_->newest();
    keep(answer_of(newest));
    return newest;
  }
  bool wait_for(PolicyVersion version, Duration at_most) override {
    return channel_->wait_for(version, at_most);
  }
  Status expect(const WeightManifest& wanted) override { return channel_->expect(wanted); }
  std::string describe() const override { return channel_->describe(); }

 private:
  Result<std::shared_ptr<const WeightSnapshot>> replayed(PolicyVersion version) {
    if (without_tensors_) {
      auto snapshot = std::make_shared<WeightSnapshot>();
      snapshot->version = version;
      return std::shared_ptr<const WeightSnapshot>(std::move(snapshot));
    }
    if (may_come_ != nullptr && may_come_()) {
      std::unique_lock lock(mutex_);
      published_.wait_for(lock, std::chrono::nanoseconds(kPublishMax.to_nanoseconds()),
                          [&] { return channel_->newest() >= version; });
    }
    return channel_->fetch(version);
  }
  const std::vector<std::byte>* recorded() const {
    const GroupId group = ActorGroup::running_here();
    return next_ == nullptr || group.is_none() ? nullptr : next_(group);
  }
  void keep(std::vector<std::byte> told) const {
    const GroupId group = ActorGroup::running_here();
    if (keep_ != nullptr && !group.is_none()) keep_(group, std::move(told));
  }

  const std::unique_ptr<WeightChannel> channel_;
  const Next next_;
  const Keep keep_;
  const bool without_tensors_;
  const std::function<bool()> may_come_;
  const std::function<void(PolicyVersion)> told_published_;
  std::mutex mutex_;
  std::condition_variable published_;
};

}  // namespace

void PublishedVersions::add(int32_t channel, PolicyVersion version) {
  auto& newest = newest_[static_cast<size_t>(channel)];
  const int64_t count = version.value + 1;
  for (int64_t known = newest.load(); known < count && !newest.compare_exchange_weak(known, count);)
    continue;
}

bool PublishedVersions::has(GroupId group, std::span<const std::vector<std::byte>> answers) const {
  int64_t needed = 0;
  for (const auto& answer : answers)
    if (is_version(answer)) needed = std::max(needed, version_of(answer).value + 1);
  if (needed == 0) return true;
  for (const InstanceId instance : plan_.group(group).instances)
    for (const int32_t resource : plan_.instance(instance).resources)
      if (resource >= 0 && newest_[static_cast<size_t>(resource)].load() >= needed) return true;
  return false;
}

std::unique_ptr<WeightChannel> make_recording_channel(std::unique_ptr<WeightChannel> channel,
                                                      Keep keep) {
  ReplayedChannelSetup setup;
  setup.channel = std::move(channel);
  setup.keep = std::move(keep);
  return std::make_unique<TracedChannel>(std::move(setup));
}

std::unique_ptr<WeightChannel> make_replayed_channel(ReplayedChannelSetup setup) {
  return std::make_unique<TracedChannel>(std::move(setup));
}

}  // namespace primerl
