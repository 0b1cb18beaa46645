#include "runtime/replay/traced_outside.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace primerl {
namespace {

constexpr size_t kOutsidePieceBytes = size_t{512} << 10;  // one note must be smaller than a message
constexpr size_t kOutsideInlineBytesMax = size_t{4} << 10;
constexpr size_t kOutsideNoteBytesMax = size_t{512} << 10;

enum class OutsideNote : uint8_t { kAnswers };
std::string_view to_string(OutsideNote) { return "receive_answers"; }

/// Some answers; `num_more_bytes` of the last one follow in pieces.
struct OutsideAnswers {
  static constexpr std::string_view kName = "OutsideAnswers";
  static constexpr uint32_t kVersion = 1;
  uint8_t call = 0;
  bool has_failed = false;
  uint8_t code = 0;
  std::string text;
  std::vector<OutsideAnswer> answers;
  uint64_t num_more_bytes = 0;
  bool is_last = true;         // of this receive_answers()
  std::vector<uint8_t> piece;  // then the others are empty
  template <class F>
  static void fields(F& f) {
    using A = OutsideAnswers;
    f("call", &A::call)("has_failed", &A::has_failed)("code", &A::code)("text", &A::text)(
        "answers", &A::answers)("num_more_bytes", &A::num_more_bytes)("is_last", &A::is_last)(
        "piece", &A::piece);
  }
};

class OutsideNotes final : public TracedCalls<OutsideAnswers, OutsideNote> {
 public:
  using TracedCalls::TracedCalls;

  void keep_all(const std::vector<OutsideAnswer>& answers) const {
    OutsideAnswers note;
    size_t note_bytes = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      const OutsideAnswer& answer = answers[i];
      const bool is_last = i + 1 == answers.size();
      note.answers.push_back({answer.id, answer.end, {}});
      if (answer.body.size() <= kOutsideInlineBytesMax) {
        note.answers.back().body = answer.body;
        note_bytes += answer.body.size() + 64;
        if (note_bytes < kOutsideNoteBytesMax && !is_last) continue;
        note.is_last = is_last;
        keep(OutsideNote::kAnswers, std::exchange(note, {}));
      } else {
        note.num_more_bytes = answer.body.size();
        note.is_last = is_last;
        keep(OutsideNote::kAnswers, std::exchange(note, {}));
        keep_pieces(answer.body);
      }
      note_bytes = 0;
    }
  }

  std::vector<OutsideAnswer> read_all() const {
    std::vector<OutsideAnswer> answers;
    for (bool is_last = false; !is_last;) {
      auto note = next_note();
      // A step without a note received no answers.
      if (!note.ok()) break;
      is_last = note->is_last;
      const uint64_t num_bytes = note->num_more_bytes;
      std::move(note->answers.begin(), note->answers.end(), std::back_inserter(answers));
      if (num_bytes > 0 && !answers.empty()) answers.back().body = read_pieces(num_bytes);
    }
    return answers;
  }

 private:
  Result<OutsideAnswers> next_note() const { return take(OutsideNote::kAnswers); }

  void keep_pieces(std::string_view bytes) const {
    for (size_t begin = 0; begin < bytes.size(); begin += kOutsidePieceBytes) {
      OutsideAnswers note;
      const std::string_view piece = bytes.substr(begin, kOutsidePieceBytes);
      note.piece.assign(piece.begin(), piece.end());
      keep(OutsideNote::kAnswers, std::move(note));
    }
  }
  std::string read_pieces(uint64_t num_bytes) const {
    std::string bytes;
    while (bytes.size() < num_bytes) {
      const auto note = next_note();
      if (!note.ok() || note->piece.empty()) break;
      bytes.append(note->piece.begin(), note->piece.end());
    }
    return bytes;
  }
};

class RecordingOutside final : public Outside {
 public:
  RecordingOutside(std::shared_ptr<Outside> outside, KeepAnswer keep)
      : outside_(std::move(outside)), notes_("outside", nullptr, std::move(keep)) {}

  Status ask(OutsideCall call) override {
    OutsideCall open = call;
    RETURN_IF_ERROR(outside_->ask(std::move(call)));
    const uint64_t id = open.id;
    open_.calls.insert_or_assign(id, std::move(open));
    return ok();
  }
  void forget(uint32_t pool, uint64_t session) override { outside_->forget(pool, session); }
  std::vector<OutsideAnswer> receive_answers() override {
    auto answers = outside_->receive_answers();
    notes_.keep_all(answers);
    for (const OutsideAnswer& answer : answers) open_.calls.erase(answer.id);
    return answers;
  }
  void stop() override {
    open_.calls.clear();
    outside_->stop();
  }
  void set_wake(std::function<void()> wake) override { outside_->set_wake(std::move(wake)); }
  void begin_tenant(OutsideSpec spec) override {
    open_.calls.clear();
    outside_->begin_tenant(std::move(spec));
  }
  void end_tenant() override {
    open_.calls.clear();
    outside_->end_tenant();
  }
  Status step() override { return outside_->step(); }
  bool has_work() const override { return outside_->has_work(); }
  Duration take_cost() override { return outside_->take_cost(); }
  std::string describe() const override { return outside_->describe(); }
  Blob save_state() const override { return written_state(open_); }
  Status restore_state(const Blob& state) override {
    ASSIGN_OR_RETURN(open_, read_state<OpenCalls>(state));
    return outside_->restore_state(state);
  }

