#include "runtime/replay/traced_learner.h"

#include <algorithm>
#include <utility>

#include "kernels/train/adapter_training.h"

namespace primerl {
namespace {

enum class LearnerCall : uint8_t {
  kStep,
  kSnapshot,
  kSave,
  kLoad,
  kLimits,
  kTurn,
  kSaved,
  kEvaluate,
  kBegin,
  kClientSave
};

std::string_view to_string(LearnerCall call) {
  constexpr std::string_view kNames[] = {
      "step", "snapshot", "save",     "load",         "limits",
      "turn", "saved",    "evaluate", "begin tenant", "save of a client"};
  const auto index = static_cast<size_t>(call);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

/// One call and its result: for a step the TrainReport, for limits the SampleLimits, for an
/// evaluation the AnswerLoss, for a queued step whether its turn has come, for a save whether it
/// has ended.
struct LearnerAnswer : TrainReport, SampleLimits, AnswerLoss {
  static constexpr std::string_view kName = "LearnerAnswer";
  static constexpr uint32_t kVersion = 8;
  uint8_t call = 0;
  bool has_failed = false;
  uint8_t code = 0;
  std::string text;
  TenantSlot tenant;        // whose step, turn or save it was; none for other calls
  bool is_granted = false;  // its turn has come; its save has ended

  template <class F>
  static void fields(F& f) {
    using A = LearnerAnswer;
    f("call", &A::call)("has_failed", &A::has_failed)("code", &A::code)("text", &A::text)(
        "tenant", &A::tenant)("is_granted", &A::is_granted);
    TrainReport::fields(f);
    SampleLimits::fields(f);
    AnswerLoss::fields(f);
  }
};

enum class LossCall : uint8_t { kAccumulate, kQueued, kPiece, kLeft };

std::string_view to_string(LossCall call) {
  constexpr std::string_view kNames[] = {"accumulate", "queued accumulate", "accumulate piece",
                                         "left queue"};
  const auto index = static_cast<size_t>(call);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

constexpr size_t kLossPieceBytes = size_t{512} << 10;  // an answer must be smaller than a message

/// One call of a client, or a piece of its log-probabilities.
struct LossAnswer : LossTotals {
  static constexpr std::string_view kName = "LossAnswer";
  static constexpr uint32_t kVersion = 1;
  uint8_t call = 0;
  bool has_failed = false;
  uint8_t code = 0;
  std::string text;
  TenantSlot tenant;
  bool is_granted = false;     // a queued call has its result; leaving closed the gradients
  uint64_t num_bytes = 0;      // of the log-probabilities, in pieces that follow
  std::vector<uint8_t> piece;  // of them

  template <class F>
  static void fields(F& f) {
    using A = LossAnswer;
    f("call", &A::call)("has_failed", &A::has_failed)("code", &A::code)("text", &A::text)(
        "tenant", &A::tenant)("is_granted", &A::is_granted)("num_bytes", &A::num_bytes)("piece",
                                                                                        &A::piece);
    LossTotals::fields(f);
  }
};

/// The log-probabilities of a LossResult.
struct Logprobs {
  std::vector<std::vector<float>> of_data;
  template <class F>
  static void fields(F& f) {
    f("of_data", &Logprobs::of_data);
  }
};

}  // namespace

class TracedLearner::LossCalls final : public TracedCalls<LossAnswer, LossCall> {
 public:
  using TracedCalls::TracedCalls;

  Result<LossResult> keep_result(TenantSlot tenant, Result<LossResult> result) const {
    if (!is_recording()) return result;
    Blob bytes;
    auto kept = keep(LossCall::kAccumulate, std::move(result),
                     [&](LossAnswer& answer, const LossResult& made) {
                       bytes = written_state(Logprobs{made.logprobs});
                       static_cast<LossTotals&>(answer) = made.totals;
                       answer.tenant = tenant;
                       answer.num_bytes = bytes.size();
                     });
    const auto* data = reinterpret_cast<const uint8_t*>(bytes.bytes().data());
    for (size_t begin = 0; begin < bytes.size(); begin += kLossPieceBytes) {
      LossAnswer answer;
      answer.tenant = tenant;
      answer.piece.assign(data + begin, data + std::min(bytes.size(), begin + kLossPieceBytes));
      keep(LossCall::kPiece, std::move(answer));
    }
    return kept;
  }
  Result<LossResult> recorded_result(TenantSlot tenant) const {
    ASSIGN_OR_RETURN(LossAnswer answer, take(LossCall::kAccumulate));
    if (answer.tenant != tenant)
      return error(
          Code::kCorrupt,
          "the learner was asked for an accumulate of tenant {}, in the recorded run of {}", tenant,
          answer.tenant);
    std::vector<std::byte> bytes;
    while (bytes.size() < answer.num_bytes) {
      ASSIGN_OR_RETURN(const LossAnswer next, take(LossCall::kPiece));
      const auto piece = std::as_bytes(std::span(next.piece));
      if (piece.empty())
        return error(Code::kCorrupt, "an answer of the learner has an empty piece");
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    }
    ASSIGN_OR_RETURN(Logprobs logprobs, read_state<Logprobs>(std::span<const std::byte>(bytes)));
    return LossResult{std::move(logprobs.of_data), LossTotals(answer)};
  }
};

class TracedLearner::Calls final : public TracedCalls<LearnerAnswer, LearnerCall> {
 public:
  using TracedCalls::TracedCalls;
};

TracedLearner::TracedLearner(std::shared_ptr<Learner> learner, KeepAnswer keep)
    : learner_(std::move(learner)),
      calls_(std::make_unique<Calls>("learner", nullptr, keep)),
      loss_calls_(std::make_unique<LossCalls>("learner", nullptr, keep)) {}

TracedLearner::TracedLearner(std::shared_ptr<Learner> learner, NextAnswer next)
    : learner_(std::move(learner)),
      calls_(std::make_unique<Calls>("learner", next, nullptr)),
      loss_calls_(std::make_unique<LossCalls>("learner", next, nullptr)) {}

TracedLearner::~TracedLearner() = default;

bool TracedLearner::is_replaying() const { return calls_->has_record(); }
bool TracedLearner::is_replaying(TenantSlot) const { return calls_->has_record(); }

Result<TrainReport> TracedLearner::step(const TrainBatch& batch, const StopRequested& stop) {
  if (is_replaying(batch.tenant)) return recorded_step(batch.tenant);
  return keep_step(batch.tenant, learner_->step(batch, stop));
}

Result<TrainReport> TracedLearner::recorded_step(TenantSlot tenant) {
  ASSIGN_OR_RETURN(LearnerAnswer answer, calls_->take(LearnerCall::kStep));
  if (answer.tenant != tenant)
    return error(Code::kCorrupt,
                 "the learner was asked for a step of tenant {}, in the recorded run of {}", tenant,
                 answer.tenant);
  return TrainReport(std::move(answer));
}

Result<LossResult> TracedLearner::accumulate(const LossBatch& batch, const StopRequested& stop) {
  TenantProgress& progress = progress_.tenants[batch.tenant];
  if (!is_replaying(batch.tenant))
    return loss_calls_->keep_result(batch.tenant, learner_->accumulate(batch, stop));
  auto result = loss_calls_->recorded_result(batch.tenant);
  if (result.ok() && !batch.forward_only) progress.is_open = true;
  if (!result.ok() && result.error().code() == Code::kCancelled) progress.is_open = false;
  return result;
}

/// As step_queued().
std::optional<Result<LossResult>> TracedLearner::accumulate_queued(
    std::shared_ptr<const LossBatch> batch, uint64_t work_call, const StopRequested& stop) {
  const TenantSlot tenant = batch->tenant;
  bool& is_asking = progress_.tenants[tenant].is_asking;
  is_asking = true;
  if (is_replaying(tenant)) {
    const auto answer = loss_calls_->take(LossCall::kQueued);
    if (!answer.ok() || answer->tenant != tenant || !answer->is_granted) return std::nullopt;
    is_asking = false;
    return accumulate(*batch, stop);
  }
  auto result = learner_->accumulate_queued(std::move(batch), work_call, stop);
  is_asking = !result.has_value();
  LossAnswer answer;
  answer.tenant = tenant;
  answer.is_granted = result.has_value();
  loss_calls_->keep(LossCall::kQueued, std::move(answer));
  if (!result) return std::nullopt;
  return loss_calls_->keep_result(tenant, std::move(*result));
}

Result<TrainReport> TracedLearner::apply(TenantSlot tenant, const AdamNumbers& adam) {
  if (!is_replaying(tenant)) return keep_step(tenant, learner_->apply(tenant, adam));
  auto report = recorded_step(tenant);
  if (report.ok()) progress_.tenants[tenant].is_open = false;
  return report;
}

Status TracedLearner::begin_tenant(const AdapterTraining& tenant) {
  if (is_restoring()) return is_replaying(tenant.tenant) ? ok() : learner_->begin_tenant(tenant);
  if (is_replaying(tenant.tenant)) return recorded_begin(tenant.tenant);
  const Status begun = learner_->begin_tenant(tenant);
  if (!begun.ok()) return calls_->keep(LearnerCall::kBegin, begun);
  LearnerAnswer answer;
  answer.tenant = tenant.tenant;
  calls_->keep(LearnerCall::kBegin, std::move(answer));
  return ok();
}

Status TracedLearner::recorded_begin(TenantSlot tenant) {
  ASSIGN_OR_RETURN(const LearnerAnswer answer, calls_->take(LearnerCall::kBegin));
  if (answer.tenant == tenant) return ok();
  return error(Code::kCorrupt, "tenant {} begins in the learner, in the recorded run {}", tenant,
               answer.tenant);
}

void TracedLearner::end_tenant(TenantSlot tenant) {
  if (!is_replaying(tenant)) learner_->end_tenant(tenant);
  forget_progress(tenant);
}

void TracedLearner::discard(TenantSlot tenant) {
  if (!is_replaying(tenant)) return learner_->discard(tenant);
  if (const auto found = progress_.tenants.find(tenant); found != progress_.tenants.end())
    found->second.is_open = false;
}

bool TracedLearner::has_open_gradients(TenantSlot tenant) const {
  if (!is_replaying(tenant)) return learner_->has_open_gradients(tenant);
  const auto found = progress_.tenants.find(tenant);
  return found != progress_.tenants.end() && found->second.is_open;
}

/// The progress of an unfinished call depends on other tenants, so it is recorded.
void TracedLearner::leave_queue(TenantSlot tenant) {
  const auto found = progress_.tenants.find(tenant);
  const bool was_asking =
      found != progress_.tenants.end() && std::exchange(found->second.is_asking, false);
  if (!is_replaying(tenant)) {
    learner_->leave_queue(tenant);
    if (!was_asking) return;
    LossAnswer answer;
    answer.tenant = tenant;
    answer.is_granted = !learner_->has_open_gradients(tenant);
    loss_calls_->keep(LossCall::kLeft, std::move(answer));
    return;
  }
  if (!was_asking) return;
  const auto answer = loss_calls_->take(LossCall::kLeft);
  if (answer.ok() && answer->is_granted) discard(tenant);
}

Result<TrainReport> TracedLearner::keep_step(TenantSlot tenant, Result<TrainReport> report) {
  progress_.tenants[tenant].num_steps += report.ok() && !report->skipped ? 1 : 0;
  return calls_->keep(LearnerCall::kStep, std::move(report),
                      [tenant](LearnerAnswer& answer, const TrainReport& taken) {
                        static_cast<TrainReport&>(answer) = taken;
                        answer.tenant = tenant;
                      });
}

Blob TracedLearner::save_state() const {
  if (!calls_->is_recording()) return {};
  LearnerProgress now = progress_;
  for (auto& [tenant, progress] : now.tenants)
    progress.is_open = learner_->has_open_gradients(tenant);
  return written_state(now);
}

Status TracedLearner::restore_state(const Blob& state) {
  ASSIGN_OR_RETURN(progress_, read_state<LearnerProgress>(state));
  return learner_ == nullptr ? ok() : learner_->restore_state(state);
}

Result<std::shared_ptr<const WeightSnapshot>> TracedLearner::snapshot(TenantSlot tenant,
                                                                      PolicyVersion version) {
  if (is_replaying(tenant)) {
    RETURN_IF_ERROR(calls_->take(LearnerCall::kSnapshot));
    auto snapshot = std::make_shared<WeightSnapshot>();
    snapshot->version = version;
    return std::shared_ptr<const WeightSnapshot>(std::move(snapshot));
  }
  progress_.tenants[tenant].newest = version;
  return calls_->keep(LearnerCall::kSnapshot, learner_->snapshot(tenant, version),
                      [](auto&, const auto&) {});
}

Result<std::vector<float>> TracedLearner::score(TenantSlot tenant,
                                                const std::vector<int32_t>& tokens) {
  if (is_replaying(tenant))
    return error(Code::kUnavailable, "a learner played from the record has no weights");
  return learner_->score(tenant, tokens);
}

Result<AnswerLoss> TracedLearner::evaluate(const TrainBatch& batch) {
  if (is_replaying(batch.tenant)) {
    ASSIGN_OR_RETURN(LearnerAnswer answer, calls_->take(LearnerCall::kEvaluate));
    return AnswerLoss(std::move(answer));
  }
  return calls_->keep(LearnerCall::kEvaluate, learner_->evaluate(batch),
                      [](LearnerAnswer& answer, const AnswerLoss& loss) {
                        static_cast<AnswerLoss&>(answer) = loss;
                      });
}

Status TracedLearner::save(TenantSlot tenant, const std::filesystem::path& folder) {
  if (learner_ == nullptr)
    return error(Code::kUnavailable, "a learner played from the record has no weights");
  return learner_->save(tenant, folder);
}

Status TracedLearner::begin_save(LearnerSave save) {
  const TenantSlot tenant = save.tenant;
  // A client's folder is not taken for the checkpoint of a training step (step_that_saved()).
  const LearnerCall call = save.is_of_client ? LearnerCall::kClientSave : LearnerCall::kSave;
  if (is_replaying(tenant)) return calls_->take_status(call);
  const Status begun = learner_->begin_save(std::move(save));
  if (!begun.ok()) return calls_->keep(call, begun);
  LearnerAnswer answer;
  answer.tenant = tenant;
  calls_->keep(call, std::move(answer));
  return ok();
}

std::optional<Status> TracedLearner::end_of_save(TenantSlot tenant, Time now) {
  if (is_replaying(tenant)) {
    const auto answer = calls_->take(LearnerCall::kSaved);
    if (!answer.ok()) return Status(answer.error());
    if (!answer->is_granted) return std::nullopt;
    return ok();
  }
  auto ended = learner_->end_of_save(tenant, now);
  if (ended && !ended->ok()) return calls_->keep(LearnerCall::kSaved, std::move(*ended));
  LearnerAnswer answer;
  answer.tenant = tenant;
  answer.is_granted = ended.has_value();
  calls_->keep(LearnerCall::kSaved, std::move(answer));
  return ended;
}

void TracedLearner::set_wake(std::function<void()> wake) {
  if (learner_ != nullptr) learner_->set_wake(std::move(wake));
}

Status TracedLearner::load(TenantSlot tenant, const std::filesystem::path& folder) {
  return is_replaying(tenant) ? ok() : learner_->load(tenant, folder);
}

Status TracedLearner::load_weights(TenantSlot tenant, const std::filesystem::path& folder,
                                   const std::filesystem::path& others) {
  if (!is_replaying(tenant))
    return calls_->keep(LearnerCall::kLoad, learner_->load_weights(tenant, folder, others));
  Status loaded = calls_->take_status(LearnerCall::kLoad);
  if (loaded.ok()) progress_.tenants[tenant].is_open = false;
  return loaded;
}

/// Without an answer every sample is refused; then the end of its group of rollouts shows the
/// difference.
SampleLimits TracedLearner::limits() const {
  if (is_replaying()) {
    const auto answer = calls_->take(LearnerCall::kLimits);
    return answer.ok() ? SampleLimits(*answer) : SampleLimits();
  }
  LearnerAnswer answer;
  static_cast<SampleLimits&>(answer) = learner_->limits();
  const SampleLimits limits = answer;
  calls_->keep(LearnerCall::kLimits, std::move(answer));
  return limits;
}

/// Without an answer no step is trained; that shows as a missing step. A step that is computed
/// again is computed alone, even if it shared a forward pass in the recorded run: the result is the
/// same.
std::optional<Result<TrainReport>> TracedLearner::step_queued(
    std::shared_ptr<const TrainBatch> batch, uint64_t turn, const StopRequested& stop) {
  const TenantSlot tenant = batch->tenant;
  if (is_replaying(tenant)) {
    const auto answer = calls_->take(LearnerCall::kTurn);
    if (!answer.ok() || answer->tenant != tenant || !answer->is_granted) return std::nullopt;
    return step(*batch, stop);
  }
  auto report = learner_->step_queued(std::move(batch), turn, stop);
  LearnerAnswer answer;
  answer.tenant = tenant;
  answer.is_granted = report.has_value();
  calls_->keep(LearnerCall::kTurn, std::move(answer));
  if (!report) return std::nullopt;
  return keep_step(tenant, std::move(*report));
}

Status TracedLearner::step() { return is_replaying() ? ok() : learner_->step(); }
bool TracedLearner::has_work() const { return !is_replaying() && learner_->has_work(); }
Duration TracedLearner::take_cost() { return is_replaying() ? Duration() : learner_->take_cost(); }
std::string TracedLearner::describe() const {
  return learner_ == nullptr ? "" : learner_->describe();
}

bool is_failed_learner_answer(std::span<const std::byte> note) {
  if (const auto payload = decode_message(message_type<LearnerAnswer>(), note); payload.ok())
    return payload->as<LearnerAnswer>().has_failed;
  const auto payload = decode_message(message_type<LossAnswer>(), note);
  return payload.ok() && payload->as<LossAnswer>().has_failed;
}

std::optional<uint64_t> step_that_saved(const Trace& trace, GroupId group, TenantSlot tenant,
                                        uint64_t training_step) {
  for (uint64_t step = training_step + 1; step <= trace.last_step(group); ++step) {
    for (const NondeterministicInput& note : trace.notes(group, step)) {
      if (note.kind != NoteKind::kResource) continue;
      const auto payload = decode_message(message_type<LearnerAnswer>(), note.bytes);
      if (!payload.ok()) continue;
      const auto& answer = payload->as<LearnerAnswer>();
      if (answer.tenant != tenant || answer.has_failed) continue;
      if (answer.call == static_cast<uint8_t>(LearnerCall::kSave)) return step;
      if (answer.call == static_cast<uint8_t>(LearnerCall::kStep) && !answer.skipped)
        return std::nullopt;
    }
  }
  return std::nullopt;
}

namespace {

/// Visits the learner's answers in a group's record, without failed ones; false stops.
void visit_answers(const Trace& trace, GroupId group, uint64_t from,
                   const std::function<bool(const LearnerAnswer& answer, uint64_t step)>& visitor) {
  for (uint64_t step = std::max(from, trace.first_step(group));
       step != 0 && step <= trace.last_step(group); ++step) {
    for (const NondeterministicInput& note : trace.notes(group, step)) {
      if (note.kind != NoteKind::kResource) continue;
      // The notes also have answers of the weight channel.
      const auto payload = decode_message(message_type<LearnerAnswer>(), note.bytes);
      if (!payload.ok()) continue;
      const auto& answer = payload->as<LearnerAnswer>();
      if (!answer.has_failed && !visitor(answer, step)) return;
    }
  }
}

bool is_training_step(const LearnerAnswer& answer) {
  return answer.call == static_cast<uint8_t>(LearnerCall::kStep) && !answer.skipped;
}

}  // namespace

void visit_training_steps(const Trace& trace, GroupId group, uint64_t from,
                          const std::function<bool(TenantSlot tenant, uint64_t step)>& visitor) {
  visit_answers(trace, group, from, [&](const LearnerAnswer& answer, uint64_t step) {
    return !is_training_step(answer) || visitor(answer.tenant, step);
  });
}

std::map<TenantSlot, RecordedProgress> recorded_progress(const Trace& trace, GroupId group,
                                                         uint64_t from) {
  std::map<TenantSlot, RecordedProgress> all;
  visit_answers(trace, group, from, [&all](const LearnerAnswer& answer, uint64_t) {
    if (is_training_step(answer)) ++all[answer.tenant].num_steps;
    if (answer.call == static_cast<uint8_t>(LearnerCall::kBegin))
      all[answer.tenant] = {0, all[answer.tenant].num_begins + 1};
    return true;
  });
  return all;
}

std::map<TenantSlot, int64_t> num_recorded_steps(const Trace& trace, GroupId group, uint64_t from) {
  std::map<TenantSlot, int64_t> counts;
  for (const auto& [tenant, progress] : recorded_progress(trace, group, from))
    counts[tenant] = progress.num_steps;
  return counts;
}

}  // namespace primerl
