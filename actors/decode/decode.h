/// Takes over prefilled sequences, decodes them in the running batch and answers each request.
///
///   request ->  [ decode ]
///   abort  ~~~>            ~~~> completion
///   hold   ~~~>
///   update ~~~>            ~~~> applied, load
///
/// Threads: the engine's. State: for each request, where its answer goes. Order: completions follow
/// the engine's order. Each request has exactly one Completion:
///
/// * until the engine has reported to Prefill that the prompt is complete, Decode answers with the
///   engine's FinishEvent. Decode does not know the session and attempt of such a request and sends
///   0; the request number names it.
/// * after that, Decode answers the PrefillDone: with the completion of the sequence that it took
///   over, with a FinishEvent that came before it (an abort, an ended lease), or with a refusal, if
///   this engine does not know the sequence.
///
/// `hold` pauses the engine for an owner with a lease. A timer ends the lease, so a replay repeats
/// it. A drain ends all leases.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "actors/common/engine_holds.h"
#include "actors/common/engine_user.h"
#include "actors/common/request_name.h"
#include "actors/messages/generation.h"

namespace primerl {

/// Logged once, at info level, when the engine has made its first token since this start. The
/// runtime reports it to the control plane, which writes the time into run.json.
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
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind) override;

 private:
  /// The fields of the answer that the engine does not know.
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
  /// The fields of a FinishEvent that an answer needs. Its own fields() leave out lists that may be
  /// larger than a message.
  struct Finished : FinishEvent {
    template <class F>
    static void fields(F& f) {
      using E = Finished;
      f("id", &E::id)("reason", &E::reason)("detail", &E::detail)("tokens", &E::tokens)(
          "logprobs", &E::logprobs)("spans", &E::spans)("kept", &E::kept)(
          "num_cached_tokens", &E::num_cached_tokens)("ranks", &E::ranks)(
          "top_logprobs", &E::top_logprobs)("prompt_logprobs", &E::prompt_logprobs)(
          "prompt_top_logprobs", &E::prompt_top_logprobs)("routed", &E::routed);
    }
  };

  Status on_request(const PrefillDone& done);
  /// An error if this decode cannot take the handle over, whatever its engine knows; else ok.
  Status check_handle(const KvHandle& kv, RequestName name) const;
  FinishEvent refusal_of(const Error& why);
  Status on_abort(const Abort& abort);
  Status on_hold(const EngineHold& hold);
  Status on_hold_end();
  /// Pauses or resumes the engine as holds_ says, and sets the timer for the next end of a lease.
  void apply_holds();

  void take_finished();
  /// Whether the tenant that sent the request is there. One that left may leave sequences behind.
  bool is_present(RequestName name) const;
  void answer(const FinishEvent& event);
  void answer(const FinishEvent& event, RequestName name, const Known& known);
  void fill(EngineLoad& load, const EngineState& state) const override;
  bool has_changed(const EngineLoad& told, const EngineLoad& now) const override;
  void on_drop(WeightsKey key) override { dropping_.insert(key); }
  void log_first_token();

  // Touched only by handlers.
  std::map<RequestName, Known> running_;  // sequences that this decode took over
  RequestsByAge<Known> aborted_;          // aborted before they were taken over
  /// Sequences that ended after PrefillDone was sent and before it arrived. At most as many as the
  /// edge has messages.
  std::map<SequenceId, Finished> ended_early_;
  std::deque<Finished> finished_;  // ended in the engine, not answered yet
  /// Snapshots that Prefill may never have heard of. They leave the engine when it has no prompt
  /// that was not taken over: Prefill hands those over first, so that their ends have a receiver.
  std::set<WeightsKey> dropping_;
  EngineHolds holds_;
  std::optional<Time> held_since_;  // when the engine was paused; none while it runs
  StepRef last_cause_;
  uint64_t num_finished_ = 0;
  bool has_logged_first_token_ = false;
  Out<Completion> completion_;
};

}  // namespace primerl
