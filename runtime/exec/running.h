/// Running: one actor of a group with everything that its handlers touch: services, outputs,
/// resources, and the effects of the current step. A handler changes nothing else. So it may run on
/// another thread than its group and may be abandoned; the group applies the effects when the step
/// completes.
///
/// Threads: prepare() and the effects belong to the group's thread. run() and everything that an
/// actor calls belong to the thread of the step. After abandon() the step's effects are dropped.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/exec/actor_group.h"
#include "runtime/exec/flow.h"
#include "runtime/exec/group_tenants.h"
#include "runtime/exec/inbox.h"
#include "runtime/exec/instance_counters.h"

namespace primerl {

/// The maximum length of a handler's error in bytes; the rest is cut off.
inline constexpr size_t kErrorBytesMax = 16384;

/// Data that the actors of one group share.
struct GroupCommon {
  explicit GroupCommon(GroupSetup given);
  static std::shared_ptr<GroupCommon> make(GroupSetup setup);
  const PlanGroup& planned() const { return setup.plan->group(setup.group); }
  const Contract& contract_of(uint32_t actor) const {
    const Plan& plan = *setup.plan;
    return *plan.node(plan.instance(planned().instances[actor]).node).contract;
  }
  /// The tenant of an actor; none for an actor that all tenants share.
  TenantSlot tenant_of(uint32_t actor) const {
    return setup.plan->instance(planned().instances[actor]).tenant;
  }
  /// Whether a handler may run on another thread: own_thread, one actor, no resource in use.
  bool may_run_apart() const {
    const PlanGroup& group = planned();
    return group.own_thread && group.instances.size() == 1 &&
           (group.resources.empty() || !uses_resources.load(std::memory_order_relaxed)) &&
           !is_vacant.load(std::memory_order_relaxed);
  }
  /// Whether the actors use a resource of the group. Not if all that it has is the Outside of a
  /// slot, whose tenant asks nothing outside.
  bool do_actors_use_resources() const;
  bool has_shared_actors() const {
    const auto& instances = planned().instances;
    for (uint32_t i = 0; i < instances.size(); ++i)
      if (tenant_of(i).is_none()) return true;
    return false;
  }

  Result<std::shared_ptr<const Tenant>> make_tenant(const TenantChange& change) const;

  GroupSetup setup;
  GroupTenants tenants;
  std::atomic<bool> is_vacant{false};  // all actors are place holders
  std::atomic<bool> uses_resources{false};
  std::shared_ptr<Flow> flow;
  std::vector<std::shared_ptr<Resource>> owned;  // parallel to PlanGroup::resources
  std::vector<InstanceCounters> counters;        // by actor; the number of elements never changes
  std::atomic<bool> stop_requested{false};
  std::atomic<uint64_t> num_progress{0};  // number of progress() calls; a watchdog compares it
  size_t num_replayed_answers = 0;  // number of the step_source's room_answers that this step has
                                    // used
};

struct TimerChange {
  uint32_t timer = 0;
  bool is_set = false;
  Duration delay;
};

struct PauseChange {
  uint32_t input = 0;
  bool is_paused = false;
};

struct PendingEmission {
  PendingEmission() {}  // not defaulted: that would zero all of it before the fields are set
  uint32_t output = 0;
  InstanceId target;  // for an addressed output
  Envelope envelope;  // without the fields that the link and the group add
};

class Running final : public Services, public OutputSink, public Resources {
 public:
  Running(std::shared_ptr<GroupCommon> common, uint32_t actor);

  /// Actor::start(). May set timers, may not send.
  Status start(Time now);
  /// Prepares the step that run() will execute.
  void prepare(Input&& input, uint64_t step, Time now);
  void prepare_work(uint64_t step, Time now, bool is_draining);
  /// Actor::on_tenant(), on the group's thread: prepared and run in one. It may set timers.
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind, uint64_t step, Time now);
  /// Takes the group's tenants as they are now. On the group's thread, between handlers.
  void refresh_tenants();
  /// Runs the handler, timer, work(), drain() or on_peer(). Exceptions become errors; see status().
  void run();
  void fail(Error error) { status_ = std::move(error); }
  /// Lets the actor answer the message whose handler failed. The handler's emissions are dropped.
  void refuse(const Error& error);

