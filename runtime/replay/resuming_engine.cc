#include "runtime/replay/resuming_engine.h"

#include <map>
#include <optional>
#include <utility>

#include "runtime/replay/continued_engine.h"
#include "runtime/replay/traced_engine.h"

namespace primerl {
namespace {

class ResumingEngine final : public TracedEngine {
 public:
  explicit ResumingEngine(ResumingEngineSetup setup)
      : TracedEngine(setup.next), setup_(std::move(setup)) {}

  Status submit(SequenceRequest request) override {
    RETURN_IF_ERROR(look());
    if (live_ != nullptr) return live_->submit(std::move(request));
    SequenceRequest unfinished = request;
    RETURN_IF_ERROR(TracedEngine::submit(std::move(request)));
    unfinished_.submitted(std::move(unfinished));
    return ok();
  }

  Status take_over(SequenceId id) override {
    RETURN_IF_ERROR(look());
    if (live_ != nullptr) return live_->take_over(id);
    RETURN_IF_ERROR(TracedEngine::take_over(id));
    unfinished_.taken_over(id);
    return ok();
  }

  void abort(SequenceId id) override {
    if (!look().ok()) return;
    if (live_ != nullptr) return live_->abort(id);
    unfinished_.aborted(id);
  }

  void expire(SequenceId id) override {
    if (!look().ok()) return;
    if (live_ != nullptr) return live_->expire(id);
    unfinished_.expired(id);
  }

  std::vector<PrefillEvent> take_prefilled() override {
    if (!look().ok()) return {};
    if (live_ != nullptr) return live_->take_prefilled();
    auto events = TracedEngine::take_prefilled();
    unfinished_.prefilled(events);
    return events;
  }

  std::vector<FinishEvent> take_finished() override {
    if (!look().ok()) return {};
    if (live_ != nullptr) return live_->take_finished();
    auto events = TracedEngine::take_finished();
    unfinished_.finished(events);
    return events;
  }

  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    RETURN_IF_ERROR(look());
    if (live_ != nullptr) return live_->apply(snapshot);
    auto applied = TracedEngine::apply(snapshot);
    if (applied.ok()) applied_[snapshot.key] = snapshot;
    return applied;
  }

  Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot) override {
    RETURN_IF_ERROR(look());
    if (live_ != nullptr) return live_->apply_prepared(snapshot);
    auto applied = TracedEngine::apply_prepared(snapshot);
    if (applied.ok() && applied->has_value()) applied_[snapshot->key] = *snapshot;
    return applied;
  }

  void drop(WeightsKey key) override {
    if (!look().ok()) return;
    if (live_ != nullptr) return live_->drop(key);
    unfinished_.dropped(key);
    applied_.erase(key);
  }

  /// Also while a record is followed: the engine computes nothing yet.
  void set_share(TenantSlot tenant, double share) override {
    setup_.engine->set_share(tenant, share);
  }

  void set_paused(bool is_paused) override {
    is_paused_ = is_paused;
    if (look().ok() && live_ != nullptr) live_->set_paused(is_paused);
  }

  void show_holders(const std::vector<EngineHolder>& holders) override {
    if (look().ok() && live_ != nullptr) live_->show_holders(holders);
  }

  /// For a cut, before the first recorded call after it.
  Status restore_state(const Blob& state) override {
    ASSIGN_OR_RETURN(unfinished_, read_state<UnfinishedSequences>(state));
    for (const auto& [key, version] : unfinished_.applied.list())
      applied_[key] = {.key = key, .version = version, .tensors = {}};
    return ok();
  }

  WeightManifest manifest() const override { return setup_.engine->manifest(); }
  std::string describe() const override { return setup_.engine->describe(); }

  EngineState state() const override {
    if (!look().ok()) return {};
    return live_ != nullptr ? live_->state() : TracedEngine::state();
  }

  int32_t max_sequence_tokens() const override {
    if (!look().ok()) return 0;
    return live_ != nullptr ? live_->max_sequence_tokens() : TracedEngine::max_sequence_tokens();
  }

  Status step() override {
    RETURN_IF_ERROR(look());
    return live_ != nullptr ? live_->step() : ok();
  }

  /// At the end of the record there is work: the unfinished sequences, or a fault.
  bool has_work() const override { return live_ != nullptr ? live_->has_work() : setup_.is_live(); }

  Duration take_cost() override { return live_ != nullptr ? live_->take_cost() : Duration(); }

 private:
  /// Switches to the real engine when the run has resumed. If that fails, every later call returns
  /// the fault, because some callers cannot receive one now.
  Status look() const {
    if (live_ != nullptr || !fault_.ok() || !setup_.is_live()) return fault_;
    setup_.engine->set_paused(is_paused_);
    EngineResume resume;
    resume.num_sequences = unfinished_.of.size();
    fault_ = apply_weights(resume.versions);
    if (!fault_.ok()) return fault_;
    live_ = make_continued_engine(setup_.engine, std::move(unfinished_), is_paused_);
    if (setup_.on_resume != nullptr) setup_.on_resume(std::move(resume));
    return ok();
  }

  Status apply_weights(VersionsByKey& versions) const {
    for (const auto& [key, recorded] : std::exchange(applied_, {})) {
      std::shared_ptr<const WeightSnapshot> made;
      if (recorded.tensors.empty()) {
        auto found = setup_.weights_from(recorded.name());
        // A snapshot that is older than the checkpoint is in no file. Its requests are refused.
        if (!found.ok() && key.is_snapshot() && found.error().code() == Code::kNotFound) continue;
        if (!found.ok()) return found.error();
        made = *std::move(found);
      }
      const WeightSnapshot& weights = made != nullptr ? *made : recorded;
      RETURN_IF_ERROR(setup_.engine->apply(weights));
      CHECK(versions.set(weights.key, weights.version), "an engine of too many keys");
    }
    return ok();
  }

  const ResumingEngineSetup setup_;
  bool is_paused_ = false;
  // The first call after the resume switches, and that may be state(): mutable.
  mutable std::shared_ptr<Engine> live_;  // null: the record answers
  mutable Status fault_;                  // of the switch
  // Before the resume: what the real engine must get.
  mutable UnfinishedSequences unfinished_;
  mutable std::map<WeightsKey, WeightSnapshot> applied_;
};

}  // namespace

std::shared_ptr<Engine> make_resuming_engine(ResumingEngineSetup setup) {
  return std::make_shared<ResumingEngine>(std::move(setup));
}

}  // namespace primerl
