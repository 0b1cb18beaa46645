#include "runtime/replay/traced_engine.h"

#include <algorithm>
#include <span>
#include <utility>

namespace primerl {
namespace {

constexpr size_t kPieceBytes = size_t{512} << 10;  // one answer must be smaller than a message
constexpr size_t kTokensInAnswerMax = size_t{32} << 10;
constexpr int64_t kNotPrepared = -1;  // stands for the number of tensors

using Applied = std::optional<uint64_t>;  // none: it is still being prepared

enum class EngineCall : uint8_t {
  kSubmit,
  kTakeOver,
  kPrefilled,
  kFinished,
  kApply,
  kState,
  kLongest
};

std::string_view to_string(EngineCall call) {
  constexpr std::string_view kNames[] = {
      "submit", "take_over", "take_prefilled",     "take_finished",
      "apply",  "state",     "max_sequence_tokens"};
  const auto index = static_cast<size_t>(call);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

/// An end, and the number of its parts in separate answers: its kept sets, its experts, then these
/// lists.
struct Finished : FinishEvent {
  uint64_t num_kept_bytes = 0;
  uint64_t num_routed_bytes = 0;
  std::vector<int32_t> routed_shape;  // start, layers, experts per token, is_wide
  uint64_t num_list_bytes = 0;
  template <class F>
  static void fields(F& f) {
    FinishEvent::fields(f);
    f("num_kept_bytes", &Finished::num_kept_bytes)("num_routed_bytes", &Finished::num_routed_bytes)(
        "routed_shape", &Finished::routed_shape)("num_list_bytes", &Finished::num_list_bytes);
  }
};

/// The lists of an end that FinishEvent::fields() omits or that are too long for an answer; empty
/// otherwise.
struct LongLists {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<TokenLogprob> top;
  std::vector<int32_t> ranks;
  std::vector<float> prompt;
  std::vector<TokenLogprob> prompt_top;
  template <class F>
  static void fields(F& f) {
    f("tokens", &LongLists::tokens)("logprobs", &LongLists::logprobs)("top", &LongLists::top)(
        "ranks", &LongLists::ranks)("prompt", &LongLists::prompt)("prompt_top",
                                                                  &LongLists::prompt_top);
  }
};

/// Moves the long lists out of `event`.
Blob take_long_lists(FinishEvent& event) {
  LongLists lists;
  lists.top = std::exchange(event.top_logprobs, {});
  lists.ranks = std::exchange(event.ranks, {});
  lists.prompt = std::exchange(event.prompt_logprobs, {});
  lists.prompt_top = std::exchange(event.prompt_top_logprobs, {});
  if (event.tokens.size() > kTokensInAnswerMax) {
    lists.tokens = std::exchange(event.tokens, {});
    lists.logprobs = std::exchange(event.logprobs, {});
  }
  if (lists.top.empty() && lists.prompt.empty() && lists.tokens.empty()) return {};
  return written_state(lists);
}

/// One call and its result; the members of other calls are empty.
struct EngineAnswer {
  static constexpr std::string_view kName = "EngineAnswer";
  static constexpr uint32_t kVersion = 7;
  uint8_t call = 0;
  bool has_failed = false;
  uint8_t code = 0;
  std::string text;
  std::vector<PrefillEvent> prefilled;
  std::vector<Finished> finished;
  /// Number of applied tensors, or kNotPrepared; longest sequence; number of finished ones that
  /// follow.
  int64_t number = 0;
  std::vector<int64_t> state;  // EngineState: its numbers in the order of its fields()
  VersionsByKey versions;      // of EngineState
  std::vector<uint8_t> piece;  // bytes of the parts after the last finished one
  template <class F>
  static void fields(F& f) {
    f("call", &EngineAnswer::call)("has_failed", &EngineAnswer::has_failed)(
        "code", &EngineAnswer::code)("text", &EngineAnswer::text)(
        "prefilled", &EngineAnswer::prefilled)("finished", &EngineAnswer::finished)(
        "number", &EngineAnswer::number)("state", &EngineAnswer::state)(
        "versions", &EngineAnswer::versions)("piece", &EngineAnswer::piece);
  }
};

/// Visits EngineState::fields(); all except the versions are numbers.
struct PutNumbers {
  const EngineState& state;
  std::vector<int64_t>& numbers;
  template <class M>
  PutNumbers& operator()(std::string_view, M EngineState::*member) {
    if constexpr (std::is_integral_v<M>) numbers.push_back(static_cast<int64_t>(state.*member));
    return *this;
  }
};
struct TakeNumbers {
  std::span<const int64_t> numbers;
  EngineState& state;
  template <class M>
  TakeNumbers& operator()(std::string_view, M EngineState::*member) {
    if constexpr (std::is_integral_v<M>) {
      if (numbers.empty()) return *this;
      state.*member = static_cast<M>(numbers.front());
      numbers = numbers.subspan(1);
    }
    return *this;
  }
};

EngineState state_of(const EngineAnswer& answer) {
  EngineState state;
  wire::Count<EngineState> count;
  EngineState::fields(count);
  if (answer.state.size() + 1 != count.fields) return state;
  TakeNumbers take{answer.state, state};
  EngineState::fields(take);
  state.versions = answer.versions;
  return state;
}

class EngineCalls : public TracedCalls<EngineAnswer, EngineCall> {
 public:
  using TracedCalls::TracedCalls;

  /// First their number, then one answer per end, with its kept sets and lists in pieces, because
  /// all together may exceed the limit of a message.
  void keep_finished(const std::vector<FinishEvent>& events) const {
    EngineAnswer count;
    count.number = static_cast<int64_t>(events.size());
    keep(EngineCall::kFinished, std::move(count));
    for (const auto& event : events) {
      EngineAnswer answer;
      Finished& finished = answer.finished.emplace_back();
      static_cast<FinishEvent&>(finished) = event;
      const Blob lists = take_long_lists(finished);
      finished.num_kept_bytes = event.kept.size();
      const Blob routed = std::exchange(finished.routed.bytes, {});
      const RoutedExperts& shape = event.routed;
      if (routed.size() > 0)
        finished.routed_shape = {shape.start, shape.num_layers, shape.per_token,
                                 shape.is_wide ? 1 : 0};
      finished.num_routed_bytes = routed.size();
      finished.num_list_bytes = lists.size();
      keep(EngineCall::kFinished, std::move(answer));
      keep_pieces(event.kept);
      keep_pieces(routed);
      keep_pieces(lists);
    }
  }
  std::vector<FinishEvent> take_finished() const {
    std::vector<FinishEvent> events;
    const auto count = take(EngineCall::kFinished);
    for (int64_t i = 0; count.ok() && i < count->number; ++i)
      if (const auto answer = take(EngineCall::kFinished); answer.ok())
        for (const auto& each : answer->finished) {
          FinishEvent& event = events.emplace_back(each);
          event.kept = take_pieces(each.num_kept_bytes);
          event.routed.bytes = take_pieces(each.num_routed_bytes);
          if (const auto& shape = each.routed_shape; shape.size() == 4) {
            event.routed.start = shape[0];
            event.routed.num_layers = shape[1];
            event.routed.per_token = shape[2];
            event.routed.is_wide = shape[3] != 0;
          }
          take_lists(each.num_list_bytes, event);
        }
    return events;
  }

 private:
  void keep_pieces(const Blob& blob) const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(blob.bytes().data());
    for (size_t begin = 0; begin < blob.size(); begin += kPieceBytes) {
      EngineAnswer answer;
      answer.piece.assign(bytes + begin, bytes + std::min(blob.size(), begin + kPieceBytes));
      keep(EngineCall::kFinished, std::move(answer));
    }
  }
  void take_lists(uint64_t num_bytes, FinishEvent& event) const {
    const Blob bytes = take_pieces(num_bytes);
    if (bytes.size() == 0) return;
    auto lists = read_state<LongLists>(bytes);
    if (!lists.ok()) return;
    if (!lists->tokens.empty()) {
      event.tokens = std::move(lists->tokens);
      event.logprobs = std::move(lists->logprobs);
    }
    event.top_logprobs = std::move(lists->top);
    event.ranks = std::move(lists->ranks);
    event.prompt_logprobs = std::move(lists->prompt);
    event.prompt_top_logprobs = std::move(lists->prompt_top);
  }
  Blob take_pieces(uint64_t num_bytes) const {
    std::vector<std::byte> bytes;
    while (bytes.size() < num_bytes) {
      const auto answer = take(EngineCall::kFinished);
      if (!answer.ok() || answer->piece.empty()) break;
      const auto piece = std::as_bytes(std::span(answer->piece));
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    }
    return bytes.empty() ? Blob() : Blob(std::move(bytes));
  }
};

class EngineRecorder final : public EngineObserver {
 public:
  explicit EngineRecorder(KeepAnswer keep) : calls_("engine", nullptr, std::move(keep)) {}

