/// A WeightChannel that records its answers to receivers, and one that repeats them.
///
/// Whether a version still existed when an engine asked depends on the speed of its learner: that
/// is recorded; the weights themselves are not. A replay's publisher may be further ahead, so the
/// underlying channel must keep more versions than a run's (memory_channel()).
///
/// Threads: as the channel that they replace; ActorGroup::running_here() is the group that asks.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "graph/base/ids.h"
#include "graph/plan.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// Which weights the learners of a replay have published so far. In the recorded run a step that
/// took weights may have begun before the step that published them, on another thread: a replay
/// takes such a step later. Any thread.
class PublishedVersions {
 public:
  explicit PublishedVersions(const Plan& plan) : plan_(plan), newest_(plan.resources.size()) {}

  /// `channel`: index of the resource.
  void add(int32_t channel, const KeyedVersion& version);
  /// Whether a step of `group` with these recorded answers finds all versions that it took.
  bool has(GroupId group, std::span<const std::vector<std::byte>> answers) const;

 private:
  const Plan& plan_;
  mutable std::mutex mutex_;           // guards what follows
  std::vector<VersionsByKey> newest_;  // by resource
};

/// Whether a note of a resource is a channel's answer that a version could not be fetched.
bool is_failed_channel_answer(std::span<const std::byte> note);

std::unique_ptr<WeightChannel> make_recording_channel(
    std::unique_ptr<WeightChannel> channel,
    std::function<void(GroupId group, std::vector<std::byte> answer)> keep);

/// Past the end of the record (`next` gives null) answers come from `channel`, and are recorded. A
/// version that was fetched in the recorded run is returned without tensors when `without_tensors`
/// (nothing computes with it); otherwise it comes from `channel` and, while it may still be
/// published, is waited for, at most kPublishMax: an engine may get a version without any message
/// (it asked for the newest).
inline constexpr Duration kPublishMax = Duration::seconds(300);
struct ReplayedChannelSetup {
  std::unique_ptr<WeightChannel> channel;
  std::function<const std::vector<std::byte>*(GroupId group)> next;
  std::function<void(GroupId group, std::vector<std::byte> answer)> keep;
  bool without_tensors = false;
  /// Whether another thread may still publish a missing version.
  std::function<bool()> may_come;
  std::function<void(const KeyedVersion&)> published =
      {};  // told after each publish(); may be null
};
std::unique_ptr<WeightChannel> make_replayed_channel(ReplayedChannelSetup setup);

}  // namespace primerl
