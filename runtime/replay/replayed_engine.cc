#include "runtime/replay/replayed_engine.h"

#include <algorithm>
#include <span>

#include "runtime/replay/replayed_answer.h"

namespace primerl {
namespace {

constexpr size_t kKeptPiece = size_t{512} << 10;  // bytes; an answer is less than a message

enum class Call : uint8_t { kSubmit, kTakeOver, kPrefilled, kFinished, kApply, kState, kLongest };

std::string_view to_string(Call call) {
  constexpr std::string_view kNames[] = {
      "submit", "take_over", "take_prefilled",     "take_finished",
      "apply",  "state",     "max_sequence_tokens"};
  return kNames[static_cast<size_t>(call)];
}

struct Prefilled {
  uint64_t id = 0;
  int32_t num_cached_tokens = 0;
  template <class F>
  static void fields(F& f) {
    f("id", &Prefilled::id)("num_cached_tokens", &Prefilled::num_cached_tokens);
  }
};

struct Span {
  PolicyVersion version;
  int32_t begin = 0;
  int32_t end = 0;
  template <class F>
  static void fields(F& f) {
    f("version", &Span::version)("begin", &Span::begin)("end", &Span::end);
  }
};

struct Finished {
  uint64_t id = 0;
  uint8_t reason = 0;
  bool was_prefilled = false;
  std::string detail;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<Span> spans;
  int32_t num_cached_tokens = 0;
  uint64_t num_kept_bytes = 0;  // that follow in separate answers
  template <class F>
  static void fields(F& f) {
    f("id", &Finished::id)("reason", &Finished::reason)("was_prefilled", &Finished::was_prefilled)(
        "detail", &Finished::detail)("tokens", &Finished::tokens)("logprobs", &Finished::logprobs)(
        "spans", &Finished::spans)("num_cached_tokens", &Finished::num_cached_tokens)(
        "num_kept_bytes", &Finished::num_kept_bytes);
  }
};

/// One call and its result; the members of other calls are empty.
struct EngineAnswer {
  static constexpr std::string_view kName = "EngineAnswer";
  static constexpr uint32_t kVersion = 2;
  uint8_t call = 0;
  bool has_failed = false;
  uint8_t code = 0;
  std::string text;
  std::vector<Prefilled> prefilled;
  std::vector<Finished> finished;
  int64_t number = 0;  // tensors applied; longest sequence; number of finished ones that follow
  std::vector<int64_t> state;  // EngineState, in the order of its members
  std::vector<uint8_t> kept;   // bytes of the last finished one's kept sets
  template <class F>
  static void fields(F& f) {
    f("call", &EngineAnswer::call)("has_failed", &EngineAnswer::has_failed)(
        "code", &EngineAnswer::code)("text", &EngineAnswer::text)(
        "prefilled", &EngineAnswer::prefilled)("finished", &EngineAnswer::finished)(
        "number", &EngineAnswer::number)("state", &EngineAnswer::state)("kept",
                                                                        &EngineAnswer::kept);
  }
};

EngineAnswer answer_of(Call call, const Status& status = ok()) {
  return answer_to<EngineAnswer>(call, status);
}

std::vector<int64_t> numbers_of(const EngineState& state) {
  return {state.num_waiting,
          state.num_running,
          state.num_held,
          state.num_free_blocks,
          state.num_blocks,
          state.num_room,
          static_cast<int64_t>(state.num_prefill_tokens),
          static_cast<int64_t>(state.num_decode_tokens),
          static_cast<int64_t>(state.num_preemptions),
          state.version.value};
}

EngineState state_of(const std::vector<int64_t>& numbers) {
  EngineState state;
  if (numbers.size() != 10) return state;
  state.num_waiting = static_cast<int32_t>(numbers[0]);
  state.num_running = static_cast<int32_t>(numbers[1]);
  state.num_held = static_cast<int32_t>(numbers[2]);
  state.num_free_blocks = static_cast<int32_t>(numbers[3]);
  state.num_blocks = static_cast<int32_t>(numbers[4]);
  state.num_room = static_cast<int32_t>(numbers[5]);
  state.num_prefill_tokens = static_cast<uint64_t>(numbers[6]);
  state.num_decode_tokens = static_cast<uint64_t>(numbers[7]);
  state.num_preemptions = static_cast<uint64_t>(numbers[8]);
  state.version = PolicyVersion(numbers[9]);
  return state;
}

Finished fields_of(const FinishEvent& event) {
  Finished finished;
  finished.id = event.id.value;
  finished.reason = static_cast<uint8_t>(event.reason);
  finished.was_prefilled = event.was_prefilled;
  finished.detail = event.detail;
  finished.tokens = event.tokens;
  finished.logprobs = event.logprobs;
  for (const auto& span : event.spans)
    finished.spans.push_back({span.version, span.begin, span.end});
  finished.num_cached_tokens = event.num_cached_tokens;
  finished.num_kept_bytes = event.kept.size();
  return finished;
}

FinishEvent event_of(const Finished& finished) {
  FinishEvent event;
  event.id = SequenceId(finished.id);
  event.reason = static_cast<FinishReason>(finished.reason);
  event.was_prefilled = finished.was_prefilled;
  event.detail = finished.detail;
  event.tokens = finished.tokens;
  event.logprobs = finished.logprobs;
  for (const auto& span : finished.spans)
    event.spans.push_back({span.version, span.begin, span.end});
  event.num_cached_tokens = finished.num_cached_tokens;
  return event;
}

class RecordingEngine final : public Engine {
 public:
  RecordingEngine(std::unique_ptr<Engine> engine, KeepAnswer keep)
      : engine_(std::move(engine)), keep_(std::move(keep)) {}

