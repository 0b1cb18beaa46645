/// Makes groups of rollouts from tasks: requests tokens turn by turn, sends actions to the
/// environment, sends finished groups to the trainer and writes how every rollout ended.
///
///   task, turn ->  [ rollout ]  -> generate, group
///   completion, observation ~~~>   ~~~> action, cancel
///   ended, policy           ~~~>   ~~~> run, cancel_runs, closed
///   run_answered, address   ~~~>
///
/// Threads: pooled. State: all rollouts of one tenant. Order: groups open in task order, when the
/// gate (gate.h) allows it. Each turn appends to the same tokens; they are never tokenised again,
/// unless `[tenant.x.chat] history` is "template" (docs/design/samples.md).
/// Every rollout ends exactly once, and only this actor writes that end to rollouts.jsonl.
///
/// Evaluations (evaluation.h) are groups too: of rows that the environment is asked for, with
/// ordinals of their own. They open before training groups, whatever the gate says, count as in
/// flight, and end here as `evaluated`: the trainer never gets them.
///
/// A tenant may have several environments: a group has that of its task, with its sampling, limits
/// and rewards (Tenant::in_environment). The rewards of groups of an environment with a curriculum
/// are sent to the instance that gives the tasks, in actions of turn -2, one at a time.
///
/// A task with `data` is driven (docs/design/verifiers.md): the environment's server plays its
/// rollouts and asks the gateway, which sends each turn here. Samples follow when both are done.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "actors/common/known_routers.h"
#include "actors/common/tenant_chat.h"
#include "actors/common/token_budget.h"
#include "actors/messages/policy.h"
#include "actors/messages/run.h"
#include "actors/rollout/environments.h"
#include "actors/rollout/evaluation.h"
#include "actors/rollout/gate.h"
#include "actors/rollout/group.h"
#include "actors/rollout/pace.h"
#include "actors/rollout/rollout_log.h"
#include "actors/rollout/run_metrics.h"
#include "graph/contract.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

struct RolloutOptions {
  std::string model;              // model whose tokenizer is used; empty = the only model
  int64_t max_inflight = 64;      // rollouts at once
  std::string pace = "adaptive";  // or "full": as many groups as the staleness limit permits
  int64_t attempts_max = 3;       // engine losses or failures that one rollout survives
  bool log_tokens = false;        // write token ids and log-probabilities into rollouts.jsonl
  bool evaluates_only = false;    // no training: one evaluation of the engines' own weights
};

class Rollout final : public Actor {
 public:
  using Options = RolloutOptions;
  static Contract contract();
  explicit Rollout(const RolloutOptions& options) : options_(options) {}

