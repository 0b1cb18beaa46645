#include "runtime/replay/continued_engine.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "kernels/engine/engine_wrapper.h"

namespace primerl {
namespace {

class ContinuedEngine final : public EngineWrapper {
 public:
  ContinuedEngine(std::shared_ptr<Engine> engine, UnfinishedSequences unfinished, bool is_paused)
      : EngineWrapper(std::move(engine)),
        unfinished_(std::move(unfinished)),
        is_paused_(is_paused) {
    std::vector<std::pair<SequenceId, FinishReason>> ended;
    for (const auto& [id, sequence] : unfinished_.of) {
      if (sequence.ended)
        ended.emplace_back(id, *sequence.ended);
      else
        backlog_.push_back(id);
    }
    for (const auto& [id, reason] : ended)
      end(id, reason, reason == FinishReason::kRefused ? std::string(kLeaseEnded) : "");
    submit_waiting();
  }

  Status take_over(SequenceId id) override {
    const auto found = unfinished_.of.find(id);
    if (found == unfinished_.of.end()) return EngineWrapper::take_over(id);
    // Its prompt is being computed again; it is taken over when the prompt is complete.
    found->second.is_taken = true;
    if (found->second.refusal) end(id, FinishReason::kRefused, *found->second.refusal);
    return ok();
  }

  void abort(SequenceId id) override {
    const auto found = unfinished_.of.find(id);
    if (const auto waiting = std::find(backlog_.begin(), backlog_.end(), id);
        waiting != backlog_.end()) {
      backlog_.erase(waiting);
      return end(id, FinishReason::kCancelled, {});
    }
    if (found != unfinished_.of.end() && found->second.refusal)
      return end(id, FinishReason::kCancelled, {});
    EngineWrapper::abort(id);
  }

  void expire(SequenceId id) override {
    // A prompt that is computed again has no lease: leases applied only before. It is taken over
    // when Decode asks.
    if (unfinished_.of.count(id) == 0) EngineWrapper::expire(id);
  }

  std::vector<PrefillEvent> take_prefilled() override {
    auto events = EngineWrapper::take_prefilled();
    std::erase_if(events, [this](const PrefillEvent& event) { return settle(event.id); });
    for (auto& [id, sequence] : unfinished_.of)
      if (sequence.refusal && !std::exchange(sequence.was_told, true)) events.push_back({id, 0});
    return events;
  }

  std::vector<FinishEvent> take_finished() override {
    auto events = EngineWrapper::take_finished();
    for (auto& event : events)
      if (const auto found = unfinished_.of.find(event.id); found != unfinished_.of.end()) {
        event.was_prefilled = event.was_prefilled || found->second.was_told;
        unfinished_.of.erase(found);
      }
    events.insert(events.begin(), std::make_move_iterator(ended_.begin()),
                  std::make_move_iterator(ended_.end()));
    ended_.clear();
    return events;
  }

  /// Sequences that wait here end as those of the engine do.
  void drop(WeightsKey key) override {
    std::vector<SequenceId> here;
    for (const auto& [id, sequence] : unfinished_.of)
      if (sequence.request.key() == key) here.push_back(id);
    for (const SequenceId id : here) abort(id);
    EngineWrapper::drop(key);
  }

  void set_paused(bool is_paused) override {
    is_paused_ = is_paused;
    EngineWrapper::set_paused(is_paused);
  }

  EngineState state() const override {
    EngineState state = EngineWrapper::state();
    const auto num_here = static_cast<int32_t>(backlog_.size());
    state.num_waiting += num_here;
    state.num_room = std::max(state.num_room - num_here, 0);
    return state;
  }

  Status step() override {
    RETURN_IF_ERROR(fault_);
    submit_waiting();
    return EngineWrapper::step();
  }

  bool has_work() const override {
    // A paused engine does not free places in its queue.
    const bool can_submit = !backlog_.empty() && !is_paused_;
    return !fault_.ok() || has_news() || can_submit || EngineWrapper::has_work();
  }

 private:
  /// Whether events for Prefill or Decode are pending here.
  bool has_news() const {
    return !ended_.empty() ||
           std::any_of(unfinished_.of.begin(), unfinished_.of.end(), [](const auto& each) {
             return each.second.refusal && !each.second.was_told;
           });
  }

  void submit_waiting() {
    while (!backlog_.empty()) {
      const SequenceId id = backlog_.front();
      UnfinishedSequence& sequence = unfinished_.of.at(id);
      const Status submitted = EngineWrapper::submit(SequenceRequest(sequence.request));
      if (!submitted.ok() && submitted.error().code() == Code::kExhausted) return;
      backlog_.pop_front();
      if (submitted.ok()) continue;
      // If Prefill was not notified of this prompt, it is notified that the prompt is complete;
      // then Decode gets the refusal as the sequence's end.
      sequence.refusal = submitted.error().text();
      if (sequence.is_taken) end(id, FinishReason::kRefused, *sequence.refusal);
    }
  }

  void end(SequenceId id, FinishReason reason, std::string detail) {
    FinishEvent event;
    event.id = id;
    event.reason = reason;
    if (const auto found = unfinished_.of.find(id); found != unfinished_.of.end())
      event.was_prefilled = found->second.was_told;
    event.detail = std::move(detail);
    ended_.push_back(std::move(event));
    unfinished_.of.erase(id);
  }

  /// True when Prefill had been notified of this prompt. A take-over that was accepted before is
  /// repeated on the engine; the next step() finds a failure.
  bool settle(SequenceId id) {
    const auto found = unfinished_.of.find(id);
    if (found == unfinished_.of.end()) return false;
    const UnfinishedSequence sequence = std::move(found->second);
    unfinished_.of.erase(found);
    if (!sequence.was_told) return false;
    // If Decode has not taken it over yet, it will find the complete prompt in the engine.
    if (!sequence.is_taken) return true;
    // The engine has the sequence and it was not aborted, so an error here is a fault of the
    // engine.
    const Status taken = EngineWrapper::take_over(id);
    if (!taken.ok() && fault_.ok())
      fault_ = Error(taken.error()).while_doing("taking over a sequence that was in flight");
    return true;
  }

  UnfinishedSequences unfinished_;  // prompts that are not complete again
  std::deque<SequenceId> backlog_;  // they wait for a free place in the engine's queue
  std::vector<FinishEvent> ended_;  // not reported yet
  bool is_paused_;
  Status fault_;
};

}  // namespace

std::shared_ptr<Engine> make_continued_engine(std::shared_ptr<Engine> engine,
                                              UnfinishedSequences unfinished, bool is_paused) {
  return std::make_shared<ContinuedEngine>(std::move(engine), std::move(unfinished), is_paused);
}

}  // namespace primerl
