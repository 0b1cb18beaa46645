/// Hands prompts to its engine and passes each on when its KV is complete.
///
///   request ->  [ prefill ]  -> done
///   abort  ~~~>              ~~~> refused
///   update ~~~>              ~~~> applied, load
///
/// Threads: the engine's. State: where answers go, per request. Order: `done` follows the engine's
/// order. A request that the engine took in is answered by Decode, also when it ends here: the
/// engine tells the end of a sequence once, and Decode asks. Prefill answers only what the engine
/// never took in. When the engine's queue is full, the newest request waits here and those behind
/// it in the edge, until there is room. A finished prompt's KV is held under a lease: when nobody
/// takes it over in time the engine frees it. Of each session the last prompt is kept
/// (session_prompts.h), and a later turn brings what follows.
#pragma once

#include <deque>
#include <map>
#include <optional>

#include "actors/common/engine_user.h"
#include "actors/common/request_name.h"
#include "actors/messages/generation.h"
#include "actors/prefill/session_prompts.h"

namespace primerl {

struct PrefillOptions {
  std::string engine;
  std::string weights;
  Duration lease = Duration::seconds(30);  // of a finished prompt's KV
  int64_t session_tokens_max = int64_t{1} << 23;
};

class Prefill final : public EngineUser {
 public:
  using Options = PrefillOptions;
  static Contract contract();
  explicit Prefill(const PrefillOptions& options) : options_(options) {}

  Status start(Resources& resources) override;
  Result<bool> work() override;
  bool idle() const override;

 private:
  /// What PrefillDone must say, kept until the prompt is complete.
  struct Submitted {
    uint64_t session = 0;
    uint32_t attempt = 0;
    int32_t num_prompt_tokens = 0;
    StepRef cause;
    InstanceId origin;

    template <class F>
    static void fields(F& f) {
      using S = Submitted;
      f("session", &S::session)("attempt", &S::attempt)("num_prompt_tokens", &S::num_prompt_tokens)(
          "cause", &S::cause)("origin", &S::origin);
    }
  };
  /// A finished prompt that was not passed on yet.
  struct Done {
    PrefillEvent event;
    Submitted submitted;

    template <class F>
    static void fields(F& f) {
      f("event", &Done::event)("submitted", &Done::submitted);
    }
  };
  /// The request that found the engine's queue full, with its whole prompt.
  struct Parked {
    GenerateRequest request;
    RequestName name;
    StepRef cause;
    InstanceId origin;

    template <class F>
    static void fields(F& f) {
      f("request", &Parked::request)("name", &Parked::name)("cause", &Parked::cause)(
          "origin", &Parked::origin);
    }
  };
  struct Lease {
    Time ends;
    SequenceId id;

    template <class F>
    static void fields(F& f) {
      f("ends", &Lease::ends)("id", &Lease::id);
    }
  };

  Status on_request(const GenerateRequest& request);
  Status on_abort(const Abort& abort);
  Status on_lease();
  void refuse_request(const GenerateRequest& request, const Error& error);

  Status submit(const GenerateRequest& request, const std::vector<int32_t>& prompt,
                RequestName name, StepRef cause, InstanceId origin);
  /// Tries the parked request again; in the end its answer, or the engine has it.
  void submit_parked();
  Parked unpark();
  void pass_on(const Done& done);
  void answer(const GenerateRequest& request, FinishReason end, std::string detail,
              const SendOptions& options = {});
  void answer_parked(const Parked& parked, FinishReason end, std::string detail);
  void fill(EngineLoad& load, const EngineState& state) const override;
  bool is_news(const EngineLoad& told, const EngineLoad& now) const override;

  const PrefillOptions options_;
  size_t sessions_max_ = 0;  // constant after start
  // Touched only by handlers.
  std::map<RequestName, Submitted> submitted_;
  std::deque<Done> done_waiting_;  // taken from the engine, not passed on yet
  std::optional<Parked> parked_;   // `request` is paused
  std::deque<Lease> leases_;       // passed on, in the order of their ends
  bool is_lease_armed_ = false;
  CancelledEarly cancelled_;
  SessionPrompts sessions_;
  uint64_t num_received_ = 0;
  Out<PrefillDone> done_;
  Out<Completion> refused_;
};

}  // namespace primerl
