/// UnfinishedSequences: the unfinished requests of an engine, by sequence. With them another engine
/// of the same kind can continue. KV blocks and tokens made so far are not included; they are
/// computed again from the prompt.
///
/// A plain value, kept by the wrapper of the engine (traced_engine.h, resuming_engine.h). Threads:
/// that engine's.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>

#include "kernels/engine/engine.h"

namespace primerl {

/// A submitted sequence that has not finished.
struct UnfinishedSequence {
  SequenceRequest request;
  bool was_told = false;               // Prefill was notified that its prompt is complete
  bool is_taken = false;               // Decode accepted the sequence
  std::optional<FinishReason> ended;   // it was aborted, or its lease expired
  std::optional<std::string> refusal;  // of the engine that continues; not saved

  template <class F>
  static void fields(F& f) {
    using E = UnfinishedSequence;
    f("request", &E::request)("was_told", &E::was_told)("is_taken", &E::is_taken)("ended",
                                                                                  &E::ended);
  }
};

struct UnfinishedSequences {
  std::map<SequenceId, UnfinishedSequence> of;
  VersionsByKey applied;  // weights that the engine applied
  // Counts of all sequences whose ends were read, whichever engine ended them: EngineState's
  // totals.
  uint64_t num_completed = 0;
  uint64_t num_failed = 0;

  void submitted(SequenceRequest request) {
    const SequenceId id = request.id;
    UnfinishedSequence flight;
    flight.request = std::move(request);
    of.insert_or_assign(id, std::move(flight));
  }
  void taken_over(SequenceId id) {
    if (const auto flight = of.find(id); flight != of.end()) flight->second.is_taken = true;
  }
  void aborted(SequenceId id) {
    const auto flight = of.find(id);
    if (flight != of.end() && !flight->second.ended)
      flight->second.ended = FinishReason::kCancelled;
  }
  void dropped(WeightsKey key) {
    for (auto& [id, flight] : of)
      if (flight.request.key() == key && !flight.ended) flight.ended = FinishReason::kCancelled;
    applied.erase(key);
  }
  void expired(SequenceId id) {
    const auto found = of.find(id);
    if (found == of.end()) return;
    UnfinishedSequence& flight = found->second;
    if (flight.was_told && !flight.is_taken && !flight.ended) flight.ended = FinishReason::kRefused;
  }
  void prefilled(std::span<const PrefillEvent> events) {
    for (const auto& event : events)
      if (const auto flight = of.find(event.id); flight != of.end()) flight->second.was_told = true;
  }
  void finished(std::span<const FinishEvent> events) {
    for (const auto& event : events) {
      of.erase(event.id);
      num_completed += is_complete(event.reason) ? 1U : 0U;
      num_failed += event.reason == FinishReason::kFailed ? 1U : 0U;
    }
  }

  template <class F>
  static void fields(F& f) {
    using E = UnfinishedSequences;
    f("of", &E::of)("applied", &E::applied)("num_completed", &E::num_completed)("num_failed",
                                                                                &E::num_failed);
  }
};

}  // namespace primerl
