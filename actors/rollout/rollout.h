/// Turns tasks into groups of rollouts: asks for tokens turn by turn, acts on the environment,
/// hands finished groups to the trainer and writes how every rollout ended.
///
///   task       ->  [ rollout ]  -> generate, group
///   completion, observation ~~~>   ~~~> action, cancel
///   ended, policy           ~~~>
///
/// Threads: pooled. State: all rollouts of one tenant. Order: groups open in task order, under the
/// gate (gate.h). The token prefix of a turn is extended exactly, never tokenised again. Every
/// rollout ends exactly once, and this actor alone writes that end to rollouts.jsonl.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "actors/messages/policy.h"
#include "actors/rollout/environments.h"
#include "actors/rollout/gate.h"
#include "actors/rollout/group.h"
#include "actors/rollout/pace.h"
#include "actors/rollout/rollout_log.h"
#include "graph/contract.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

struct RolloutOptions {
  std::string model;          // whose tokenizer; empty = the only one
  int64_t max_inflight = 64;  // rollouts at once
  int64_t attempts_max = 3;   // times an engine may be lost, or fail, under one rollout
  bool log_tokens = false;    // token ids and log-probabilities into rollouts.jsonl
};

class Rollout final : public Actor {
 public:
  using Options = RolloutOptions;
  static Contract contract();
  explicit Rollout(const RolloutOptions& options) : options_(options) {}

  Status start(Resources& resources) override;
  Status drain() override;
  bool idle() const override;
  Status on_peer(const PeerEvent& event) override;

 private:
  /// A rollout by its group's ordinal and its place in the group.
  struct Place {
    uint64_t ordinal = 0;
    size_t member = 0;
    friend constexpr auto operator<=>(const Place&, const Place&) = default;
    template <class F>
    static void fields(F& f) {
      f("ordinal", &Place::ordinal)("member", &Place::member);
    }
  };

  Status on_task(const Task& task);
  Status on_completion(const Completion& completion);
  Status on_observation(const Observation& observation);
  Status on_ended(const GroupEnded& ended);
  Status on_policy(const PolicyLive& live);
  Status on_deadline();
  Status on_reissue();

  // rollout.cc: groups
  /// Ends every handler: cancels, opens what the gate allows, arms the timer.
  Status settle();
  void open_held_task();
  void open(const Task& task);
  void deliver_if_done(uint64_t ordinal);
  /// The trainer has made `version`: the pace looks at it, and what no batch can take is dropped.
  void learn_made(PolicyVersion version);
  /// Drops every group in flight that no batch can take any more.
  void drop_stale();
  /// Ends all groups that are not delivered as cancelled.
  void drop_open(const std::string& reason);
  void drop(uint64_t ordinal, RolloutEnd end, const std::string& reason);
  void write_end(Group& group, size_t member, const RolloutEnded& ended);
  int64_t inflight() const;
  GateLimits gate_limits() const;

  // rollout_turns.cc: one rollout
  void next_turn(Place place);
  /// Tokens that the next turn may sample: what the tenant allows, within seq_len.
  int64_t turn_tokens_max(const Trajectory& trajectory) const;
  void send_request(Place place);
  Result<std::string> text_of(const Completion& completion) const;
  void take_tokens(Place place, const Completion& completion);
  /// From now on its environment has the time of so many calls.
  void begin_environment_time(Place place, int64_t num_calls);
  /// Tells its environment the turns that it does not know yet; later, when there is none now.
  void send_action(Place place);
  /// The rollout needs its environment no more.
  void let_go_of_environment(Member& member);
  /// What an environment instance had is gone with it.
  void leave_environment(InstanceId environment);
  void issue_again(Place place, const std::string& why);
  /// The turn again: its engine does not have the session's earlier turns.
  void send_whole(Place place);
  void finish(Place place, double reward, bool is_truncated);
  void fail(Place place, std::string fault);
  /// Stops waiting for whatever the rollout waits for.
  void abandon(Place place);
  Member& member_at(Place place) { return groups_.at(place.ordinal).members[place.member]; }

  void send_cancels();
  void watch(Place place);
  void unwatch(Place place);
  void arm_deadline();
  SendOptions mine() const { return for_tenant(tenant_).to_origin_of(services().self()); }
  const Tenant& tenant() const { return services().tenant(tenant_); }

  const RolloutOptions options_;
  // Constant after start.
  Tokenizer* tokenizer_ = nullptr;
  TenantSlot tenant_;
  uint32_t base_attempt_ = 0;  // times this run was resumed
  // Touched only by handlers.
  PolicyVersion live_;
  PolicyVersion made_;  // newest version that the trainer is known to have made
  GateCounts counts_;
  Pace pace_;
  std::map<uint64_t, Group> groups_;  // by ordinal: in flight, or with the trainer
  std::map<uint64_t, Place> requests_;
  std::map<uint64_t, Place> trajectories_;  // waiting for an observation
  std::set<uint64_t> cancelled_;            // requests without an owner, still to be answered
  /// Trajectories that ended before their action was answered, and who has it. They count as in
  /// flight until then: a stuck environment would else be sent more actions than the edge is bound
  /// to hold.
  std::map<uint64_t, InstanceId> abandoned_actions_;
  Environments environments_;
  std::set<Place> to_act_;           // whose environment went away
  std::vector<uint64_t> to_cancel_;  // requests of this handler
  std::vector<uint64_t> answered_;   // the router is told with the next request
  std::set<Place> to_reissue_;
  std::set<std::pair<Time, Place>> deadlines_;
  std::optional<Time> armed_;
  std::optional<Task> held_task_;
  uint64_t next_request_ = 0;
  int64_t num_asked_ = 0;  // requests of this handler
  uint64_t next_trajectory_ = 0;
  std::set<InstanceId> routers_;
  bool has_ended_ = false;  // the trainer takes no more groups
  bool is_draining_ = false;
  bool told_file_fault_ = false;
  Out<GenerateRequest> generate_;
  Out<Action> action_;
  Out<TrajectoryGroup> group_;
  Out<Cancel> cancel_;
};

}  // namespace primerl
