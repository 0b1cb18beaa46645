/// Chooses the engine that already holds a request's prefix.
///
///   generate ->  [ router ]  -> prefill
///   cancel  ~~~>             ~~~> abort
///   load    ~~~>             ~~~> refused
///
/// Threads: pooled. State: sessions, load guards, held requests. Order: requests of one session
/// keep their order. A request waits here until an engine has applied its tenant's policy version
/// and has room in its queue, and where the policy gives a session one engine, until that one has.
/// As many wait as all tenants may have in flight; nothing is refused for lack of room. A guard is
/// taken before the send and released by the engine's own count of requests it has ended: guard =
/// sent - finished. An engine that fails what it gets has an open circuit breaker: while another
/// can serve, new requests go there, and those it owes stay. What an engine owes is known by
/// request: whoever asks tells which ones were answered, so that an engine's death is answered for
/// the rest alone.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/common/request_name.h"
#include "actors/messages/generation.h"
#include "actors/messages/load.h"
#include "actors/router/circuit_breaker.h"
#include "actors/router/held_requests.h"
#include "actors/router/policies/policy.h"
#include "actors/router/prefix_table.h"
#include "actors/router/session_table.h"
#include "graph/contract.h"

namespace primerl {

struct RouterOptions {
  std::string policy = "sticky_least_loaded";
  int64_t sessions_max = 100000;      // sessions remembered; the oldest is forgotten
  int64_t prefix_blocks_max = 32768;  // of each engine, 32 tokens each; for `cache_aware`
};

class Router final : public Actor {
 public:
  using Options = RouterOptions;
  /// `policies` are what the option `policy` may name.
  static Contract contract(std::vector<RoutePolicyContract> policies = route_policies());
  explicit Router(const RouterOptions& options,
                  const std::vector<RoutePolicyContract>& policies = route_policies());

  Status start(Resources& resources) override;
  Status on_peer(const PeerEvent& event) override;
  bool idle() const override { return held_.is_empty() && refusals_.empty(); }

 private:
  /// A request that an engine owes an answer.
  struct Owed {
    InstanceId engine;
    uint64_t session = 0;
    uint32_t attempt = 0;
    StepRef cause;
    InstanceId origin;
    template <class F>
    static void fields(F& f) {
      f("engine", &Owed::engine)("session", &Owed::session)("attempt", &Owed::attempt)(
          "cause", &Owed::cause)("origin", &Owed::origin);
    }
  };
  /// A request waits for an engine to apply a version.
  struct Behind {
    Time since;
    bool is_too_long = false;  // the engine is not used for this key
    template <class F>
    static void fields(F& f) {
      f("since", &Behind::since)("is_too_long", &Behind::is_too_long);
    }
  };
  struct EngineRecord {
    uint64_t num_sent = 0;
    uint64_t num_received = 0;
    uint64_t num_finished = 0;
    VersionsByKey applied;
    int32_t num_room = 0;
    int32_t num_free_blocks = 0;
    int32_t num_blocks = 0;
    uint64_t incarnation = 0;
    bool is_down = false;
    std::map<WeightsKey, Behind> behind;
    CircuitBreaker breaker;
    PrefixTable prefixes;  // sent to this incarnation; empty unless the policy wants it
    template <class F>
    static void fields(F& f) {
      using R = EngineRecord;
      f("num_sent", &R::num_sent)("num_received", &R::num_received)(
          "num_finished", &R::num_finished)("applied", &R::applied)("num_room", &R::num_room)(
          "num_free_blocks", &R::num_free_blocks)("num_blocks", &R::num_blocks)(
          "incarnation", &R::incarnation)("is_down", &R::is_down)("behind", &R::behind)(
          "breaker", &R::breaker)("prefixes", &R::prefixes);
    }
  };
  /// An answer from here. Without prompt tokens.
  struct Refusal {
    HeldRequest held;
    FinishReason end = FinishReason::kRefused;
    std::string detail;
    template <class F>
    static void fields(F& f) {
      f("held", &Refusal::held)("end", &Refusal::end)("detail", &Refusal::detail);
    }
  };

  Status on_generate(const GenerateRequest& request);
  Status on_load(const EngineLoad& load);
  Status on_cancel(const Cancel& cancel);
  Status on_release();
  void refuse_generate(const GenerateRequest& request, const Error& error);

  /// True when an engine took it.
  bool route(const HeldRequest& held);
  bool can_take(InstanceId engine, const EngineRecord& record, const HeldRequest& held) const;
  /// Whether its breaker allows it another request; half-open it has one at a time.
  bool is_allowed(const EngineRecord& record) const;
  /// Whether there is an engine with a closed breaker that could serve the request, with room or
  /// without. If not, breakers are not heeded: they move work and never stop it.
  bool has_sound_engine(const HeldRequest& held) const;
  void tell(CircuitBreaker::Change change, const EngineLoad& load);
  RouteQuestion question_of(const HeldRequest& held) const;
  /// Empty unless the policy wants to know what engines were sent.
  std::vector<uint64_t> block_names_of(const HeldRequest& held);
  InstanceId home_of(const HeldRequest& held);
  /// What the policy answered, or the first engine when there is none of that index: a policy of a
  /// plugin may be wrong. Told once.
  size_t checked(size_t index, size_t count);
  HeldLane lane_of(const HeldRequest& held);
  void hold(HeldRequest held);
  /// Engines that sessions of a tenant may belong to, without those whose breakers keep them out;
  /// when they are others than before, what waits is sorted anew.
  void update_in_use();
  std::map<WeightsKey, std::vector<InstanceId>> engines_in_use() const;
  /// Sends held requests that an engine can take now, at most a handler's burst. True when more
  /// could go.
  bool release_held();
  /// Sends refusals for which there is room, at most `most`. True when more could go.
  bool answer_refused(int64_t most);
  void refuse_later(HeldRequest held, FinishReason end, std::string detail);
  void refuse(HeldRequest held, FinishReason end, std::string detail);
  void arm(bool has_more);
  void remember(const HeldRequest& held, InstanceId engine);
  void send_abort(RequestName name, const Owed& owed);

  const RouterOptions options_;
  // Constant after start.
  size_t held_max_ = 0;
  /// Of `requests_`: all that may be in flight, and as many whose answers are not reported yet.
  size_t owed_max_ = 0;
  // Touched only by handlers.
  std::optional<RouteBlockNamer> namer_;  // of a policy that wants it; has no state
  std::unique_ptr<RoutePolicy> policy_;
  bool has_told_fault_ = false;  // of the policy
  std::map<InstanceId, EngineRecord> engines_;
  std::map<WeightsKey, std::vector<InstanceId>> in_use_;
  bool is_in_use_old_ = false;
  SessionTable sessions_;
  std::map<RequestName, Owed> requests_;
  HeldRequests held_;
  bool is_paused_ = false;
  /// By who asked, oldest first. Those of a lost engine may be more than may wait at who asked, so
  /// they go as that one takes them.
  std::map<InstanceId, std::deque<Refusal>> refusals_;
  CancelledEarly cancelled_;
  Out<GenerateRequest> prefill_;
  Out<Abort> abort_;
  Out<Completion> refused_;
};

}  // namespace primerl
