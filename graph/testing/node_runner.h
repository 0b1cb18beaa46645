/// NodeRunner: runs one actor by hand. Give inputs, make work calls, advance the clock, read
/// outputs.
///
///   NodeRunner<Router> router({.policy = "round_robin"});
///   router.set_targets("prefill", {InstanceId(7), InstanceId(8)});
///   ASSERT_TRUE(router.give("generate", request).ok());
///   EXPECT_THAT(router.sent<GenerateRequest>("prefill"), SizeIs(1));
///
/// The first give(), run_work(), advance() or start() starts the actor: set tenants, resources,
/// free space and the resume point before. It behaves as an actor group does: one handler at a
/// time, now() constant within it, paused inputs wait, timers fire once and in order of time, and a
/// step that returns an error sends nothing (except what its refusal sends). It also checks the
/// contract: a CHECK fails on a message beyond the declared burst, without a tenant outside a
/// handler, or without a target on an addressed output. Not thread-safe.
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

/// One message that an actor sent, with its options completed as a group would do.
struct Emission {
  Payload payload;
  SendOptions options;
};

/// The sender and the tenant of a given message.
struct Given {
  TenantSlot tenant = TenantSlot(0);
  InstanceId sender = InstanceId(900);
  InstanceId origin = InstanceId(900);
};

struct PublishedMetrics {
  TenantSlot tenant;
  int64_t step = 0;
  MetricValues values;
  double at(std::string_view name) const;  // CHECKs that it exists
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
  /// The instance id of the actor.
  static constexpr InstanceId kSelf = InstanceId(500);

  /// If `actor` is null, the contract creates it.
  NodeRunnerCore(Contract contract, std::shared_ptr<const void> options,
                 std::unique_ptr<Actor> actor = nullptr);
  ~NodeRunnerCore();

  // Before start.
  /// Tenants in slot order; without a call, there is one with the defaults.
  void set_tenants(std::vector<Tenant> tenants);
  void use(std::string_view name, Resource& resource);
  void set_resume_point(TenantSlot tenant, ResumePoint point);
  void set_seed(uint64_t seed);
  /// Which replica of its node the actor is; 0 without a call.
  void set_replica(int32_t replica);
  /// Where begin_checkpoint() makes its folders; without a call, checkpoints fail.
  void set_checkpoint_folder(std::filesystem::path folder);

  // At any time.
  void set_targets(std::string_view output, std::vector<InstanceId> targets);
  void set_room(std::string_view output, int64_t room);
  void set_stop_requested(bool requested);
  /// Every later append_line() fails with this text; an empty text ends that.
  void fail_files(std::string text);

  Status start();
  /// A paused input keeps the message and delivers it after resume(); the result is ok then.
  Status give(std::string_view input, Payload payload, Given given);
  /// Steps the resources once, then calls work(). True = there is more.
  Result<bool> run_work();
  /// Makes work calls until one returns that there is no more, at most `turns_max`; returns their
  /// number.
  Result<int> run_work_until_done(int turns_max = 1000);
  Status advance(Duration duration);
  Status drain();
  Status peer(PeerEvent event);
  bool idle();

  Time now() const;
  Actor& actor();
  const std::vector<Emission>& emissions(std::string_view output) const;
  std::vector<InstanceId> targets_of(std::string_view output) const;
  /// Forgets the messages sent so far: on one output, or on all.
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
  const Error* failure_of(TenantSlot tenant) const;  // null: the actor reported none
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
  /// With an actor that was created by hand, from the same options.
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
