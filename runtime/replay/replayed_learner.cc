#include "runtime/replay/replayed_learner.h"

#include "runtime/replay/replayed_answer.h"

namespace primerl {
namespace {

enum class Call : uint8_t { kStep, kSnapshot, kSave, kLoad, kLimits };

std::string_view to_string(Call call) {
  switch (call) {
    case Call::kStep:
      return "step";
    case Call::kSnapshot:
      return "snapshot";
    case Call::kSave:
      return "save";
    case Call::kLoad:
      return "load";
    case Call::kLimits:
      return "limits";
  }
  return "unknown";
}

/// One call and its result.
struct LearnerAnswer {
  static constexpr std::string_view kName = "LearnerAnswer";
  static constexpr uint32_t kVersion = 2;
  uint8_t call = 0;
  bool has_failed = false;
  uint8_t code = 0;
  std::string text;
  // For a step: TrainReport.
  double loss = 0, entropy_mean = 0, mismatch_kl_mean = 0, mismatch_kl_max = 0;
  double masked_fraction = 0, grad_norm = 0, learning_rate = 0;
  int64_t num_tokens = 0, num_loss_tokens = 0;
  int32_t num_micro_batches = 0;
  bool skipped = false;
  std::string skip_reason;
  // For limits: SampleLimits.
  int32_t max_sequence_tokens = 0, vocab_size = 0;

  template <class F>
  static void fields(F& f) {
    f("call", &LearnerAnswer::call)("has_failed", &LearnerAnswer::has_failed)(
        "code", &LearnerAnswer::code)("text", &LearnerAnswer::text)("loss", &LearnerAnswer::loss)(
        "entropy_mean", &LearnerAnswer::entropy_mean)(
        "mismatch_kl_mean", &LearnerAnswer::mismatch_kl_mean)("mismatch_kl_max",
                                                              &LearnerAnswer::mismatch_kl_max)(
        "masked_fraction", &LearnerAnswer::masked_fraction)("grad_norm", &LearnerAnswer::grad_norm)(
        "learning_rate", &LearnerAnswer::learning_rate)("num_tokens", &LearnerAnswer::num_tokens)(
        "num_loss_tokens", &LearnerAnswer::num_loss_tokens)(
        "num_micro_batches", &LearnerAnswer::num_micro_batches)("skipped", &LearnerAnswer::skipped)(
        "skip_reason", &LearnerAnswer::skip_reason)(
        "max_sequence_tokens", &LearnerAnswer::max_sequence_tokens)("vocab_size",
                                                                    &LearnerAnswer::vocab_size);
  }
};

LearnerAnswer answer_of(Call call, const Status& status) {
  return answer_to<LearnerAnswer>(call, status);
}

LearnerAnswer answer_of_step(const Result<TrainReport>& report) {
  LearnerAnswer answer = answer_of(Call::kStep, report.ok() ? ok() : Status(report.error()));
  if (!report.ok()) return answer;
  answer.loss = report->loss;
  answer.entropy_mean = report->entropy_mean;
  answer.mismatch_kl_mean = report->mismatch_kl_mean;
  answer.mismatch_kl_max = report->mismatch_kl_max;
  answer.masked_fraction = report->masked_fraction;
  answer.grad_norm = report->grad_norm;
  answer.learning_rate = report->learning_rate;
  answer.num_tokens = report->num_tokens;
  answer.num_loss_tokens = report->num_loss_tokens;
  answer.num_micro_batches = report->num_micro_batches;
  answer.skipped = report->skipped;
  answer.skip_reason = report->skip_reason;
  return answer;
}

TrainReport report_of(const LearnerAnswer& answer) {
  TrainReport report;
  report.loss = answer.loss;
  report.entropy_mean = answer.entropy_mean;
  report.mismatch_kl_mean = answer.mismatch_kl_mean;
  report.mismatch_kl_max = answer.mismatch_kl_max;
  report.masked_fraction = answer.masked_fraction;
  report.grad_norm = answer.grad_norm;
  report.learning_rate = answer.learning_rate;
  report.num_tokens = answer.num_tokens;
  report.num_loss_tokens = answer.num_loss_tokens;
  report.num_micro_batches = answer.num_micro_batches;
  report.skipped = answer.skipped;
  report.skip_reason = answer.skip_reason;
  return report;
}

class RecordingLearner final : public Learner {
 public:
  RecordingLearner(std::unique_ptr<Learner> learner, KeepAnswer keep)
      : learner_(std::move(learner)), keep_(std::move(keep)) {}

  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop) override {
    auto report = learner_->step(batch, stop);
    keep(answer_of_step(report));
    return report;
  }
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(PolicyVersion version) override {
    auto snapshot = learner_->snapshot(version);
    keep(answer_of(Call::kSnapshot, snapshot.ok() ? ok() : Status(snapshot.error())));
    return snapshot;
  }
  Result<std::vector<float>> score(const std::vector<int32_t>& tokens) override {
    return learner_->score(tokens);
  }
  Status save(const std::filesystem::path& folder) override {
    const Status saved = learner_->save(folder);
    keep(answer_of(Call::kSave, saved));
    return saved;
  }
  Status load(const std::filesystem::path& folder) override { return learner_->load(folder); }
  SampleLimits limits() const override {
    const SampleLimits limits = learner_->limits();
    LearnerAnswer answer = answer_of(Call::kLimits, ok());
    answer.max_sequence_tokens = limits.max_sequence_tokens;
    answer.vocab_size = limits.vocab_size;
    keep(std::move(answer));
    return limits;
  }
  Status step() override { return learner_->step(); }
  bool has_work() const override { return learner_->has_work(); }
  Duration take_cost() override { return learner_->take_cost(); }
  std::string describe() const override { return learner_->describe(); }

