/// A WeightChannel that writes down what its receivers were told, and one that tells them the same.
///
/// Whether a version was still there when an engine asked depends on how fast its learner was: that
/// is recorded; the weights themselves are not. A replay's publisher may be further ahead, so the
/// channel behind must keep more versions than a run's (memory_channel()).
///
/// Threads: as the channel they stand for; who asks is ActorGroup::running_here().
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "graph/base/ids.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

std::unique_ptr<WeightChannel> make_recording_channel(
    std::unique_ptr<WeightChannel> channel,
    std::function<void(GroupId group, std::vector<std::byte> answer)> keep);

/// Past the end of the record (`next` gives null) answers are `channel`'s own, and kept. A version
/// that was fetched in the recorded run is given without tensors when `without_tensors` (nobody
/// computes with it); else it is `channel`'s and, when it may still come, waited for, at most
/// kPublishMax: a version may reach an engine without any message (it asked for the newest).
inline constexpr Duration kPublishMax = Duration::seconds(300);
struct ReplayedChannelSetup {
  std::unique_ptr<WeightChannel> channel;
  std::function<const std::vector<std::byte>*(GroupId group)> next;
  std::function<void(GroupId group, std::vector<std::byte> answer)> keep;
  bool without_tensors = false;
  /// Whether a version that is not there yet may still come from another thread.
  std::function<bool()> may_come;
};
std::unique_ptr<WeightChannel> make_replayed_channel(ReplayedChannelSetup setup);

}  // namespace primerl