  void submitted(const SequenceRequest& request, const Status& status) override {
    (void)calls_.keep(EngineCall::kSubmit, status);
    if (status.ok()) unfinished_.submitted(request);
  }
  void taken_over(SequenceId id, const Status& status) override {
    (void)calls_.keep(EngineCall::kTakeOver, status);
    if (status.ok()) unfinished_.taken_over(id);
  }
  void aborted(SequenceId id) override { unfinished_.aborted(id); }
  void expired(SequenceId id) override { unfinished_.expired(id); }
  void prefilled(const std::vector<PrefillEvent>& events) override {
    unfinished_.prefilled(events);
    EngineAnswer answer;
    answer.prefilled = events;
    calls_.keep(EngineCall::kPrefilled, std::move(answer));
  }
  void finished(const std::vector<FinishEvent>& events) override {
    unfinished_.finished(events);
    calls_.keep_finished(events);
  }
  void applied(const WeightSnapshot& snapshot, const Result<Applied>& applied) override {
    if (applied.ok() && applied->has_value())
      CHECK(unfinished_.applied.set(snapshot.key, snapshot.version), "an engine of too many keys");
    (void)calls_.keep(EngineCall::kApply, applied, [](auto& answer, Applied count) {
      answer.number = count ? static_cast<int64_t>(*count) : kNotPrepared;
    });
  }
  /// A replay makes the same call.
  void dropped(WeightsKey key) override { unfinished_.dropped(key); }
  /// An engine that replaces another one counts from 0, but a replay has one engine throughout.
  void state_read(EngineState& state) override {
    state.num_completed = unfinished_.num_completed;
    state.num_failed = unfinished_.num_failed;
    EngineAnswer answer;
    PutNumbers put{state, answer.state};
    EngineState::fields(put);
    answer.versions = state.versions;
    calls_.keep(EngineCall::kState, std::move(answer));
  }
  void length_read(int32_t max_sequence_tokens) override {
    EngineAnswer answer;
    answer.number = max_sequence_tokens;
    calls_.keep(EngineCall::kLongest, std::move(answer));
  }
  Blob save_state() const override { return written_state(unfinished_); }
  Status restore_state(const Blob& state) override {
    ASSIGN_OR_RETURN(unfinished_, read_state<UnfinishedSequences>(state));
    return ok();
  }

