/// The answers of an engine in a record: an observer records them, and a TracedEngine repeats them.
///
/// With the answers in the trace, Prefill and Decode are replayed without generating a token
/// (`replay --depth learner` and `control`). A new method of Engine that answers needs its part
/// here, twice. Threads: the same as those of the engine.
#pragma once

#include <memory>
#include <span>

#include "kernels/engine/observed_engine.h"
#include "runtime/replay/traced_calls.h"
#include "runtime/replay/unfinished_sequences.h"

namespace primerl {

/// Records the answers of an engine. Its state: the unfinished sequences, with which another engine
/// continues.
std::unique_ptr<EngineObserver> engine_recorder(KeepAnswer keep);

/// Repeats the record.
class TracedEngine : public Engine {
 public:
  explicit TracedEngine(NextAnswer next);
  ~TracedEngine() override;

  Status submit(SequenceRequest request) override;
  Status take_over(SequenceId id) override;
  void abort(SequenceId id) override;
  void expire(SequenceId id) override;
  std::vector<PrefillEvent> take_prefilled() override;
  std::vector<FinishEvent> take_finished() override;
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override;
  /// A replay prepares nothing.
  Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot) override;
  /// This and set_paused() are not recorded: actors call them again in a replay, with any kind of
  /// engine. So are shares, which the group's step of a tenant sets again.
  void drop(WeightsKey key) override { (void)key; }
  void set_paused(bool is_paused) override { (void)is_paused; }
  /// The manifest does not change during a run, so it is not recorded.
  WeightManifest manifest() const override { return {}; }
  EngineState state() const override;
  int32_t max_sequence_tokens() const override;
  Status step() override { return ok(); }
  bool has_work() const override { return false; }
  Duration take_cost() override { return {}; }
  std::string describe() const override { return {}; }
  Status restore_state(const Blob& state) override;

 private:
  class Calls;
  const std::unique_ptr<const Calls> calls_;
};

/// Whether a resource's note is an engine's answer that a call failed.
bool is_failed_engine_answer(std::span<const std::byte> note);

}  // namespace primerl