  Status submit(SequenceRequest request) override {
    return kept(Call::kSubmit, engine_->submit(std::move(request)));
  }
  Status take_over(SequenceId id) override { return kept(Call::kTakeOver, engine_->take_over(id)); }
  void abort(SequenceId id) override { engine_->abort(id); }
  void expire(SequenceId id) override { engine_->expire(id); }
  std::vector<PrefillEvent> take_prefilled() override {
    auto events = engine_->take_prefilled();
    EngineAnswer answer = answer_of(Call::kPrefilled);
    for (const auto& event : events)
      answer.prefilled.push_back({event.id.value, event.num_cached_tokens});
    keep(std::move(answer));
    return events;
  }
  std::vector<FinishEvent> take_finished() override {
    auto events = engine_->take_finished();
    // First their number, then one answer each with its kept sets in pieces: together they may
    // exceed the limit of a message.
    EngineAnswer count = answer_of(Call::kFinished);
    count.number = static_cast<int64_t>(events.size());
    keep(std::move(count));
    for (const auto& event : events) {
      EngineAnswer answer = answer_of(Call::kFinished);
      answer.finished.push_back(fields_of(event));
      keep(std::move(answer));
      keep_kept_sets(event.kept);
    }
    return events;
  }
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    auto applied = engine_->apply(snapshot);
    EngineAnswer answer = answer_of(Call::kApply, applied.ok() ? ok() : Status(applied.error()));
    if (applied.ok()) answer.number = static_cast<int64_t>(*applied);
    keep(std::move(answer));
    return applied;
  }
  /// It does not change during a run: nothing to record.
  WeightManifest manifest() const override { return engine_->manifest(); }
  EngineState state() const override {
    const EngineState state = engine_->state();
    EngineAnswer answer = answer_of(Call::kState);
    answer.state = numbers_of(state);
    keep(std::move(answer));
    return state;
  }
  int32_t max_sequence_tokens() const override {
    EngineAnswer answer = answer_of(Call::kLongest);
    answer.number = engine_->max_sequence_tokens();
    keep(std::move(answer));
    return engine_->max_sequence_tokens();
  }
  Status step() override { return engine_->step(); }
  bool has_work() const override { return engine_->has_work(); }
  Duration take_cost() override { return engine_->take_cost(); }
  std::string describe() const override { return engine_->describe(); }