 private:
  const EngineCalls calls_;
  UnfinishedSequences unfinished_;
};

}  // namespace

std::unique_ptr<EngineObserver> engine_recorder(KeepAnswer keep) {
  return std::make_unique<EngineRecorder>(std::move(keep));
}

class TracedEngine::Calls final : public EngineCalls {
 public:
  using EngineCalls::EngineCalls;
};

TracedEngine::TracedEngine(NextAnswer next)
    : calls_(std::make_unique<Calls>("engine", std::move(next), nullptr)) {}

TracedEngine::~TracedEngine() = default;

Status TracedEngine::submit(SequenceRequest request) {
  (void)request;
  return calls_->take_status(EngineCall::kSubmit);
}

Status TracedEngine::take_over(SequenceId id) {
  (void)id;
  return calls_->take_status(EngineCall::kTakeOver);
}

void TracedEngine::abort(SequenceId id) { (void)id; }

void TracedEngine::expire(SequenceId id) { (void)id; }

// A missing answer, or an answer of another call, appears as a difference in the actors' emissions.

std::vector<PrefillEvent> TracedEngine::take_prefilled() {
  auto recorded = calls_->take(EngineCall::kPrefilled);
  return recorded.ok() ? std::move(recorded->prefilled) : std::vector<PrefillEvent>();
}

std::vector<FinishEvent> TracedEngine::take_finished() { return calls_->take_finished(); }

Result<uint64_t> TracedEngine::apply(const WeightSnapshot& snapshot) {
  (void)snapshot;
  ASSIGN_OR_RETURN(const EngineAnswer answer, calls_->take(EngineCall::kApply));
  return static_cast<uint64_t>(answer.number);
}

Result<std::optional<uint64_t>> TracedEngine::apply_prepared(
    const std::shared_ptr<const WeightSnapshot>& snapshot) {
  (void)snapshot;
  ASSIGN_OR_RETURN(const EngineAnswer answer, calls_->take(EngineCall::kApply));
  return answer.number == kNotPrepared ? Applied() : Applied(answer.number);
}

Status TracedEngine::restore_state(const Blob& state) {
  ASSIGN_OR_RETURN(const auto unfinished, read_state<UnfinishedSequences>(state));
  (void)unfinished;
  return ok();
}

EngineState TracedEngine::state() const {
  const auto answer = calls_->take(EngineCall::kState);
  return answer.ok() ? state_of(*answer) : EngineState();
}

int32_t TracedEngine::max_sequence_tokens() const {
  const auto answer = calls_->take(EngineCall::kLongest);
  return answer.ok() ? static_cast<int32_t>(answer->number) : 0;
}

bool is_failed_engine_answer(std::span<const std::byte> note) {
  const auto payload = decode_message(message_type<EngineAnswer>(), note);
  return payload.ok() && payload->as<EngineAnswer>().has_failed;
}

}  // namespace primerl
