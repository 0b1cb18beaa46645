/// A WeightChannel that records its answers to receivers, and one that repeats them.
///
/// Whether a version still existed when an engine asked depends on the speed of its learner. So the
/// answer is recorded; the weights themselves are not. A replay's publisher may be further ahead,
/// so the wrapped channel must keep more versions than in a run (make_memory_channel()).
///
/// Threads: as for the channel that they replace; ActorGroup::running_here() is the calling group.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "graph/base/ids.h"
#include "graph/plan.h"
#include "kernels/weights/snapshot.h"
#include "runtime/replay/engine_resume.h"

namespace primerl {

/// The weights that the learners of a replay have published so far. In the recorded run a step that
/// fetched weights may have begun before the step that published them, on another thread. A replay
/// delays such a step. Any thread.
class PublishedVersions {
 public:
  explicit PublishedVersions(const Plan& plan) : plan_(plan), newest_(plan.resources.size()) {}

  /// `channel`: index of the resource.
  void add(int32_t channel, const KeyedVersion& version);
  /// No later step fetches a version of `key`.
  void forget(int32_t channel, WeightsKey key);
  /// Whether all versions that a step of `group` fetched, by these recorded answers, are published,
  /// and those of its engines that were made anew in the step.
  bool has(GroupId group, std::span<const std::vector<std::byte>> answers,
           std::span<const EngineResume> engine_resumes = {}) const;

 private:
  const Plan& plan_;
  mutable std::mutex mutex_;           // guards what follows
  std::vector<VersionsByKey> newest_;  // by resource
};

/// Whether a resource's note is a channel's answer that a version could not be fetched.
bool is_failed_channel_answer(std::span<const std::byte> note);

std::shared_ptr<WeightChannel> make_recording_channel(
    std::shared_ptr<WeightChannel> channel,
    std::function<void(GroupId group, std::vector<std::byte> answer)> keep);

/// Past the end of the record (`next` returns null) answers come from `channel`, and are recorded.
/// A version that was fetched in the recorded run is returned without tensors if `without_tensors`
/// (then no computation uses them). Otherwise it comes from `channel`. If it may still be
/// published, the call waits for it, at most kPublishMax: an engine that asked for the newest
/// version gets it without any message. So does wait_for().
inline constexpr Duration kPublishMax = Duration::seconds(300);
/// A replay carries out a drop() when this many other keys were dropped after it.
inline constexpr size_t kDroppedLaterMax = 256;
struct ReplayedChannelSetup {
  std::shared_ptr<WeightChannel> channel;
  std::function<const std::vector<std::byte>*(GroupId group)> next;
  std::function<void(GroupId group, std::vector<std::byte> answer)> keep;
  bool without_tensors = false;
  /// Whether another thread may still publish a missing version.
  std::function<bool()> may_come;
  std::function<void(const KeyedVersion&)> published =
      // called after each publish(); may be null
      {};
  std::function<void(WeightsKey)> dropped =
      // called when a drop() of a replay is carried out; may be null
      {};
};
std::shared_ptr<WeightChannel> make_replayed_channel(ReplayedChannelSetup setup);

}  // namespace primerl
