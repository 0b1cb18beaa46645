/// Submits prompts to its engine and forwards each when its KV is complete.
///
///   request ->  [ prefill ]  -> done
///   abort  ~~~>              ~~~> refused
///   update ~~~>              ~~~> applied, load
///
/// Threads: the engine's. State: for each request, where its answer goes. Order: `done` follows the
/// engine's order. Decode answers every request that the engine accepted, also one that ends here,
/// because the engine reports the end of a sequence once, to Decode. Prefill answers only requests
/// that the engine did not accept. When the engine's queue is full, the newest request waits here,
/// and later ones wait in the edge. A finished prompt's KV is kept under a lease: if Decode does
/// not take it over in time, the engine frees it. The last prompt of each session is kept
/// (session_prompts.h); a later turn sends only what follows it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>

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
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind) override;

 private:
  /// The fields of PrefillDone, kept until the prompt is complete.
  struct Submitted {
    uint64_t session = 0;
    uint32_t attempt = 0;
    int32_t num_prompt_tokens = 0;
    StepRef cause;
    InstanceId origin;
    AdapterId adapter;  // of the weights key

    template <class F>
    static void fields(F& f) {
      using S = Submitted;
      f("session", &S::session)("attempt", &S::attempt)("num_prompt_tokens", &S::num_prompt_tokens)(
          "cause", &S::cause)("origin", &S::origin)("adapter", &S::adapter);
    }
  };
  /// A finished prompt that was not forwarded yet.
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

  void count_sessions();
  Status submit(const GenerateRequest& request, const std::vector<int32_t>& prompt,
                RequestName name, StepRef cause, InstanceId origin);
  /// Submits the parked request again. Then the engine has it, or it is answered, or it stays
  /// parked.
  void submit_parked();
  Parked unpark();
  void send_done(const Done& done);
  void answer(const GenerateRequest& request, FinishReason end, std::string detail,
              const SendOptions& options = {});
  void answer_parked(const Parked& parked, FinishReason end, std::string detail);
  void fill(EngineLoad& load, const EngineState& state) const override;
  bool has_changed(const EngineLoad& told, const EngineLoad& now) const override;
  void on_drop(WeightsKey key) override;
  /// Drops the keys of dropping_ without a prompt in submitted_ from the engine.
  void drop_idle_keys();

  const PrefillOptions options_;
  size_t sessions_max_ = 0;  // of the tenants that are there
  // Touched only by handlers.
  std::map<RequestName, Submitted> submitted_;
  std::deque<Done> done_waiting_;  // prefilled in the engine, not forwarded yet
  std::optional<Parked> parked_;   // the port `request` is paused
  std::deque<Lease> leases_;       // of forwarded prompts, in the order of their ends
  bool is_lease_armed_ = false;
  std::set<WeightsKey> dropping_;  // snapshots that the engine still has
  CancelledEarly cancelled_;
  SessionPrompts sessions_;
  uint64_t num_received_ = 0;
  Out<PrefillDone> done_;
  Out<Completion> refused_;
};

}  // namespace primerl