 private:
  void keep(LearnerAnswer answer) const { keep_(bytes_of_answer(std::move(answer))); }

  const std::unique_ptr<Learner> learner_;
  const KeepAnswer keep_;
};

class ReplayedLearner final : public Learner {
 public:
  explicit ReplayedLearner(NextAnswer next) : next_(std::move(next)) {}

  Result<TrainReport> step(const TrainBatch&, const StopRequested&) override {
    ASSIGN_OR_RETURN(const LearnerAnswer answer, take(Call::kStep));
    return report_of(answer);
  }
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(PolicyVersion version) override {
    RETURN_IF_ERROR(take(Call::kSnapshot));
    auto snapshot = std::make_shared<WeightSnapshot>();
    snapshot->version = version;
    return std::shared_ptr<const WeightSnapshot>(std::move(snapshot));
  }
  Result<std::vector<float>> score(const std::vector<int32_t>&) override {
    return error(Code::kUnavailable, "a learner played from the record has no weights");
  }
  Status save(const std::filesystem::path&) override {
    auto answer = take(Call::kSave);
    return answer.ok() ? ok() : Status(answer.error());
  }
  Status load(const std::filesystem::path&) override { return ok(); }
  /// Without an answer every sample is refused; the end of its group of rollouts then shows the
  /// difference.
  SampleLimits limits() const override {
    const auto answer = take(Call::kLimits);
    if (!answer.ok()) return {};
    return {answer->max_sequence_tokens, answer->vocab_size};
  }

 private:
  Result<LearnerAnswer> take(Call call) const {
    return take_answer<LearnerAnswer>(next_, call, "learner");
  }

  const NextAnswer next_;
};

}  // namespace

std::unique_ptr<Learner> make_recording_learner(std::unique_ptr<Learner> learner, KeepAnswer keep) {
  return std::make_unique<RecordingLearner>(std::move(learner), std::move(keep));
}

std::unique_ptr<Learner> make_replayed_learner(NextAnswer next) {
  return std::make_unique<ReplayedLearner>(std::move(next));
}

int64_t num_recorded_steps(const Trace& trace, GroupId group) {
  int64_t count = 0;
  for (uint64_t step = trace.first_step(group); step != 0 && step <= trace.last_step(group);
       ++step) {
    for (const NondeterministicInput& note : trace.notes(group, step)) {
      if (note.kind != NoteKind::kResource) continue;
      // Answers of the weight channel are among those of the learner.
      const auto payload = decode_message(message_type<LearnerAnswer>(), note.bytes);
      if (!payload.ok()) continue;
      const auto& answer = payload->as<LearnerAnswer>();
      const bool is_step = answer.call == static_cast<uint8_t>(Call::kStep);
      count += is_step && !answer.has_failed && !answer.skipped ? 1 : 0;
    }
  }
  return count;
}

}  // namespace primerl
