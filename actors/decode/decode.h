/// Takes prefilled sequences over, decodes them in the running batch and answers each request.
///
///   request ->  [ decode ]
///   abort  ~~~>            ~~~> completion
///   hold   ~~~>
///   update ~~~>            ~~~> applied, load
///
/// Threads: the engine's. State: where answers go, per request. Order: completions follow the
/// engine's order. Each request has one Completion, and who owes it is clear at every moment:
///
/// * until Prefill is told that the prompt is complete, the engine's FinishEvent is answered; what
///   Decode does not know of such a one (session, attempt) is 0, the request number names it;
/// * from then on the PrefillDone is: taken over, answered with the FinishEvent that came before
///   it (an abort, an ended lease), or refused, when this engine knows nothing of the sequence.
///
/// `hold` makes the engine stand still for an owner with a lease. A timer ends the lease, so that a
/// replay repeats it; a drain ends them all.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string_view>

#include "actors/common/engine_holds.h"
#include "actors/common/engine_user.h"
#include "actors/common/request_name.h"
#include "actors/messages/generation.h"

namespace primerl {

/// What decode logs, once and as information, when its engine has made the first token of this
/// start: the runtime tells the control plane, which writes the time into run.json.
inline constexpr std::string_view kFirstTokenLine = "the first token is made";

struct DecodeOptions {
  std::string engine;
  std::string weights;
};

class Decode final : public EngineUser {
 public:
  using Options = DecodeOptions;
  static Contract contract();
  explicit Decode(const DecodeOptions& /*options*/) {}

  Result<bool> work() override;
  Status drain() override;
  bool idle() const override;

 private:
  /// What the answer must say besides the tokens.
  struct Known {
    uint64_t session = 0;
    uint32_t attempt = 0;
    StepRef cause;
    InstanceId origin;

    template <class F>
    static void fields(F& f) {
      f("session", &Known::session)("attempt", &Known::attempt)("cause", &Known::cause)(
          "origin", &Known::origin);
    }
  };
  /// The part of a FinishEvent that an answer needs; its own fields() leave out the kept sets.
  struct Finished : FinishEvent {
    template <class F>
    static void fields(F& f) {
      using E = Finished;
      f("id", &E::id)("reason", &E::reason)("detail", &E::detail)("tokens", &E::tokens)(
          "logprobs", &E::logprobs)("spans", &E::spans)("kept", &E::kept)("num_cached_tokens",
                                                                          &E::num_cached_tokens);
    }
  };

  Status on_request(const PrefillDone& done);
  /// Why this decode cannot take the handle over, whatever its engine says; ok when it may.
  Status check_handle(const KvHandle& kv, RequestName name) const;
  FinishEvent refusal_of(const Error& why);
  Status on_abort(const Abort& abort);
  Status on_hold(const EngineHold& hold);
  Status on_hold_end();
  /// Makes the engine do what the book says, and arms the timer for the next end.
  void obey_holds();

  void take_finished();
  void answer(const FinishEvent& event);
  void answer(const FinishEvent& event, RequestName name, const Known& known);
  void fill(EngineLoad& load, const EngineState& state) const override;
  bool is_news(const EngineLoad& told, const EngineLoad& now) const override;
  void tell_first_token();

  // Touched only by handlers.
  std::map<RequestName, Known> running_;  // taken over
  RequestsByAge<Known> aborted_;          // aborted before they were taken over
  /// Ended between PrefillDone's departure and its arrival, which is waited for: as many as the
  /// edge holds.
  std::map<SequenceId, Finished> ended_early_;
  std::deque<Finished> finished_;  // taken from the engine, not answered yet
  EngineHolds holds_;
  std::optional<Time> held_since_;  // the engine stands still
  StepRef last_cause_;
  uint64_t num_finished_ = 0;
  bool has_told_first_token_ = false;
  Out<Completion> completion_;
};

}  // namespace primerl
