/// Small graphs of puppets, built by hand: an actor whose handlers are lambdas of the test, a plan
/// made by a few calls, and host services that remember what they got.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/contract.h"
#include "runtime/exec/virtual_executor.h"

namespace primerl::testing {

struct Number {
  static constexpr std::string_view kName = "Number";
  static constexpr uint32_t kVersion = 1;
  int64_t value = 0;
  Blob bulk;
  template <class F>
  static void fields(F& f) {
    f("value", &Number::value)("bulk", &Number::bulk);
  }
};

Blob blob_of(size_t num_bytes);

class Puppet;

/// The handlers of a puppet. A missing hook does nothing and succeeds.
struct Strings {
  using Hook = std::function<Status(Puppet&)>;
  using NumberHook = std::function<Status(Puppet&, const Number&)>;
  Hook on_start = {}, on_tick = {}, on_tock = {}, on_drain = {};
  NumberHook on_in = {}, on_side = {}, on_back = {};
  std::function<Result<bool>(Puppet&)> on_work = {};
  std::function<void(Puppet&, const Number&, const Error&)> on_refuse = {};
  std::function<void(Puppet&, const PeerEvent&)> on_peer = {};
  std::function<bool(const Puppet&)> is_idle = {};
  std::function<Status(Puppet&, TenantSlot, TenantChange::Kind)> on_tenant = {};
};

/// in, side (forward), back (feedback) -> out, many (broadcast), pick (addressed), keyed (by
/// value), reply (feedback, to_origin), tell (feedback)
class Puppet final : public Actor {
 public:
  static Contract contract();
  explicit Puppet(const Strings& given) : strings(given) {}

  Status start(Resources&) override { return strings.on_start ? strings.on_start(*this) : ok(); }
  Result<bool> work() override {
    return strings.on_work ? strings.on_work(*this) : Result<bool>(false);
  }
  Status drain() override { return strings.on_drain ? strings.on_drain(*this) : ok(); }
  bool idle() const override { return !strings.is_idle || strings.is_idle(*this); }
  Status on_peer(const PeerEvent& event) override {
    if (strings.on_peer) strings.on_peer(*this, event);
    return ok();
  }
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind) override {
    return strings.on_tenant ? strings.on_tenant(*this, slot, kind) : ok();
  }
  Services& world() const { return services(); }

  const Strings strings;
  std::vector<int64_t> seen;  // values that arrived on any input; the restartable state is `count`
  int64_t count = 0;
  Out<Number> out, many, pick, keyed, reply, tell;

 private:
  Status on_in(const Number& number);
  Status on_side(const Number& number);
  Status on_back(const Number& number);
  Status on_tick() { return strings.on_tick ? strings.on_tick(*this) : ok(); }
  Status on_tock() { return strings.on_tock ? strings.on_tock(*this) : ok(); }
  void refuse(const Number& number, const Error& error) {
    if (strings.on_refuse) strings.on_refuse(*this, number, error);
  }
};

struct NodeSetup {
  Strings strings = {};
  std::function<void(Contract&)> contract = {};  // changes the contract: works, burst, restartable,
                                                 // ...
  bool per_tenant = false;
  int32_t replicas = 1;
  int32_t process = 0;
  std::string group = {};  // nodes with equal names share a group; empty: an own group
  OnError on_error = OnError::kDrop;
  int32_t restarts_max = 5;
};

struct EdgeSetup {
  int64_t capacity = 4;
  int64_t bytes_max = 1 << 20;
  int64_t at_most = 0;  // > 0: a feedback edge
  bool latest_wins = false;
};

/// Keeps the contracts that its plan points to, as long as the plan.
class SmallGraph {
 public:
  explicit SmallGraph(int num_tenants = 1);
  SmallGraph& node(const std::string& name, NodeSetup setup = {});
  SmallGraph& edge(const std::string& from, const std::string& to, EdgeSetup setup = {});
  std::shared_ptr<const Plan> plan();

  GraphSettings settings;
  Duration environment_timeout = Duration::seconds(1);
  int num_free_slots = 0;  // the last of `num_tenants` slots have no tenant

 private:
  struct Parts;
  std::shared_ptr<Parts> parts_;
};

/// Remembers what actors logged and published; files are lines in memory.
class MemoryHostServices : public ProcessServices, public RunFiles {
 public:
  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot, int64_t, const MetricValues&) override {}
  void log(LogLevel, std::string_view instance, std::string_view text) override {
    lines.push_back(fmt::format("{}: {}", instance, text));
  }
  const ResumePoint* resume_point(TenantSlot) const override { return nullptr; }
  Status append_line(std::string_view file, std::string_view line) override {
    written[std::string(file)].push_back(std::string(line));
    return ok();
  }
  Result<std::filesystem::path> begin_checkpoint(TenantSlot, int64_t) override {
    return error(Code::kUnavailable, "no checkpoints here");
  }
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override { return ok(); }

  std::vector<std::string> lines;
  std::map<std::string, std::vector<std::string>> written;
};

/// A started virtual executor over a small graph.
class SmallRun {
 public:
  explicit SmallRun(SmallGraph& graph, uint64_t seed = 1, StepHooks* hooks = nullptr);
  VirtualExecutor* operator->() { return &executor; }
  GroupId group(std::string_view name) const;
  EdgeLedger edge(std::string_view name) const;

  std::shared_ptr<const Plan> plan;
  MemoryHostServices process_services;
  VirtualExecutor executor;
};

/// work() that sends 1, 2, ..., `count` on `out` while it has capacity, then finishes tenant 0.
std::function<Result<bool>(Puppet&)> counts_to(int64_t count, bool finishes = true);

/// A contract change: a source with work().
void make_source(Contract& contract);

/// source -> middle: the source calls `on_work`.
SmallGraph a_line(NodeSetup middle, std::function<Result<bool>(Puppet&)> on_work = counts_to(6),
                  int num_tenants = 1);

/// The result of a handler: an error if the number is `value`.
Status fail_at(const Number& number, int64_t value);

/// The error of a run of `graph`, which must fail.
Error failure_of(SmallGraph graph);

}  // namespace primerl::testing
