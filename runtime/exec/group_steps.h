/// GroupSteps: the steps of an actor group: which input or work call comes next, its run, its end
/// and its record. It also owns the group's resources, which a work call steps.
///
///   begin() -> run() | fail() -> complete()
///                             -> abandon()      // a handler that does not return
///
/// The group chooses its steps by the order of the Inbox, or a StepSource does (replay and
/// recovery). Links send what a step emitted (GroupLinks); actors are restarted and timed by
/// GroupActors.
///
/// Owned by the ActorGroup. Threads: the group's thread, except run() (actor_group.h); any thread
/// may call what is below "From any thread".
#pragma once

#include <memory>
#include <vector>

#include "graph/outside.h"
#include "runtime/exec/group_actors.h"
#include "runtime/exec/group_links.h"

namespace primerl {

class GroupSteps {
 public:
  /// `links` and `actors` must stay valid while the steps exist.
  GroupSteps(std::shared_ptr<GroupCommon> common, GroupLinks& links, GroupActors& actors);

  // Resources -------------------------------------------------------------------------------------

  /// Makes the group's own resources. Once, before the actors start.
  Status make_resources();
  /// kCorrupt when the state has another number of resources.
  Status restore_resources(const GroupState& state);
  /// Tells new resources of the tenants that are not those of the plan. Before restore_resources().
  Status notify_of_joined();
  /// GroupActors::restore_slots(). running_here() is this group meanwhile: each tenant is made for
  /// it.
  Status restore_slots(const GroupState& state, Time now);
  /// Moves them out; the group makes no further step.
  std::vector<std::shared_ptr<Resource>> release_resources();
  bool resources_have_work() const;
  /// Sum of Resource::take_cost().
  Duration cost();

  // Choosing --------------------------------------------------------------------------------------

  /// Whether begin() would begin a step now.
  bool ready() const;
  /// Queues a work call, after the inputs that wait now, if an actor or resource has work.
  void arm_work();
  bool is_work_armed() const { return work_armed_; }
  /// A record has ended, so the group chooses its own steps from now on. Its work call comes after
  /// the inputs that wait.
  void resume();

  // One step --------------------------------------------------------------------------------------

  /// False: no input was eligible.
  bool begin(Time now);
  void run();
  /// The step ends as if its handler had returned `error`.
  void fail(Error error);
  void complete(Time now);
  /// Replaces the actor whose handler is stuck; its message is refused with kDeadline.
  Status abandon(Time now);
  /// For a replaying group: makes the next recorded step, at its recorded times.
  bool replay_step();
  bool is_running() const { return step_ != Step::kNone; }
  /// The step runs on the group's thread alone: a tenant's change, or a work call with a resource
  /// that has work. A resource of a resumed run is made in its first step.
  bool stays_here() const {
    return step_ == Step::kTenant || (step_ == Step::kWork && resources_have_work());
  }
  /// Index of the actor of this step, or of the last one.
  uint32_t current() const { return current_; }
  /// The group whose step the calling thread runs, or whose slots it restores; else none.
  static GroupId running_here();
  /// The calling thread acts for `group` from now on. Returns the group before.
  static GroupId enter(GroupId group);

  /// Adds the counts and the waiting work call.
  void save(GroupState& state) const;
  void restore(const GroupState& state);

  // From any thread -------------------------------------------------------------------------------

  uint64_t num_steps() const { return num_steps_.get(); }
  const Counter& num_abandoned() const { return num_abandoned_; }
  /// The step that runs.
  void describe(GroupView& view) const;

 private:
  enum class Step { kNone, kInput, kWork, kTenant };
  /// While it lives, running_here() is `group` on this thread.
  struct Here {
    explicit Here(GroupId group);
    ~Here();
    Here(const Here&) = delete;
    Here& operator=(const Here&) = delete;
  };

  const GroupSetup& setup() const { return common_->setup; }
  bool may_work() const;
  bool replayed_ready() const;
  Input replayed_input(const RecordedStep& step);
  void begin_replayed(Time now);
  bool begin_chosen(Time now);
  void begin_work(Time now);
  void begin_input(Input&& input, Time now);
  void mark_running(Time now);
  void run_actors();
  void step_resources();
  void complete_work(Time now);
  void complete_actor(Running& running);
  void complete_failed(Running& running);
  void answer_command(Running& running);
  void record(Running& running, bool is_abandoned, Time ended);
  // group_tenant_steps.cc
  void begin_tenant(Input&& input, Time now);
  void run_tenant();
  void complete_tenant(Time ended);
  Status join(const TenantChange& change);
  Status leave(const TenantChange& change);
  Status set_values(const TenantChange& change);
  Status notify_resources(const Tenant& tenant, TenantChange::Kind kind);

  const std::shared_ptr<GroupCommon> common_;
  const PlanGroup& planned_;
  GroupLinks& links_;
  GroupActors& actors_;
  std::vector<const Outside*> outsides_;  // of the group's resources
  const bool works_;                      // some actor implements work()
  bool work_armed_ = false;
  uint64_t work_arrival_ = 0;

  // The current step.
  Step step_ = Step::kNone;
  uint32_t current_ = 0;
  bool is_injected_ = false;
  Status resource_status_;
  std::shared_ptr<const TenantChange> tenant_change_;
  bool tenant_drains_ = false;
  Status tenant_status_;
  Time tenant_began_;
  std::vector<int64_t> room_answers_;  // of all actors of a work call

  // Read by any thread.
  Counter num_steps_, num_abandoned_, running_since_, is_running_;
  Counter handling_, handling_type_, handling_kind_, handling_link_, handling_sequence_;
};

}  // namespace primerl
