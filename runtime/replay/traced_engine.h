/// TracedEngine: an Engine that records its answers, or repeats those of a record.
///
/// With the answers in the trace, Prefill and Decode are replayed without generating a token
/// (`replay --depth learner` and `control`). Only this class defines what a record keeps of an
/// engine: a new method of Engine needs one new method here. Threads: the same as those of the
/// engine that it replaces.
#pragma once

#include <memory>

#include "kernels/engine/engine.h"
#include "runtime/replay/unfinished_sequences.h"
#include "runtime/replay/traced_calls.h"

namespace primerl {

class TracedEngine : public Engine {
 public:
  /// Records the answers of `engine`.
  TracedEngine(std::unique_ptr<Engine> engine, KeepAnswer keep);
  /// Repeats the record while is_replaying(), and otherwise calls `engine`. Null: it always
  /// repeats.
  TracedEngine(std::unique_ptr<Engine> engine, NextAnswer next);
  ~TracedEngine() override;

  Status submit(SequenceRequest request) override;
  Status take_over(SequenceId id) override;
  void abort(SequenceId id) override;
  void expire(SequenceId id) override;
  std::vector<PrefillEvent> take_prefilled() override;
  std::vector<FinishEvent> take_finished() override;
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override;
  /// Recorded as an apply(), even while the engine still prepares. A replay prepares nothing.
  Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot) override;
  /// Not recorded: actors call it again in a replay, with any kind of engine.
  void set_paused(bool is_paused) override;
  void show_holders(const std::vector<EngineHolder>& holders) override;
  WeightManifest manifest() const override;
  EngineState state() const override;
  int32_t max_sequence_tokens() const override;
  Status step() override;
  bool has_work() const override;
  Duration take_cost() override;
  std::string describe() const override;
  /// For an engine that records: the unfinished sequences. The wrapped engine continues with them,
  /// too.
  Blob save_state() const override;
  Status restore_state(const Blob& state) override;

 protected:
  virtual bool is_replaying() const;
  Engine& engine() const { return *engine_; }

 private:
  using Applied = std::optional<uint64_t>;  // none: it is still being prepared
  Result<Applied> keep_applied(const WeightSnapshot& snapshot, Result<Applied> applied);

  class Calls;
  const std::unique_ptr<Engine> engine_;
  const std::unique_ptr<const Calls> calls_;
  UnfinishedSequences unfinished_;  // for an engine that records
};

/// Whether a resource's note is an engine's answer that a call failed.
bool is_failed_engine_answer(std::span<const std::byte> note);

}  // namespace primerl
