#include "runtime/replay/resuming_engine.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "runtime/replay/traced_engine.h"

namespace primerl {
namespace {

class ResumingEngine final : public TracedEngine {
 public:
  explicit ResumingEngine(ResumingEngineSetup setup)
      : TracedEngine(std::move(setup.engine), std::move(setup.next)), setup_(std::move(setup)) {}

  Status submit(SequenceRequest request) override {
    RETURN_IF_ERROR(look());
    if (is_live_) return TracedEngine::submit(std::move(request));
    SequenceRequest flight = request;
    RETURN_IF_ERROR(TracedEngine::submit(std::move(request)));
    unfinished_.submitted(std::move(flight));
    return ok();
  }

  Status take_over(SequenceId id) override {
    RETURN_IF_ERROR(look());
    const auto flight = unfinished_.of.find(id);
    if (!is_live_ || flight == unfinished_.of.end()) RETURN_IF_ERROR(TracedEngine::take_over(id));
    if (flight == unfinished_.of.end()) return ok();
    // Resumed: its prompt is being computed again; it is taken over when the prompt is complete.
    flight->second.is_taken = true;
    if (flight->second.refusal) end(id, FinishReason::kRefused, *flight->second.refusal);
    return ok();
  }

  void abort(SequenceId id) override {
    if (!look().ok()) return;
    if (!is_live_) return unfinished_.aborted(id);
    const auto flight = unfinished_.of.find(id);
    if (const auto waiting = std::find(backlog_.begin(), backlog_.end(), id);
        waiting != backlog_.end()) {
      backlog_.erase(waiting);
      return end(id, FinishReason::kCancelled, {});
    }
    if (flight != unfinished_.of.end() && flight->second.refusal)
      return end(id, FinishReason::kCancelled, {});
    TracedEngine::abort(id);
  }

  void expire(SequenceId id) override {
    if (!look().ok()) return;
    if (!is_live_) return unfinished_.expired(id);
    // A prompt that is computed again has no lease: leases applied only before the resume. It is
    // taken over when Decode asks.
    if (unfinished_.of.count(id) == 0) TracedEngine::expire(id);
  }

  std::vector<PrefillEvent> take_prefilled() override {
    if (!look().ok()) return {};
    auto events = TracedEngine::take_prefilled();
    if (!is_live_) {
      unfinished_.prefilled(events);
      return events;
    }
    std::erase_if(events, [this](const PrefillEvent& event) { return settle(event.id); });
    for (auto& [id, flight] : unfinished_.of)
      if (flight.refusal && !std::exchange(flight.was_told, true)) events.push_back({id, 0});
    return events;
  }

  std::vector<FinishEvent> take_finished() override {
    if (!look().ok()) return {};
    auto events = TracedEngine::take_finished();
    for (auto& event : events)
      if (const auto flight = unfinished_.of.find(event.id); flight != unfinished_.of.end()) {
        event.was_prefilled = event.was_prefilled || flight->second.was_told;
        unfinished_.of.erase(flight);
      }
    events.insert(events.begin(), std::make_move_iterator(ended_.begin()),
                  std::make_move_iterator(ended_.end()));
    ended_.clear();
    return events;
  }

  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    RETURN_IF_ERROR(look());
    auto applied = TracedEngine::apply(snapshot);
    if (!is_live_ && applied.ok()) applied_[snapshot.key] = snapshot;
    return applied;
  }

  Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot) override {
    RETURN_IF_ERROR(look());
    auto applied = TracedEngine::apply_prepared(snapshot);
    if (!is_live_ && applied.ok() && applied->has_value()) applied_[snapshot->key] = *snapshot;
    return applied;
  }

  void set_paused(bool is_paused) override {
    is_paused_ = is_paused;
    if (look().ok()) TracedEngine::set_paused(is_paused);
  }

  /// For a cut, before the first recorded call after it.
  Status restore_state(const Blob& state) override {
    ASSIGN_OR_RETURN(unfinished_, read_state<UnfinishedSequences>(state));
    for (const auto& [key, version] : unfinished_.applied.list())
      applied_[key] = {.key = key, .version = version, .tensors = {}};
    return ok();
  }

  EngineState state() const override {
    EngineState state = TracedEngine::state();
    if (!is_live_) return state;
    state.num_waiting += static_cast<int32_t>(backlog_.size());
    state.num_room = std::max(state.num_room - static_cast<int32_t>(backlog_.size()), 0);
    return state;
  }
  Status step() override {
    RETURN_IF_ERROR(look());
    if (is_live_) submit_waiting();
    return TracedEngine::step();
  }
  /// At the end of the record there is work: the unfinished sequences.
  bool has_work() const override {
    if (!is_live_) return setup_.is_live();
    // A paused engine does not free places in its queue.
    const bool can_submit = !backlog_.empty() && !is_paused_;
    return !fault_.ok() || has_news() || can_submit || TracedEngine::has_work();
  }

