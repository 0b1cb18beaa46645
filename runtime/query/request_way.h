/// RequestPaths: the path of a request through the actors of a run, from its record:
///
///   rollout -GenerateRequest-> router -> prefill -PrefillDone-> decode -Completion-> rollout
///
/// Each message answers the one before it. So causes lead back from any message to the step that
/// first handled the request, even if contents were not stored. Message types are recognized by
/// name; contents are decoded by their recorded schemas. A value over an open Trace.
#pragma once

#include <optional>
#include <vector>

#include "runtime/trace/read/trace.h"
#include "runtime/trace/schema.h"

namespace primerl {

/// Maximum number of actors on a request's path; the begin of a longer path is cut off.
inline constexpr size_t kRequestHopsMax = 8;

enum class RequestMessage : uint8_t {
  kOther,
  kRequest,      // GenerateRequest
  kPrefilled,    // PrefillDone
  kCompletion,   // Completion
  kAction,       // Action
  kObservation,  // Observation
};

/// The facts about a request in its messages, as far as they were stored.
struct RequestFacts {
  std::optional<int64_t> request, session, attempt, num_prompt_tokens, num_cached_tokens;
  /// Adds facts; known ones are not changed.
  void learn(const RequestFacts& more);
};

/// The facts in its Completion.
struct RequestEnd {
  std::optional<int64_t> reason;  // FinishReason
  std::optional<int64_t> num_new_tokens;
  std::vector<int64_t> versions;  // versions of its spans, in order
};

class RequestPaths {
 public:
  explicit RequestPaths(const Trace& trace);

  RequestMessage message_of(const TraceStep& step) const;
  /// The step that handled the message which this one answers. None if the record does not have it,
  /// such as after a restart of a process, which counts its steps anew.
  std::optional<TraceStep> cause_of(const TraceStep& step) const;
  /// The steps that handled a kRequest or kPrefilled, in order; `step` is the last. Empty for other
  /// messages.
  std::vector<TraceStep> path_to(const TraceStep& step) const;
  /// When the step that sent the message ended, but not later than its handling.
  Time sent_at(const TraceStep& step) const;
  /// Whether the record has the step that sent it.
  bool has_sender(const TraceStep& step) const;
  /// Empty when the content was not stored. `end` is filled for a Completion; it may be null.
  RequestFacts facts_of(const TraceStep& step, RequestEnd* end = nullptr) const;
  /// Whether the instance forwards requests.
  bool is_forwarding(InstanceId instance) const;
  /// The only link on which `asker` sends requests; none when it has several, or none.
  LinkId asking_link(InstanceId asker) const;

 private:
  std::optional<TraceStep> sender_of(const TraceStep& step) const;
  std::optional<Json> outline_of(const TraceStep& step) const;

  const Trace& trace_;
  std::vector<RequestMessage> messages_;             // by type
  std::vector<std::optional<FieldSchema>> schemas_;  // by type; only for those messages
};

}  // namespace primerl
