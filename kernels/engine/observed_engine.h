/// ObservedEngine: an Engine that can pause, and that reports its calls to observers. The engine of
/// every backend is wrapped in one before actors get it, so that a pause means the same for all of
/// them. Observers count metrics, record answers or notice a lost device (runtime/worker,
/// runtime/replay).
///
/// While it is paused no step runs: sequences keep their KV and their running slots, and no token
/// is sampled. Everything else works: prompts are queued up to the queue's bound, sequences are
/// taken over, aborted and expire, weights are applied. It has no clock; the caller that pauses it
/// has one.
///
/// An observer hears of a call after the engine answered it. Observers are called in the order in
/// which they were added. Threads: those of the engine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/engine/engine_wrapper.h"

namespace primerl {

class EngineObserver {
 public:
  virtual ~EngineObserver() = default;

  virtual void submitted(const SequenceRequest& /*request*/, const Status& /*status*/) {}
  virtual void taken_over(SequenceId /*id*/, const Status& /*status*/) {}
  virtual void aborted(SequenceId /*id*/) {}
  virtual void expired(SequenceId /*id*/) {}
  virtual void prefilled(const std::vector<PrefillEvent>& /*events*/) {}
  virtual void finished(const std::vector<FinishEvent>& /*events*/) {}
  virtual void applying() {}  // before apply() and apply_prepared()
  /// Empty: the snapshot is still being prepared.
  virtual void applied(const WeightSnapshot& /*snapshot*/,
                       const Result<std::optional<uint64_t>>& /*num_tensors*/) {}
  virtual void dropped(WeightsKey /*key*/) {}
  virtual void paused(bool /*is_paused*/) {}
  virtual void holders_shown(const std::vector<EngineHolder>& /*holders*/) {}
  /// Also after a step in which the engine was paused.
  virtual void stepped(Engine& /*engine*/, const Status& /*status*/) {}
  /// May change what the caller gets.
  virtual void state_read(EngineState& /*state*/) {}
  virtual void length_read(int32_t /*max_sequence_tokens*/) {}
  /// Resource::save_state(); at most one observer of an engine has state.
  virtual Blob save_state() const { return {}; }
  virtual Status restore_state(const Blob& /*state*/) { return ok(); }
};

class ObservedEngine final : public EngineWrapper {
 public:
  /// kHere: for an engine of a backend, which cannot pause. kInside: `engine` pauses itself.
  enum class Pauses { kHere, kInside };
  explicit ObservedEngine(std::shared_ptr<Engine> engine, Pauses pauses = Pauses::kHere)
      : EngineWrapper(std::move(engine)), pauses_(pauses) {}

  void add(std::unique_ptr<EngineObserver> observer) { observers_.push_back(std::move(observer)); }

  Status submit(SequenceRequest request) override;
  Status take_over(SequenceId id) override;
  void abort(SequenceId id) override;
  void expire(SequenceId id) override;
  std::vector<PrefillEvent> take_prefilled() override;
  std::vector<FinishEvent> take_finished() override;
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override;
  Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot) override;
  void drop(WeightsKey key) override;
  void set_paused(bool is_paused) override;
  void show_holders(const std::vector<EngineHolder>& holders) override;
  EngineState state() const override;
  int32_t max_sequence_tokens() const override;
  Status step() override;
  bool has_work() const override { return !is_paused_ && EngineWrapper::has_work(); }
  std::string describe() const override {
    return is_paused_ ? "paused, " + EngineWrapper::describe() : EngineWrapper::describe();
  }
  Blob save_state() const override;
  Status restore_state(const Blob& state) override;

 private:
  const Pauses pauses_;
  bool is_paused_ = false;  // stays false if the engine pauses itself
  std::vector<std::unique_ptr<EngineObserver>> observers_;
};

/// The engine in `made`, for observers; null if `made` is no engine. An engine that is not an
/// ObservedEngine yet, because a replay wraps it, becomes one that forwards pauses.
ObservedEngine* observed_engine(std::shared_ptr<Resource>& made);

}  // namespace primerl