  Status start(Resources& resources) override;
  Status drain() override;
  /// While its tenant is paused it opens no group and no row of an evaluation.
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind) override;
  bool idle() const override;
  Status on_peer(const PeerEvent& event) override;

 private:
  /// A rollout: the ordinal of its group and its index in the group.
  struct MemberId {
    uint64_t ordinal = 0;
    size_t member = 0;
    friend constexpr auto operator<=>(const MemberId&, const MemberId&) = default;
    template <class F>
    static void fields(F& f) {
      f("ordinal", &MemberId::ordinal)("member", &MemberId::member);
    }
  };

  Status on_task(const Task& task);
  Status on_completion(const Completion& completion);
  Status on_observation(const Observation& observation);
  Status on_ended(const GroupEnded& ended);
  Status on_policy(const PolicyLive& live);
  Status on_deadline();
  Status on_reissue();
  Status on_budget();
  Status on_last_version();

  // rollout.cc: groups
  /// The last call of every handler: sends cancels, opens the waiting task if the gate allows it,
  /// sets the timer.
  Status finish_handler();
  void open_held_task();
  void open(const Task& task);
  /// Begins the rollouts of a group, of which no prompt is known yet.
  void make_members(Group& group, int64_t count);
  /// Sends the first request of each.
  void start_members(Group& group, const Task& task);
  void deliver_if_done(uint64_t ordinal);
  /// The trainer has made `version`: updates the pace and drops groups that no batch can use any
  /// more.
  void on_version_made(PolicyVersion version);
  /// Drops every group in flight that no batch can use any more.
  void drop_stale();
  /// Ends all groups that are not delivered as cancelled; evaluations only if the run ends.
  void drop_open(const std::string& reason);
  void drop(uint64_t ordinal, RolloutEnd end, const std::string& reason);
  void write_end(Group& group, size_t member, const RolloutEnded& ended);
  void write_line(std::string_view file, const std::string& line);
  int64_t inflight() const;
  void charge_completion(MemberId member_id, const Completion& completion);
  void charge(size_t num_tokens) {
    budget_.charge(static_cast<int64_t>(num_tokens), tenant().tokens_per_second, services().now());
  }
  /// The task that Env sends after the last one of all epochs.
  bool is_end_of_tasks(const Task& task) const {
    return tenant().tasks_max > 0 && std::cmp_greater_equal(task.ordinal, tenant().tasks_max);
  }
  GateLimits gate_limits() const;

  // rollout_evaluation.cc
  bool evaluates() const { return options_.evaluates_only || tenant().eval.is_on(); }
  /// Opens a row, begins or ends an evaluation, and ends the run after the last one.
  void advance_evaluation();
  void open_row();
  void end_row_if_done(uint64_t ordinal);
  void end_evaluation();
  /// Whether no further batch will train: max_steps is reached, or all epochs were given and the
  /// groups that are left do not fill a batch.
  bool is_training_over() const;
  void end_run_if_over();
  /// The options with which the rollouts of a group sample.
  const TenantSampling& sampling_of(uint64_t ordinal) const {
    const uint32_t environment = groups_.at(ordinal).source.environment;
    return is_evaluation(ordinal) ? evaluation_sampling_[environment]
                                  : tenant().in_environment(environment).sampling;
  }
  /// The tenant as the environment of a group sees it.
  const Tenant& tenant_of(const Group& group) const {
    return tenant().in_environment(group.source.environment);
  }
  const Tenant& tenant_of(uint64_t ordinal) const { return tenant_of(groups_.at(ordinal)); }

  // rollout_turns.cc: one rollout
  void next_turn(MemberId member_id);
  /// The ids of a task: its conversation in the chat template, or its plain prompt.
  Result<std::vector<int32_t>> prompt_of(const Task& task, Group& group);
  /// Tokens that the next turn reads: those that follow, or the first ones of a new sample.
  struct NextPrompt {
    std::vector<int32_t> tokens;
    bool begins_sample = false;
  };
  /// The observation after the last answer, in the chat template or as plain text.
  Result<NextPrompt> next_prompt(MemberId member_id, const Observation& observation);
  /// The same where history is "template": the whole conversation is rendered.
  Result<NextPrompt> whole_prompt(const Group& group, const Member& member,
                                  const std::vector<ChatMessage>& added, const Json* tools) const;
  /// Whether a token can be sampled after these.
  bool fits(uint64_t ordinal, const Trajectory& trajectory, const NextPrompt& next) const;
  void append_prompt(Member& member, const NextPrompt& next);
  /// Tokens that the next turn may sample: what the tenant allows, within seq_len of its sample.
  int64_t turn_tokens_max(MemberId member_id) const;
  void send_request(MemberId member_id);
  Result<std::string> text_of(const Completion& completion, const TenantSampling& sampling) const;
  void take_tokens(MemberId member_id, const Completion& completion);
  /// Restarts the time limit of its environment: the time of `num_calls` calls.
  void begin_environment_time(MemberId member_id, int64_t num_calls);
  /// Sends the turns that its environment does not have yet. If there is no environment, it sends
  /// them later.
  void send_action(MemberId member_id);
  /// A group has ended; `reward` counts in the curriculum of its environment.
  void add_score(const Group& group, std::optional<double> reward);
  /// Sends the rewards of delivered groups to the environments' curricula.
  void send_scores();
  /// The rollout does not need its environment any more.
  void release_environment(Member& member);
  /// An environment instance has gone, and the state of its trajectories with it.
  void on_environment_lost(InstanceId environment);
  void issue_again(MemberId member_id, const std::string& why);
  /// Sends the turn again with its whole prompt: the engine does not have the session's earlier
  /// turns.
  void send_whole(MemberId member_id);
  void finish(MemberId member_id, double reward, bool is_truncated);
  void fail(MemberId member_id, std::string fault);
  /// Cancels whatever the rollout is waiting for.
  void abandon(MemberId member_id);
  Member& member_at(MemberId member_id) {
    return groups_.at(member_id.ordinal).members[member_id.member];
  }

  // rollout_runs.cc: rollouts that their environment drives
  Status on_run_answered(const RunAnswered& ended);
  Status on_turn(const MemberTurn& turn);
  Status on_address(const GatewayAddress& address);
  void start_runs(Group& group);
  /// If there is no environment, it is sent later.
  void send_run(MemberId first);
  /// Begins the run anew, under another name.
  void repeat_run(MemberId first, const std::string& why);
  /// Both its server and the gateway are done with it.
  void complete_run(MemberId first);
  void finish_run(MemberId member_id, const MemberResult& result, DrivenRun::Samples samples);
  void add_texts(Member& member) const;
  void fail_run(MemberId first, const std::string& fault);
  /// The run is of no use any more: it is cancelled, and counts as in flight until that is done.
  void abandon_run(MemberId first);
  void on_turn_without_run(const MemberTurn& turn);
  void close_run(const MemberName& name) { runs_to_close_.push_back(name); }
  void send_run_ends();
  void publish_run_metrics();
  int64_t members_of_run(const Group& group) const {
    return group.scores_groups ? std::ssize(group.members) : 1;
  }
  MemberName name_of(MemberId member_id) const;
  /// The member whose open run has this name; none if there is no such run.
  std::optional<MemberId> find_run(const MemberName& name) const;
  Duration run_time(const Group& group) const;

  void send_cancels();
  void watch(MemberId member_id);
  void unwatch(MemberId member_id);
  void arm_deadline();
  SendOptions send_options() const { return for_tenant(tenant_).to_origin_of(services().self()); }
  const Tenant& tenant() const { return services().tenant(tenant_); }

  /// The trajectory of actions that bring scores; no rollout has it.
  static constexpr uint64_t kScoresTrajectory = UINT64_MAX;

  const RolloutOptions options_;
  // Constant after start.
  Tokenizer* tokenizer_ = nullptr;
  /// The chat format, or why there is none: it counts only if a task needs it.
  std::optional<Result<chat::ChatFormat>> chat_;
  bool has_user_prompts_ = false;
  bool is_driven_ = false;           // its environment calls the policy itself
  bool is_paused_ = false;           // its tenant; follows from on_tenant() and is not saved
  std::vector<bool> sends_prompts_;  // to each environment outside, for rewards
  TenantSlot tenant_;
  uint32_t base_attempt_ = 0;                        // times this run was resumed
  std::vector<TenantSampling> evaluation_sampling_;  // of each environment
  // Touched only by handlers.
  PolicyVersion live_;
  PolicyVersion made_;  // newest version that the trainer has made, as far as known
  GateCounts counts_;
  Pace pace_;
  TokenBudget budget_;
  Evaluations evaluations_;
  std::map<uint64_t, Group> groups_;  // by ordinal: in flight, or with the trainer
  std::map<uint64_t, MemberId> requests_;
  std::map<uint64_t, MemberId> trajectories_;  // waiting for an observation
  std::set<uint64_t> cancelled_;               // cancelled requests that are not answered yet
  /// Trajectories that ended before their action was answered, with the instance that has the
  /// action. They count as in flight until it answers. Otherwise a stuck environment could get more
  /// actions than the edge's bound.
  std::map<uint64_t, InstanceId> abandoned_actions_;
  /// Runs that were abandoned, and who still has to answer.
  struct AbandonedRun {
    InstanceId environment;     // none: it has answered
    bool is_at_gateway = true;  // it has not
    template <class F>
    static void fields(F& f) {
      f("environment", &AbandonedRun::environment)("is_at_gateway", &AbandonedRun::is_at_gateway);
    }
  };
  std::map<MemberName, AbandonedRun> abandoned_runs_;
  std::string base_url_;                                    // of the gateway; empty: not known yet
  uint64_t seal_key_ = 0;                                   // of the names that the gateway knows
  std::map<uint32_t, RunMetrics> run_metrics_;              // by environment
  std::vector<MemberName> runs_to_cancel_, runs_to_close_;  // by this handler
  Environments environments_;
  std::vector<GroupScored> scores_;       // not sent yet
  std::vector<GroupScored> sent_scores_;  // not answered yet
  InstanceId scores_target_;              // that has them; none: nothing is sent
  std::set<MemberId> actions_to_resend_;  // their environment has gone; actions to send again
  std::vector<uint64_t> to_cancel_;       // requests cancelled by this handler
  std::vector<uint64_t> answered_;        // to be reported to the router with the next request
  std::set<MemberId> to_reissue_;  // requests that are sent, perhaps again, when a router is there
  std::set<std::pair<Time, MemberId>> deadlines_;
  std::optional<Time> armed_;
  std::optional<Task> held_task_;
  uint64_t next_request_ = 0;
  int64_t num_asked_ = 0;  // requests sent by this handler
  int64_t num_acted_ = 0;  // actions sent by this handler
  uint64_t next_trajectory_ = 0;
  KnownRouters routers_;
  bool has_ended_ = false;  // the trainer accepts no more groups
  // The last evaluation is due or runs, and ends the tenant: groups in flight were dropped, so a
  // larger max_steps comes too late.
  bool is_ending_ = false;
  bool is_draining_ = false;
  bool has_logged_file_fault_ = false;
  Out<GenerateRequest> generate_;
  Out<Action> action_;
  Out<TrajectoryGroup> group_;
  Out<Cancel> cancel_;
  Out<Run> run_;
  Out<CancelRuns> cancel_runs_;
  Out<MemberClosed> closed_;
};

}  // namespace primerl