 private:
  const std::shared_ptr<Outside> outside_;
  const OutsideNotes notes_;
  OpenCalls open_;
};

class ReplayedOutside final : public Outside {
 public:
  explicit ReplayedOutside(NextAnswer next) : notes_("outside", std::move(next), nullptr) {}

  Status ask(OutsideCall) override { return ok(); }
  void forget(uint32_t, uint64_t) override {}
  std::vector<OutsideAnswer> receive_answers() override { return notes_.read_all(); }
  void stop() override {}
  void set_wake(std::function<void()>) override {}
  Status restore_state(const Blob&) override { return ok(); }

 private:
  const OutsideNotes notes_;
};

/// Before the run resumes nothing is started. Then the calls without an answer are asked again.
class ResumingOutside final : public Outside {
 public:
  explicit ResumingOutside(ResumingOutsideSetup setup)
      : setup_(std::move(setup)), notes_("outside", setup_.next, nullptr) {}

  Status ask(OutsideCall call) override {
    RETURN_IF_ERROR(look());
    if (outside_ != nullptr) return outside_->ask(std::move(call));
    const uint64_t id = call.id;
    open_.calls.insert_or_assign(id, std::move(call));
    return ok();
  }
  void forget(uint32_t pool, uint64_t session) override {
    if (look().ok() && outside_ != nullptr) outside_->forget(pool, session);
  }
  std::vector<OutsideAnswer> receive_answers() override {
    if (!look().ok()) return {};
    if (outside_ != nullptr) return outside_->receive_answers();
    auto answers = notes_.read_all();
    for (const OutsideAnswer& answer : answers) open_.calls.erase(answer.id);
    return answers;
  }
  void stop() override {
    open_.calls.clear();
    if (look().ok() && outside_ != nullptr) outside_->stop();
  }
  void set_wake(std::function<void()> wake) override {
    wake_ = wake;
    if (outside_ != nullptr) outside_->set_wake(std::move(wake));
  }
  void begin_tenant(OutsideSpec spec) override {
    open_.calls.clear();
    if (look().ok() && outside_ != nullptr)
      outside_->begin_tenant(std::move(spec));
    else
      tenant_ = std::move(spec);
  }
  void end_tenant() override {
    open_.calls.clear();
    if (look().ok() && outside_ != nullptr)
      outside_->end_tenant();
    else
      tenant_.emplace();
  }
  Status step() override {
    RETURN_IF_ERROR(look());
    return outside_ == nullptr ? ok() : outside_->step();
  }
  /// At the end of the record there is work: the calls without an answer.
  bool has_work() const override {
    if (outside_ == nullptr) return setup_.is_live();
    return outside_->has_work();
  }
  Duration take_cost() override { return outside_ == nullptr ? Duration() : outside_->take_cost(); }
  std::string describe() const override { return outside_ == nullptr ? "" : outside_->describe(); }
  Status restore_state(const Blob& state) override {
    ASSIGN_OR_RETURN(open_, read_state<OpenCalls>(state));
    return ok();
  }

 private:
  Status look() {
    if (outside_ != nullptr || !fault_.ok() || !setup_.is_live()) return fault_;
    auto made = setup_.make();
    if (!made.ok()) {
      fault_ = std::move(made).error();
      return fault_;
    }
    outside_ = std::move(*made);
    // Before its processes start: those of the plan's tenant are not needed.
    if (tenant_) outside_->begin_tenant(*std::exchange(tenant_, std::nullopt));
    outside_->set_wake(wake_);
    for (auto& [id, call] : std::exchange(open_.calls, {})) {
      OutsideCall again = call;
      ++again.attempt;
      if (fault_.ok()) fault_ = outside_->ask(std::move(again));
    }
    return fault_;
  }

  const ResumingOutsideSetup setup_;
  const OutsideNotes notes_;
  std::shared_ptr<Outside> outside_;  // null: the run follows its record
  std::function<void()> wake_;
  OpenCalls open_;
  std::optional<OutsideSpec> tenant_;  // the newest that joined; no pools: it has left
  Status fault_;
};

}  // namespace

std::shared_ptr<Outside> make_recording_outside(std::shared_ptr<Outside> outside, KeepAnswer keep) {
  return std::make_shared<RecordingOutside>(std::move(outside), std::move(keep));
}

std::shared_ptr<Outside> make_replayed_outside(NextAnswer next) {
  return std::make_shared<ReplayedOutside>(std::move(next));
}

std::shared_ptr<Outside> make_resuming_outside(ResumingOutsideSetup setup) {
  return std::make_shared<ResumingOutside>(std::move(setup));
}

}  // namespace primerl
