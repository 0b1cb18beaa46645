#include "runtime/replay/resuming_learner.h"

#include <bit>

#include "runtime/replay/replayed_learner.h"

namespace primerl {
namespace {

/// The differences between two reports of one step; empty when they are equal to the last bit.
std::string difference(const TrainReport& then, const TrainReport& now) {
  const auto differ = [](std::string_view name, double a, double b) {
    return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b)
               ? std::string()
               : fmt::format("{}: recorded {}, now {}", name, a, b);
  };
  for (const auto& [name, member] :
       std::initializer_list<std::pair<std::string_view, double TrainReport::*>>{
           {"loss", &TrainReport::loss},
           {"entropy_mean", &TrainReport::entropy_mean},
           {"mismatch_kl_mean", &TrainReport::mismatch_kl_mean},
           {"mismatch_kl_max", &TrainReport::mismatch_kl_max},
           {"masked_fraction", &TrainReport::masked_fraction},
           {"grad_norm", &TrainReport::grad_norm},
           {"learning_rate", &TrainReport::learning_rate}})
    if (std::string found = differ(name, then.*member, now.*member); !found.empty()) return found;
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

class ResumingLearner final : public Learner {
 public:
  explicit ResumingLearner(ResumingLearnerSetup setup)
      : setup_(std::move(setup)),
        recorded_(make_replayed_learner(setup_.next)),
        is_real_(setup_.checkpoint.empty()) {}

  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop) override {
    if (!is_real_) {
      auto report = recorded_->step(batch, stop);
      if (!report.ok() || report->skipped || ++num_taken_ < setup_.num_steps) return report;
      RETURN_IF_ERROR(load_checkpoint());
      return report;
    }
    if (setup_.is_live()) return setup_.learner->step(batch, stop);
    const auto then = recorded_->step(batch, stop);
    auto now = setup_.learner->step(batch, stop);
    const bool counts = now.ok() && !now->skipped;
    num_taken_ += counts ? 1 : 0;
    if (const std::string what = difference(then, now); !what.empty())
      setup_.on_divergence(fmt::format(
          "training step {} of this start came out otherwise than recorded: {}", num_taken_, what));
    return now;
  }

  Result<std::shared_ptr<const WeightSnapshot>> snapshot(PolicyVersion version) override {
    if (!is_real_) return recorded_->snapshot(version);
    if (!setup_.is_live()) RETURN_IF_ERROR(recorded_->snapshot(version));
    return setup_.learner->snapshot(version);
  }
  Result<std::vector<float>> score(const std::vector<int32_t>& tokens) override {
    return is_real_ ? setup_.learner->score(tokens) : recorded_->score(tokens);
  }
  /// Files saved before the checkpoint existed once and may be removed by now.
  Status save(const std::filesystem::path& folder) override {
    if (!is_real_) return recorded_->save(folder);
    if (!setup_.is_live()) RETURN_IF_ERROR(recorded_->save(folder));
    if (folder == setup_.checkpoint) return ok();
    return setup_.learner->save(folder);
  }
  /// The recorded start was itself resumed from `folder`.
  Status load(const std::filesystem::path& folder) override {
    if (folder == setup_.checkpoint) return load_checkpoint();
    return is_real_ ? setup_.learner->load(folder) : ok();
  }
  SampleLimits limits() const override {
    return is_real_ && setup_.is_live() ? setup_.learner->limits() : recorded_->limits();
  }
  Duration take_cost() override { return is_real_ ? setup_.learner->take_cost() : Duration(); }
  std::string describe() const override { return setup_.learner->describe(); }

 private:
  Status load_checkpoint() {
    RETURN_IF_ERROR(setup_.learner->load(setup_.checkpoint));
    is_real_ = true;
    return ok();
  }

  const ResumingLearnerSetup setup_;
  const std::unique_ptr<Learner> recorded_;
  bool is_real_;
  int64_t num_taken_ = 0;
};

}  // namespace

std::unique_ptr<Learner> make_resuming_learner(ResumingLearnerSetup setup) {
  return std::make_unique<ResumingLearner>(std::move(setup));
}

}  // namespace primerl
