#include "runtime/replay/resuming_learner.h"

#include <bit>

#include "runtime/replay/traced_learner.h"

namespace primerl {
namespace {

/// The first member of type double that differs.
struct FirstNumber {
  const TrainReport &then, &now;
  std::string difference;
  template <class M>
  FirstNumber& operator()(std::string_view name, M TrainReport::*member) {
    if constexpr (std::is_same_v<M, double>)
      if (difference.empty() &&
          std::bit_cast<uint64_t>(then.*member) != std::bit_cast<uint64_t>(now.*member))
        difference = fmt::format("{}: recorded {}, now {}", name, then.*member, now.*member);
    return *this;
  }
};

/// The differences between two reports of one step; empty when they are equal to the last bit.
std::string difference(const TrainReport& then, const TrainReport& now) {
  FirstNumber number{then, now, {}};
  TrainReport::fields(number);
  if (!number.difference.empty()) return number.difference;
  if (then.num_tokens != now.num_tokens || then.num_loss_tokens != now.num_loss_tokens ||
      then.num_micro_batches != now.num_micro_batches)
    return fmt::format(
        "tokens: recorded {} ({} with a loss) in {} micro-batches, now {} ({}) in {}",
        then.num_tokens, then.num_loss_tokens, then.num_micro_batches, now.num_tokens,
        now.num_loss_tokens, now.num_micro_batches);
  if (then.skipped != now.skipped)
    return fmt::format("the step was {}skipped, now it was {}", then.skipped ? "" : "not ",
                       now.skipped ? "" : "not");
  return {};
}

std::string difference(const Result<TrainReport>& then, const Result<TrainReport>& now) {
  if (then.ok() && now.ok()) return difference(*then, *now);
  if (then.ok()) return fmt::format("it failed: {}", now.error().text());
  if (now.ok())
    return fmt::format("it succeeded, in the recorded run it failed: {}", then.error().text());
  return then.error().code() == now.error().code()
             ? std::string()
             : fmt::format("recorded error: {}, now: {}", then.error().text(), now.error().text());
}

class ResumingLearner final : public TracedLearner {
 public:
  explicit ResumingLearner(ResumingLearnerSetup setup)
      : TracedLearner(std::move(setup.learner), std::move(setup.next)),
        setup_(std::move(setup)),
        is_real_(setup_.checkpoint.empty()) {}

  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop) override {
    if (!is_real_) {
      auto report = TracedLearner::step(batch, stop);
      if (!report.ok() || report->skipped || ++num_taken_ < setup_.num_steps) return report;
      RETURN_IF_ERROR(load_checkpoint());
      return report;
    }
    if (!is_replaying()) return TracedLearner::step(batch, stop);
    const auto then = TracedLearner::step(batch, stop);
    auto now = learner().step(batch, stop);
    const bool counts = now.ok() && !now->skipped;
    num_taken_ += counts ? 1 : 0;
    if (const std::string what = difference(then, now); !what.empty())
      setup_.on_divergence(fmt::format(
          "training step {} of this start came out otherwise than recorded: {}", num_taken_, what));
    return now;
  }

  Result<std::shared_ptr<const WeightSnapshot>> snapshot(PolicyVersion version) override {
    auto snapshot = TracedLearner::snapshot(version);
    return snapshot.ok() && is_real_ && is_replaying() ? learner().snapshot(version) : snapshot;
  }
  Result<std::vector<float>> score(const std::vector<int32_t>& tokens) override {
    return is_real_ ? learner().score(tokens) : TracedLearner::score(tokens);
  }
  /// Files saved before the checkpoint existed once and may be removed by now.
  Status save(const std::filesystem::path& folder) override {
    if (is_replaying()) RETURN_IF_ERROR(TracedLearner::save(folder));
    if (!is_real_ || folder == setup_.checkpoint) return ok();
    return learner().save(folder);
  }
  /// The recorded start was itself resumed from `folder`.
  Status load(const std::filesystem::path& folder) override {
    if (folder == setup_.checkpoint) return load_checkpoint();
    return is_real_ ? learner().load(folder) : ok();
  }
  /// Of a cut, which must not be newer than the checkpoint.
  Status restore_state(const Blob& state) override {
    ASSIGN_OR_RETURN(const LearnerProgress progress, read_state<LearnerProgress>(state));
    num_taken_ = progress.num_steps;
    if (num_taken_ > setup_.num_steps)
      return error(Code::kInvalid,
                   "a learner that had taken {} steps has no newer checkpoint than "
                   "that of step {}",
                   num_taken_, setup_.num_steps);
    if (num_taken_ == setup_.num_steps && !is_real_) RETURN_IF_ERROR(load_checkpoint());
    if (!is_real_ || progress.newest.is_none()) return ok();
    ASSIGN_OR_RETURN(const auto weights, learner().snapshot(progress.newest));
    return setup_.publish(*weights);
  }
  Duration take_cost() override { return is_real_ ? learner().take_cost() : Duration(); }

 protected:
  bool is_replaying() const override { return !is_real_ || !setup_.is_live(); }

 private:
  Status load_checkpoint() {
    RETURN_IF_ERROR(learner().load(setup_.checkpoint));
    is_real_ = true;
    return ok();
  }

  const ResumingLearnerSetup setup_;
  bool is_real_;
  int64_t num_taken_ = 0;
};

}  // namespace

std::unique_ptr<Learner> make_resuming_learner(ResumingLearnerSetup setup) {
  return std::make_unique<ResumingLearner>(std::move(setup));
}

}  // namespace primerl
