/// RequestWays: the way of a request through a run, from its record:
///
///   rollout -GenerateRequest-> router -> prefill -PrefillDone-> decode -Completion-> rollout
///
/// Each message answers the one before it, so causes lead back from any of them to where the
/// request was first handled, also where contents were not stored. Messages are known by the names
/// of their types; contents, by their recorded schemas. A value over an open Trace.
#pragma once

#include <optional>
#include <vector>

#include "runtime/trace/read/trace.h"
#include "runtime/trace/schema.h"

namespace primerl {

/// Actors that one request is passed through at most; a longer way is cut at its beginning.
inline constexpr size_t kRequestHopsMax = 8;

enum class RequestMessage : uint8_t {
  kOther,
  kRequest,      // GenerateRequest
  kPrefilled,    // PrefillDone
  kCompletion,   // Completion
  kAction,       // Action
  kObservation,  // Observation
};

/// What the contents say about a request, as far as they were stored.
struct RequestFacts {
  std::optional<int64_t> request, session, attempt, num_prompt_tokens, num_cached_tokens;
  /// What is known already stays.
  void learn(const RequestFacts& more);
};

/// What its Completion says.
struct RequestEnd {
  std::optional<int64_t> reason;  // FinishReason
  std::optional<int64_t> num_new_tokens;
  std::vector<int64_t> versions;  // of its spans, in order
};

class RequestWays {
 public:
  explicit RequestWays(const Trace& trace);

  RequestMessage message_of(const TraceStep& step) const;
  /// The handling of the message that this one answers; none when the record does not have it, as
  /// that of a process which was started again and counted its steps anew.
  std::optional<TraceStep> cause_of(const TraceStep& step) const;
  /// Where the request of a kRequest or kPrefilled was handled, in order; `step` is the last. Empty
  /// for other messages.
  std::vector<TraceStep> way_to(const TraceStep& step) const;
  /// When the step that sent it ended, at the latest when it was handled.
  Time sent_at(const TraceStep& step) const;
  /// Whether the record has the step that sent it.
  bool has_sender(const TraceStep& step) const;
  /// Nothing when the content was not stored. `end` is filled in of a Completion; may be null.
  RequestFacts facts_of(const TraceStep& step, RequestEnd* end = nullptr) const;
  /// Whether it passes requests on.
  bool is_passing_on(InstanceId instance) const;
  /// The only link on which `asker` sends requests; none when it has several, or no one.
  LinkId asking_link(InstanceId asker) const;

 private:
  std::optional<TraceStep> sender_of(const TraceStep& step) const;
  std::optional<Json> outline_of(const TraceStep& step) const;

  const Trace& trace_;
  std::vector<RequestMessage> messages_;             // by type
  std::vector<std::optional<FieldSchema>> schemas_;  // by type; of those messages alone
};

}  // namespace primerl
