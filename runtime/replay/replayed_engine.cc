#include "runtime/replay/replayed_engine.h"

#include <map>
#include <utility>

#include "runtime/replay/continued_engine.h"
#include "runtime/replay/unfinished_sequences.h"

namespace primerl {
namespace {

class ReplayedEngine final : public Engine {
 public:
  ReplayedEngine(std::shared_ptr<Engine> engine, ReplayedEngineSetup setup)
      : setup_(std::move(setup)), engine_(std::move(engine)) {}

  Status submit(SequenceRequest request) override {
    RETURN_IF_ERROR(look());
    SequenceRequest unfinished = request;
    RETURN_IF_ERROR(engine_->submit(std::move(request)));
    unfinished_.submitted(std::move(unfinished));
    return ok();
  }
  Status take_over(SequenceId id) override {
    RETURN_IF_ERROR(look());
    RETURN_IF_ERROR(engine_->take_over(id));
    unfinished_.taken_over(id);
    return ok();
  }
  void abort(SequenceId id) override {
    if (!look().ok()) return;
    engine_->abort(id);
    unfinished_.aborted(id);
  }
  void expire(SequenceId id) override {
    if (!look().ok()) return;
    engine_->expire(id);
    unfinished_.expired(id);
  }
  std::vector<PrefillEvent> take_prefilled() override {
    if (!look().ok()) return {};
    auto events = engine_->take_prefilled();
    unfinished_.prefilled(events);
    return events;
  }
  std::vector<FinishEvent> take_finished() override {
    if (!look().ok()) return {};
    auto events = engine_->take_finished();
    unfinished_.finished(events);
    return events;
  }
  bool prepare(const std::shared_ptr<const WeightSnapshot>& snapshot) override {
    return !look().ok() || engine_->prepare(snapshot);
  }
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    RETURN_IF_ERROR(look());
    return engine_->apply(snapshot);
  }
  Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot) override {
    RETURN_IF_ERROR(look());
    return engine_->apply_prepared(snapshot);
  }
  void drop(WeightsKey key) override {
    if (!look().ok()) return;
    engine_->drop(key);
    unfinished_.dropped(key);
  }
  void set_share(TenantSlot tenant, double share) override {
    shares_[tenant] = share;
    if (look().ok()) engine_->set_share(tenant, share);
  }
  void set_paused(bool is_paused) override {
    is_paused_ = is_paused;
    if (look().ok()) engine_->set_paused(is_paused);
  }
  void show_holders(const std::vector<EngineHolder>& holders) override {
    if (look().ok()) engine_->show_holders(holders);
  }
  WeightManifest manifest() const override {
    return engine_ == nullptr ? WeightManifest() : engine_->manifest();
  }
  EngineState state() const override { return look().ok() ? engine_->state() : EngineState(); }
  int32_t max_sequence_tokens() const override {
    return look().ok() ? engine_->max_sequence_tokens() : 0;
  }
  Status step() override {
    RETURN_IF_ERROR(look());
    return engine_->step();
  }
  bool has_work() const override { return engine_ != nullptr && engine_->has_work(); }
  Duration take_cost() override { return engine_ == nullptr ? Duration() : engine_->take_cost(); }
  std::string describe() const override { return engine_ == nullptr ? "" : engine_->describe(); }

 private:
  /// If that fails, every later call returns the fault, because some callers cannot receive one.
  Status look() const {
    if (!fault_.ok()) return fault_;
    const auto resume = setup_.next_resume();
    if (!resume) return ok();
    fault_ = begin_anew(*resume);
    if (!fault_.ok())
      setup_.on_divergence("the run was resumed here, and the engine cannot be made anew: " +
                           fault_.error().text());
    return fault_;
  }

  Status begin_anew(const EngineResume& resume) const {
    if (resume.num_sequences != unfinished_.of.size())
      setup_.on_divergence(
          fmt::format("the run was resumed here with {} unfinished sequences of an engine, and the "
                      "replay has {}",
                      resume.num_sequences, unfinished_.of.size()));
    engine_.reset();  // its memory is needed for the new one
    ASSIGN_OR_RETURN(auto made, setup_.make());
    made->set_paused(is_paused_);
    for (const auto& [tenant, share] : shares_) made->set_share(tenant, share);
    for (const KeyedVersion& version : resume.versions.list()) {
      ASSIGN_OR_RETURN(const auto weights, setup_.weights(version));
      RETURN_IF_ERROR(made->apply(*weights));
    }
    engine_ = make_continued_engine(std::move(made), unfinished_, is_paused_);
    return ok();
  }

  const ReplayedEngineSetup setup_;
  bool is_paused_ = false;
  std::map<TenantSlot, double> shares_;  // that were set
  UnfinishedSequences unfinished_;
  // The first call after the resume makes it anew, and that may be state(): mutable.
  mutable std::shared_ptr<Engine> engine_;  // null after a fault
  mutable Status fault_;
};

}  // namespace

Result<std::shared_ptr<Engine>> make_replayed_engine(ReplayedEngineSetup setup) {
  ASSIGN_OR_RETURN(auto engine, setup.make());
  return std::shared_ptr<Engine>(
      std::make_shared<ReplayedEngine>(std::move(engine), std::move(setup)));
}

}  // namespace primerl