  /// Whether the instance had no actor when it was made: its slot was free, or a client trains its
  /// tenant and its actor is a part of loops (Contract::is_for_loops).
  bool is_vacant() const { return is_vacant_; }
  /// Whether start() has succeeded. Before that there may be no actor.
  bool has_begun() const { return has_begun_; }
  /// Whether the message that is handled is of a slot without a tenant: another group has answered
  /// a tenant that failed and has left here. Its step is an error, and no actor gets it.
  bool is_for_free_slot() const;
  Actor& actor() { return *actor_; }
  const Actor& actor() const { return *actor_; }
  const Contract& contract() const { return *contract_; }
  const PlanNode& node() const { return *node_; }
  Input& input() { return input_; }
  uint32_t index() const { return index_; }  // among the group's instances
  const Status& status() const { return status_; }
  bool wants_more_work() const { return wants_more_work_; }
  bool stops_on_error() const { return stops_on_error_; }  // the actor called stop_on_error()
  bool is_draining() const {
    return is_draining_;
  }  // its work calls were told that the run
     // drains
  /// Copies two flags of an earlier Running of this actor, which replaced actors must keep.
  void go_on(bool stops_on_error, bool is_draining) {
    stops_on_error_ = stops_on_error;
    is_draining_ = is_draining;
  }
  void abandon() { is_abandoned_.store(true); }
  bool is_abandoned() const { return is_abandoned_.load(); }

  // Effects of the step. The group applies and clears them.
  std::vector<PendingEmission> emissions;
  std::vector<TimerChange> timers;
  std::vector<PauseChange> pauses;
  std::vector<TenantSlot> finished;
  std::vector<std::pair<TenantSlot, Error>> failures;  // tenants that fail; the actor itself did
                                                       // not
  // Answers of this step that depend on the moment of the call; for the recorder.
  mutable std::vector<int64_t> room_answers;
  uint64_t stopped_at_progress = 0;
  bool has_given_up = false;  // fail_tenant() or stop_on_error() was called in this step
  /// progress() calls of this step so far. In a work call the count continues over all actors.
  uint64_t num_progress_calls = 0;

  // Services
  Time now() const override { return now_; }
  const Delivery& delivery() const override { return delivery_; }
  RandomStream random(TenantSlot tenant, std::string_view purpose, uint64_t index) const override;
  void set_timer(std::string_view name, Duration delay) override;
  void cancel_timer(std::string_view name) override;
  void pause(std::string_view input) override;
  void resume(std::string_view input) override;
  InstanceId self() const override { return self_; }
  std::string_view self_name() const override { return instance_->name; }
  int32_t replica() const override { return instance_->replica; }
  bool share_resource(InstanceId one, InstanceId other) const override;
  uint32_t incarnation() const override { return common_->setup.incarnation; }
  std::span<const TenantSlot> tenants() const override { return tenants_; }
  const Tenant& tenant(TenantSlot slot) const override;
  const ResumePoint* resume_point(TenantSlot slot) const override;
  Progress progress() override;
  void finish(TenantSlot tenant) override { finished.push_back(tenant); }
  void fail_tenant(TenantSlot tenant, Error why) override {
    failures.emplace_back(tenant, std::move(why));
    has_given_up = true;
  }
  void stop_on_error() override { stops_on_error_ = has_given_up = true; }
  RunFiles& files() override { return common_->setup.process_services->files(); }
  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) override;
  void count(std::string_view name, int64_t amount) override;
  void log(LogLevel level, std::string_view text) override;
  // OutputSink
  void emit(uint32_t output, Payload payload, const SendOptions& options) override;
  int64_t room(uint32_t output, InstanceId target) const override;
  int64_t capacity(uint32_t output, InstanceId target) const override;
  std::span<const InstanceId> targets(uint32_t output, TenantSlot tenant) const override;

 private:
  Status make_actor();
  Resource* find(std::string_view use) override;
  void begin(StepKind kind, uint64_t step, Time now);
  Status handle();
  Status work();
  uint32_t timer_index(std::string_view name) const;
  uint32_t input_index(std::string_view name) const;

  // Constant after construction.
  const std::shared_ptr<GroupCommon> common_;
  const uint32_t index_;  // among the group's instances
  const InstanceId self_;
  const PlanInstance* instance_;
  const PlanNode* node_;
  const Contract* contract_;
  const bool is_vacant_;
  // The group's tenants when they changed last. A handler that runs apart reads its own copy.
  std::shared_ptr<const TenantsBySlot> by_slot_;
  std::shared_ptr<const Tenant> began_with_;  // its own tenant: the actor may keep pointers into it
  std::vector<TenantSlot> tenants_;           // those that this instance serves
  std::vector<int64_t> burst_, work_burst_;   // by output
  uint64_t random_key_ = 0;
  std::unique_ptr<Actor> actor_;  // made by start()
  bool has_begun_ = false;

  // State of the current step.
  enum class Phase { kNone, kStart, kHandler, kWork, kControl } phase_ = Phase::kNone;
  Input input_;
  Time now_;
  Delivery delivery_;
  Status status_;
  bool wants_more_work_ = false;
  bool is_draining_ = false;
  bool has_started_ = true;           // the slot's tenant; of a shared actor true
  bool is_paused_ = false;            // the slot's tenant
  std::vector<int64_t> num_emitted_;  // by output
  bool stops_on_error_ = false;       // is never reset

  std::atomic<bool> is_abandoned_{false};
};

}  // namespace primerl