 protected:
  bool is_replaying() const override { return !is_live_; }

 private:
  /// Whether events for Prefill or Decode are pending here.
  bool has_news() const {
    return !ended_.empty() ||
           std::any_of(unfinished_.of.begin(), unfinished_.of.end(), [](const auto& each) {
             return each.second.refusal && !each.second.was_told;
           });
  }

  /// Switches to the real engine when the run has resumed. If that fails, every later call returns
  /// the fault, because some callers cannot receive one now.
  Status look() {
    if (is_live_ || !setup_.is_live()) return fault_;
    is_live_ = true;
    TracedEngine::set_paused(is_paused_);
    fault_ = take_weights();
    if (!fault_.ok()) return fault_;
    std::vector<std::pair<SequenceId, FinishReason>> ended;
    for (const auto& [id, flight] : unfinished_.of) {
      if (flight.ended)
        ended.emplace_back(id, *flight.ended);
      else
        backlog_.push_back(id);
    }
    for (const auto& [id, reason] : ended)
      end(id, reason, reason == FinishReason::kRefused ? std::string(kLeaseEnded) : "");
    submit_waiting();
    return ok();
  }

  Status take_weights() {
    for (const auto& [key, weights] : std::exchange(applied_, {})) {
      if (!weights.tensors.empty()) {
        RETURN_IF_ERROR(TracedEngine::apply(weights));
        continue;
      }
      ASSIGN_OR_RETURN(const auto made, setup_.weights_from(weights.name()));
      RETURN_IF_ERROR(TracedEngine::apply(*made));
    }
    return ok();
  }

  void submit_waiting() {
    while (!backlog_.empty()) {
      const SequenceId id = backlog_.front();
      UnfinishedSequence& flight = unfinished_.of.at(id);
      const Status submitted = TracedEngine::submit(SequenceRequest(flight.request));
      if (!submitted.ok() && submitted.error().code() == Code::kExhausted) return;
      backlog_.pop_front();
      if (submitted.ok()) continue;
      // If Prefill was not notified of this prompt, it is notified that the prompt is complete;
      // then Decode gets the refusal as the sequence's end.
      flight.refusal = submitted.error().text();
      if (flight.is_taken) end(id, FinishReason::kRefused, *flight.refusal);
    }
  }

  void end(SequenceId id, FinishReason reason, std::string detail) {
    FinishEvent event;
    event.id = id;
    event.reason = reason;
    if (const auto flight = unfinished_.of.find(id); flight != unfinished_.of.end())
      event.was_prefilled = flight->second.was_told;
    event.detail = std::move(detail);
    ended_.push_back(std::move(event));
    unfinished_.of.erase(id);
  }

  /// True when Prefill had been notified of this prompt. A recorded take-over is repeated on the
  /// engine; the next step() finds a failure.
  bool settle(SequenceId id) {
    const auto found = unfinished_.of.find(id);
    if (found == unfinished_.of.end()) return false;
    if (!found->second.was_told) {
      unfinished_.of.erase(found);
      return false;
    }
    if (!found->second.is_taken) {
      // Decode has not taken it over yet; it will find the complete prompt in the engine.
      unfinished_.of.erase(found);
      return true;
    }
    unfinished_.of.erase(found);
    // The engine has the sequence and it was not aborted, so an error here is a fault of the
    // engine.
    const Status taken = TracedEngine::take_over(id);
    if (!taken.ok() && fault_.ok())
      fault_ = Error(taken.error()).while_doing("taking over a sequence that was in flight");
    return true;
  }

  const ResumingEngineSetup setup_;
  bool is_live_ = false;
  bool is_paused_ = false;
  // Of switching to the real engine, or of that engine.
  Status fault_;
  // After the resume: prompts that are not complete again.
  UnfinishedSequences unfinished_;
  // Before the resume: the weights that the real engine must get.
  std::map<WeightsKey, WeightSnapshot> applied_;
  // After the resume: sequences that wait for a free place in the engine's queue.
  std::deque<SequenceId> backlog_;
  std::vector<FinishEvent> ended_;
};

}  // namespace

std::shared_ptr<Engine> make_resuming_engine(ResumingEngineSetup setup) {
  return std::make_unique<ResumingEngine>(std::move(setup));
}

}  // namespace primerl
