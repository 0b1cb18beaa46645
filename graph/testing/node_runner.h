/// NodeRunner: runs one actor by hand. Feed inputs, give work turns, move the clock, read outputs.
///
///   NodeRunner<Router> router({.policy = "round_robin"});
///   router.set_targets("prefill", {InstanceId(7), InstanceId(8)});
///   ASSERT_TRUE(router.give("generate", request).ok());
///   EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(1));
///
/// The actor is started by the first give(), run_work(), advance() or start(): set tenants,
/// resources, rooms and the resume point before. Keeps the promises of a group: one handler at a
/// time, now() constant within it, paused inputs wait, timers fire once and in order of time, and a
/// step that returns an error sends nothing (but what its refusal sends). It
/// holds the actor to its contract as well: an emission beyond the declared burst, without a tenant
/// outside a handler, or without a target on an addressed output is a failed CHECK. Not
/// thread-safe.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "graph/contract.h"

namespace primerl {

/// One message an actor sent, with its options completed as a group would.
struct Emission {
  Payload payload;
  SendOptions options;
};

/// From whom and for whom a message is given.
struct Given {
  TenantSlot tenant = TenantSlot(0);
  InstanceId sender = InstanceId(900);
  InstanceId origin = InstanceId(900);
};

struct PublishedMetrics {
  TenantSlot tenant;
  int64_t step = 0;
  MetricValues values;
  double at(std::string_view name) const;  // CHECKs that it is there
};

struct CommittedCheckpoint {
  TenantSlot tenant;
  int64_t step = 0;
  Json manifest;
};

/// The parts that do not depend on the actor's type.
class NodeRunnerCore {
 public:
  static constexpr int64_t kUnlimitedRoom = int64_t{1} << 40;
  static constexpr uint32_t kIncarnation = 1;
  /// The instance that the actor is.
  static constexpr InstanceId kSelf = InstanceId(500);

  /// `actor` null: the contract makes it.
  NodeRunnerCore(Contract contract, std::shared_ptr<const void> options,
                 std::unique_ptr<Actor> actor = nullptr);
  ~NodeRunnerCore();

  // Before start.
  /// Tenants in slot order; one with the defaults when never called.
  void set_tenants(std::vector<Tenant> tenants);
  void use(std::string_view name, Resource& resource);
  void set_resume_point(TenantSlot tenant, ResumePoint point);
  /// Which replica of its node the actor is; 0 when never called.
  void set_replica(int32_t replica);
  /// Where begin_checkpoint() makes its folders; without it checkpoints fail.
  void set_checkpoint_folder(std::filesystem::path folder);

  // At any time.
  /// Tenants join and leave: change_tenants() has the tenants from now on, and change_tenant() is
  /// the step in which the actor hears of it.
  void change_tenants(std::vector<Tenant> tenants);
  Status change_tenant(TenantSlot slot, TenantChange::Kind kind);
  /// These instances use one copy of a resource. Without a call, no two instances do.
  void set_sharing(std::vector<InstanceId> instances);
  void set_targets(std::string_view output, std::vector<InstanceId> targets);
  void set_room(std::string_view output, int64_t room);
  void set_stop_requested(bool requested);
  /// Every later append_line() fails with this text; empty = works again.
  void fail_files(std::string text);

  Status start();
  /// A paused input keeps the message and hands it over after resume(); ok then.
  Status give(std::string_view input, Payload payload, Given given);
  /// Steps the resources once, then work(). True = there is more.
  Result<bool> run_work();
  /// Work turns until one says that there is no more, at most `turns_max`; how many it took.
  Result<int> run_work_until_done(int turns_max = 1000);
  Status advance(Duration duration);
  Status drain();
  Status peer(PeerEvent event);
  bool idle();

  Time now() const;
  Actor& actor();
  const std::vector<Emission>& emissions(std::string_view output) const;
  std::vector<InstanceId> targets_of(std::string_view output) const;
  /// Forgets what was sent so far: on one output, or on all.
  void forget_sent(std::string_view output);
  void forget_sent();
  bool is_paused(std::string_view input) const;
  size_t num_waiting(std::string_view input) const;
  std::optional<Time> timer(std::string_view name) const;
  const std::vector<std::string>& lines(std::string_view file) const;
  const std::vector<PublishedMetrics>& metrics() const;
  const std::vector<CommittedCheckpoint>& checkpoints() const;
  int64_t counter(std::string_view name) const;
  const std::vector<std::string>& log() const;  // "warning: text"
  bool is_finished(TenantSlot tenant) const;
  const Error* failure_of(TenantSlot tenant) const;  // null: the actor named none
  bool stops_on_error() const;

 private:
  class World;
  std::unique_ptr<World> world_;
};

template <class A>
class NodeRunner : public NodeRunnerCore {
 public:
  using Options = typename A::Options;

  explicit NodeRunner(Options options = {})
      : NodeRunnerCore(A::contract(), std::make_shared<Options>(std::move(options))) {}
  /// With an actor made by hand, from the same options.
  NodeRunner(Options options, std::unique_ptr<A> actor)
      : NodeRunnerCore(A::contract(), std::make_shared<Options>(std::move(options)),
                       std::move(actor)) {}

  template <Message T>
  Status give(std::string_view input, T message, Given given = {}) {
    return NodeRunnerCore::give(input, Payload::of(std::move(message)), given);
  }
  /// The messages sent on an output so far.
  template <Message T>
  std::vector<T> sent(std::string_view output) const {
    std::vector<T> messages;
    for (const auto& emission : emissions(output))
      messages.push_back(emission.payload.template as<T>());
    return messages;
  }
  /// The messages sent on an output since the last take() or forget_sent().
  template <Message T>
  std::vector<T> take(std::string_view output) {
    auto messages = sent<T>(output);
    forget_sent(output);
    return messages;
  }
  A& node() { return static_cast<A&>(actor()); }
};

}  // namespace primerl
