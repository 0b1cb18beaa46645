/// ReplayCursor: the position of one real group of a replay in its record. It gives the group its
/// next step and compares the result.
///
/// Threads: the group's.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/replay/engine_resume.h"
#include "runtime/replay/replay.h"

namespace primerl {

class RecordedInputs;

class ReplayCursor final : public StepSource, public DeliveryObserver {
 public:
  /// All arguments must stay valid while the cursor exists. `watcher`, `inputs` (for a resumed run)
  /// and `from` (the group's part of a cut) may be null. `last_step`: no later step is made.
  ReplayCursor(const Plan& plan, const Wiring& wiring, const Trace& trace, GroupId group,
               uint64_t last_step, DeliveryObserver* watcher = nullptr,
               const RecordedInputs* inputs = nullptr, const GroupState* from = nullptr);

  // StepSource
  const RecordedStep* next() const override { return has_next_ ? &replayed_ : nullptr; }
  void diverged(std::string what) override;
  EmissionFate emission_fate(LinkId link, uint64_t sequence, uint64_t num_shipped) const override;
  std::optional<uint64_t> num_received(LinkId link, uint64_t sequence) const override;
  bool has_input(LinkId link, uint32_t incarnation, uint64_t sequence) const override;
  // DeliveryObserver
  void on_step(const StepRecord& record) override;

  const TraceStep& recorded() const { return recorded_; }                       // of next()
  std::span<const std::vector<std::byte>> answers() const { return answers_; }  // of next()
  const std::vector<std::byte>* take_answer();
  /// Engines that the recorded run made anew in next(), without those that were returned.
  std::span<const EngineResume> engine_resumes() const { return engine_resumes_; }
  std::optional<EngineResume> next_engine_resume(int32_t resource);
  /// Stops the group here, permanently.
  void stop(Divergence divergence);

  GroupId group() const { return group_; }
  uint64_t num_steps() const { return num_steps_; }  // steps made so far
  uint64_t last_step() const {
    return first_step_ - 1 + num_steps_;
  }  // the newest step that was
     // made
  uint64_t num_compared() const { return num_compared_; }
  const std::optional<Divergence>& divergence() const { return divergence_; }
  /// The highest sequence number sent on a link so far. It shows that a message was never sent.
  uint64_t num_emitted(LinkId link) const;

 private:
  void load(uint64_t step);
  void load_input();
  void load_notes();
  void load_note(NoteKind kind, std::span<const std::byte> bytes);
  void load_command(std::span<const std::byte> bytes);
  void load_tenant_change(std::span<const std::byte> bytes);
  void load_engine_resume(std::span<const std::byte> bytes);
  bool compare(const StepRecord& record);
  bool compare_emission(const BatchedMessage& emission);
  Divergence here(DivergenceKind kind, std::string what) const;
  std::string input_text() const;

  const Plan& plan_;
  const Wiring& wiring_;
  const Trace& trace_;
  const GroupId group_;
  const uint64_t first_step_;  // 1, or the first one after a cut
  const uint64_t last_step_;
  DeliveryObserver* const watcher_;
  const RecordedInputs* const inputs_;
  bool has_next_ = false;
  TraceStep recorded_;
  RecordedStep replayed_;
  std::vector<std::vector<std::byte>> answers_;
  size_t num_answers_taken_ = 0;
  std::vector<EngineResume> engine_resumes_;
  uint64_t num_steps_ = 0;
  uint64_t num_compared_ = 0;
  std::vector<uint64_t> emitted_;  // highest sequence, by link
  std::optional<Divergence> divergence_;
};

}  // namespace primerl
