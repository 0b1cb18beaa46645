/// Chooses an engine for each request, if possible the one that has its prefix.
///
///   generate ->  [ router ]  -> prefill
///   cancel  ~~~>             ~~~> abort
///   load    ~~~>             ~~~> refused
///
/// Threads: pooled. State: sessions, open requests of each engine, held requests. Order: requests
/// of one session keep their order.
/// A request waits here until an engine has applied the policy version of its weights key and has
/// free space in its queue. A request for a snapshot that an engine has dropped is refused. If the
/// policy gives a session one engine, it waits for that engine. As many requests wait as all
/// tenants may have in flight; none is refused because the engines are full. The open requests of
/// an engine are sent - finished: a request counts before it is sent, and until the engine reports
/// that it has ended. If an engine fails its requests, its circuit breaker opens: new requests go
/// to other engines while one can serve, and its open requests stay. The router knows each
/// unanswered request of an engine, because the senders report which ones were answered. If an
/// engine dies, the router answers exactly the unanswered requests.
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
#include "kernels/weights/weights_key.h"

namespace primerl {

struct RouterOptions {
  std::string policy = "sticky_least_loaded";
  int64_t sessions_max = 100000;      // sessions remembered; the oldest is forgotten
  int64_t prefix_blocks_max = 32768;  // blocks of 32 tokens per engine; for `cache_aware`
};

class Router final : public Actor {
 public:
  using Options = RouterOptions;
  /// `policies` are the possible values of the option `policy`.
  static Contract contract(std::vector<RoutePolicyContract> policies = route_policies());
  explicit Router(const RouterOptions& options,
                  const std::vector<RoutePolicyContract>& policies = route_policies());

  Status start(Resources& resources) override;
  Status on_peer(const PeerEvent& event) override;
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind) override;
  bool idle() const override { return held_.is_empty() && refusals_.empty(); }

 private:
  /// A request that an engine has not answered yet.
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
  /// Since when a request has waited for an engine to apply a version.
  struct VersionWait {
    Time since;
    bool is_too_long = false;  // the engine is not used for this key
    template <class F>
    static void fields(F& f) {
      f("since", &VersionWait::since)("is_too_long", &VersionWait::is_too_long);
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
    std::map<WeightsKey, VersionWait> behind;
    CircuitBreaker breaker;
    PrefixTable prefixes;  // prefixes sent to this incarnation; empty unless the policy uses them
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
  /// A Completion that the router itself will send; its request has no prompt tokens.
  struct Refusal {
    HeldRequest held;
    FinishReason end = FinishReason::kRefused;
    std::string detail;
    template <class F>
    static void fields(F& f) {
      f("held", &Refusal::held)("end", &Refusal::end)("detail", &Refusal::detail);
    }
  };

  struct KeyHash {
    size_t operator()(WeightsKey key) const { return mix(key.tenant.value, key.adapter.value); }
  };

  Status on_generate(const GenerateRequest& request);
  Status on_load(const EngineLoad& load);
  Status on_cancel(const Cancel& cancel);
  Status on_release();
  void refuse_generate(const GenerateRequest& request, const Error& error);

  /// True if an engine accepted it.
  bool route(const HeldRequest& held);
  bool can_take(InstanceId engine, const EngineRecord& record, const HeldRequest& held) const;
  /// Whether the engine's breaker allows another request; a half-open one allows one at a time.
  bool is_allowed(const EngineRecord& record) const;
  /// Whether an engine with a closed breaker could serve the request, with or without free space.
  /// If there is none, breakers are ignored: they move work and never stop it.
  bool has_sound_engine(const HeldRequest& held) const;
  void log_breaker_change(CircuitBreaker::Change change, const EngineLoad& load);
  RouteQuestion question_of(const HeldRequest& held) const;
  /// Empty unless the policy uses num_known_tokens.
  std::vector<uint64_t> block_names_of(const HeldRequest& held);
  /// In the order of their numbers in GenerateRequest::engine.
  std::vector<InstanceId> all_engines() const;
  InstanceId home_of(const HeldRequest& held);
  /// `index`, or 0 if it is not below `count`: a plugin's policy may be wrong. The first time it is
  /// logged.
  size_t checked(size_t index, size_t count);
  HeldLane lane_of(const HeldRequest& held);
  void hold(HeldRequest held);
  /// Updates the engines that sessions of a tenant may use, without those that a breaker excludes.
  /// If the set changed, the held requests are sorted into lanes again.
  void refresh_in_use();
  std::map<WeightsKey, std::vector<InstanceId>> engines_in_use() const;
  WeightsKey key_of(const HeldRequest& held) const;
  /// Whether the engine has applied the version that the request needs.
  bool has_version(const EngineRecord& record, const HeldRequest& held) const;
  bool is_dropped(WeightsKey key) const;
  /// True if a snapshot is gone.
  bool take_versions(EngineRecord& record, const EngineLoad& load);
  /// The engine has dropped the snapshot: its requests are refused from now on.
  void drop(EngineRecord& record, WeightsKey key);
  static std::string detail_of_dropped(WeightsKey key);
  /// Sends held requests that an engine can accept now, at most the burst of a handler. True if
  /// more could be sent.
  bool release_held();
  /// Sends refusals while there is free space, at most `most`. True if more could be sent.
  bool answer_refused(int64_t most);
  void refuse_later(HeldRequest held, FinishReason end, std::string detail);
  void refuse(HeldRequest held, FinishReason end, std::string detail);
  void arm(bool has_more);
  void remember(const HeldRequest& held, InstanceId engine);
  void send_abort(RequestName name, const Owed& owed);

  void count_limits();
  void drop_tenant(TenantSlot slot);

  const RouterOptions options_;
  // The sum over tenants that are there.
  size_t held_max_ = 0;
  /// Of `requests_`: all that may be in flight, and as many whose answers are not reported yet.
  size_t owed_max_ = 0;
  // Touched only by handlers.
  std::optional<RouteBlockNamer> namer_;  // only for a policy that uses it; has no state
  std::unique_ptr<RoutePolicy> policy_;
  bool has_logged_fault_ = false;  // a wrong choice of the policy was logged
  std::map<InstanceId, EngineRecord> engines_;
  std::map<WeightsKey, std::vector<InstanceId>> in_use_;
  bool in_use_is_stale_ = false;
  SessionTable sessions_;
  std::map<RequestName, Owed> requests_;
  HeldRequests held_;
  bool is_paused_ = false;
  /// By the instance that sent the request, oldest first. A lost engine may leave more refusals
  /// than its edge has space for; they are sent as space becomes free.
  std::map<InstanceId, std::deque<Refusal>> refusals_;
  CancelledEarly cancelled_;
  /// Snapshots that an engine has dropped. A number never comes back, so a name that is kept too
  /// long does no harm. Above kWeightsKeysMax, the oldest is forgotten.
  RecentTable<WeightsKey, NothingKnown, KeyHash> dropped_;
  Out<GenerateRequest> prefill_;
  Out<Abort> abort_;
  Out<Completion> refused_;
};

}  // namespace primerl