 private:
  void keep_kept_sets(const Blob& kept) const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(kept.bytes().data());
    for (size_t begin = 0; begin < kept.size(); begin += kKeptPiece) {
      EngineAnswer answer = answer_of(Call::kFinished);
      answer.kept.assign(bytes + begin, bytes + std::min(kept.size(), begin + kKeptPiece));
      keep(std::move(answer));
    }
  }
  Status kept(Call call, Status status) {
    keep(answer_of(call, status));
    return status;
  }
  void keep(EngineAnswer answer) const { keep_(bytes_of_answer(std::move(answer))); }

  const std::unique_ptr<Engine> engine_;
  const KeepAnswer keep_;
};

class ReplayedEngine final : public Engine {
 public:
  explicit ReplayedEngine(NextAnswer next) : next_(std::move(next)) {}

  Status submit(SequenceRequest) override { return status_of(take(Call::kSubmit)); }
  Status take_over(SequenceId) override { return status_of(take(Call::kTakeOver)); }
  void abort(SequenceId) override {}
  void expire(SequenceId) override {}
  std::vector<PrefillEvent> take_prefilled() override {
    std::vector<PrefillEvent> events;
    if (const auto answer = take(Call::kPrefilled); answer.ok())
      for (const auto& each : answer->prefilled)
        events.push_back({SequenceId(each.id), each.num_cached_tokens});
    return events;
  }
  std::vector<FinishEvent> take_finished() override {
    std::vector<FinishEvent> events;
    const auto count = take(Call::kFinished);
    for (int64_t i = 0; count.ok() && i < count->number; ++i)
      if (const auto answer = take(Call::kFinished); answer.ok())
        for (const auto& each : answer->finished) {
          events.push_back(event_of(each));
          events.back().kept = take_kept_sets(each.num_kept_bytes);
        }
    return events;
  }
  Result<uint64_t> apply(const WeightSnapshot&) override {
    ASSIGN_OR_RETURN(const EngineAnswer answer, take(Call::kApply));
    return static_cast<uint64_t>(answer.number);
  }
  EngineState state() const override {
    const auto answer = take(Call::kState);
    return answer.ok() ? state_of(answer->state) : EngineState();
  }
  int32_t max_sequence_tokens() const override {
    const auto answer = take(Call::kLongest);
    return answer.ok() ? static_cast<int32_t>(answer->number) : 0;
  }

 private:
  Blob take_kept_sets(uint64_t num_bytes) const {
    std::vector<std::byte> bytes;
    while (bytes.size() < num_bytes) {
      const auto answer = take(Call::kFinished);
      if (!answer.ok() || answer->kept.empty()) break;
      const auto piece = std::as_bytes(std::span(answer->kept));
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    }
    return bytes.empty() ? Blob() : Blob(std::move(bytes));
  }
  static Status status_of(const Result<EngineAnswer>& answer) {
    return answer.ok() ? ok() : Status(answer.error());
  }
  /// A missing answer, or one of another call, appears as a difference in what the actors emit.
  Result<EngineAnswer> take(Call call) const {
    return take_answer<EngineAnswer>(next_, call, "engine");
  }

  const NextAnswer next_;
};

}  // namespace

std::unique_ptr<Engine> make_recording_engine(std::unique_ptr<Engine> engine, KeepAnswer keep) {
  return std::make_unique<RecordingEngine>(std::move(engine), std::move(keep));
}

std::unique_ptr<Engine> make_replayed_engine(NextAnswer next) {
  return std::make_unique<ReplayedEngine>(std::move(next));
}

}  // namespace primerl
