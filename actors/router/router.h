/// Chooses the engine that already holds a request's prefix.
///
///   generate ->  [ router ]  -> prefill
///   cancel  ~~~>             ~~~> abort
///   load    ~~~>             ~~~> refused
///
/// Threads: pooled. State: sessions, load guards, held requests. Order: requests of one session
/// keep their order. A request waits here, bounded by `held_max`, until an engine has applied the
/// request's policy version. A guard is taken before the send and released by the engine's own
/// count of requests it has ended: guard = sent - finished.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>

#include "actors/common/request_name.h"
#include "actors/messages/generation.h"
#include "actors/messages/load.h"
#include "actors/router/policies/policy.h"
#include "graph/contract.h"

namespace primerl {

struct RouterOptions {
  std::string policy = "sticky_least_loaded";
  int64_t held_max = 4096;        // requests that wait for an engine; one more is refused
  int64_t sessions_max = 100000;  // sessions remembered; the oldest is forgotten
};

class Router final : public Actor {
 public:
  using Options = RouterOptions;
  static Contract contract();
  explicit Router(const RouterOptions& options);

  Status on_peer(const PeerEvent& event) override;
  bool idle() const override { return held_.empty() && refusals_.empty(); }

 private:
  struct SessionName {
    TenantSlot tenant;
    uint64_t session = 0;
    friend constexpr auto operator<=>(const SessionName&, const SessionName&) = default;
  };
  /// A session's engine, and its newest request there.
  struct Session {
    InstanceId engine;
    uint64_t request = 0;
    uint32_t attempt = 0;
    StepRef cause;
    InstanceId origin;
    uint64_t touched = 0;  // key into by_age_
  };
  struct EngineRecord {
    uint64_t num_sent = 0;
    uint64_t num_finished = 0;
    PolicyVersion applied;
    int32_t num_free_blocks = 0;
    int32_t num_blocks = 0;
    bool is_down = false;
    std::set<SessionName> open;  // whose newest request may still run there
  };
  struct Held {
    GenerateRequest request;
    TenantSlot tenant;
    StepRef cause;
    InstanceId origin;
  };

  /// An answer from here. Without prompt tokens.
  struct Refusal {
    Held held;
    CompletionEnd end = CompletionEnd::kRefused;
    std::string detail;
  };

  Status on_generate(const GenerateRequest& request);
  Status on_load(const EngineLoad& load);
  Status on_cancel(const Cancel& cancel);
  Status on_release();
  void refuse_generate(const GenerateRequest& request, const Error& error);

  /// True when an engine could take it.
  bool route(const Held& held);
  /// Sends held requests that an engine can take now, in order, at most a handler's burst. True
  /// when more could go.
  bool release_held();
  /// Sends refusals for which there is room, at most `most`. True when more could go.
  bool answer_refused(int64_t most);
  void refuse_later(const Held& held, CompletionEnd end, std::string detail);
  void arm(bool has_more);
  void remember(const Held& held, InstanceId engine);
  void forget(std::map<SessionName, Session>::iterator session);
  void send_abort(const Session& session, TenantSlot tenant);
  void refuse(const Held& held, CompletionEnd end, std::string detail);

  const RouterOptions options_;
  // Touched only by handlers.
  std::unique_ptr<RoutePolicy> policy_;
  std::map<InstanceId, EngineRecord> engines_;
  std::map<SessionName, Session> sessions_;
  std::map<RequestName, uint64_t> session_of_;  // newest request of a session -> the session
  std::map<uint64_t, SessionName> by_age_;      // touched -> session
  std::deque<Held> held_;
  /// By who asked, oldest first. Of a lost engine they are as many as were open there, among them
  /// some that it had answered: more than may wait at who asked, so they go as that one takes them.
  std::map<InstanceId, std::deque<Refusal>> refusals_;
  CancelledEarly cancelled_;
  uint64_t touches_ = 0;
  Out<GenerateRequest> prefill_;
  Out<Abort> abort_;
  Out<Completion> refused_;
};

}  // namespace primerl
