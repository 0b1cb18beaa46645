/// Conversation: a generated record of requests, message by message: senders, times, and which
/// contents were stored.
///
///   rollout.generate -> router.generate      router.prefill -> prefill.request
///   prefill.done -> decode.request           rollout.action ~> env.action
///   decode.completion, prefill.refused, router.refused ~> rollout.completion
///   router.abort ~> decode.abort             env.observation ~> rollout.observation
///
/// Times are microseconds of the run.
#pragma once

#include <filesystem>
#include <vector>

#include "tests/trace/story.h"

namespace primerl::conversation {

inline constexpr uint32_t kEnv = 0, kRollout = 1, kRouter = 2, kPrefill = 3, kDecode = 4;
inline constexpr uint32_t kGenerate = 0, kToPrefill = 1, kDone = 2, kCompletion = 3,
                          kPrefillRefused = 4, kRouterRefused = 5, kAbort = 6, kAction = 7,
                          kObservation = 8;

/// A message in transit: emitted by the next step of its sender.
struct Sent {
  uint32_t link = 0;
  uint64_t sequence = 0, check = 0, sender_step = 0;
  uint32_t num_bytes = 0;
  StepRef cause;
};

class Conversation {
 public:
  Conversation();

  TraceCatalog catalog;

  /// `cause`: the step that the message answers; none: the step that sends it.
  template <class T>
  Sent send(uint32_t link, const T& message, StepRef cause = {}) {
    return send(link, Payload::of(message), cause);
  }
  /// The receiver handles it; its messages since its last step leave with this step.
  StepRef take(const Sent& message, int64_t at_us, uint32_t duration_us = 10);
  /// A work call or a timer of a group that no message caused.
  StepRef turn(uint32_t group, int64_t at_us, uint32_t duration_us = 10);
  /// From now on contents on this link are stored, or not.
  void store(uint32_t link, bool is_stored);

  /// Writes into `folder`/trace, one file per process.
  void write(const std::filesystem::path& folder) const;

 private:
  Sent send(uint32_t link, const Payload& payload, StepRef cause);
  StepRef step(uint32_t group, const Sent* input, int64_t at_us, uint32_t duration_us);

  std::vector<story::StoryFrame> frames_;
  std::vector<bool> is_stored_;
  uint64_t steps_[5] = {};
  std::vector<uint64_t> sequences_;
};

}  // namespace primerl::conversation
