/// Plan: a checked graph, resolved to numbers, immutable. Every process builds the same Plan from
/// the same file and catalog; graph_hash proves it. After this, nothing is looked up by name.
///
/// Ids are dense from 0, so an id is an index into the vectors below. Their order follows from the
/// names and edges alone, not from the order of the file: nodes along the forward edges (ties by
/// name), edges by their nodes; tenants, models, resources and processes by name. A file and its
/// resolved form therefore give the same ids.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "graph/catalog.h"
#include "graph/tenant.h"
#include "graph/tenant_limits.h"

namespace primerl {

enum class OnError { kDrop, kStop, kRestart };

/// The part of an edge's messages that the trace keeps.
enum class RecordPolicy {
  kNone,     // that a message was handled; neither its payload nor a checksum
  kHeader,   // and the payload's size and 64-bit checksum
  kInput,    // and the payload itself, when it is handled, unless it has large Blobs
  kPayload,  // and the payload itself, once, when it is sent
};
std::string_view to_string(RecordPolicy policy);  // "none", "header", "input", "payload"

struct PlanModel {
  std::string name;
  std::string path;                    // absolute
  std::vector<std::string> served_as;  // names under which clients know it
};

struct PlanResource {
  std::string name;
  std::string kind;     // "engine", "learner", "weight_channel", "tokenizer", "outside"
  std::string backend;  // "torch", "scripted", "memory"; "" for the last two
  const ResourceContract* contract = nullptr;  // null for the last two
  std::shared_ptr<const void> options;         // bound to contract->options; OutsideSpec
  int32_t model = -1;                          // index into Plan::models, -1 = none
  int32_t threads = 1;                         // compute threads
  std::vector<MemoryPart> memory;              // of one copy; empty: unknown
  /// The slot whose tenants an "outside" asks for, in a graph with slots; else none.
  TenantSlot slot{};
};

struct PlanNode {
  std::string name;
  const Contract* contract = nullptr;
  std::shared_ptr<const void> options;
  bool per_tenant = false;
  int32_t replicas = 1;  // its own, times those of its place
  OnError on_error = OnError::kDrop;
  int32_t restarts_max = 5;  // within restart_window, for kRestart
  Duration restart_window = Duration::seconds(60);
  ProcessId process;                  // the first process of its place
  std::vector<InstanceId> instances;  // slot-major, then replica
};

struct PlanInstance {
  std::string name;  // "router", "rollout.main", "decode#1"
  NodeId node;
  TenantSlot tenant;    // none for shared nodes
  int32_t replica = 0;  // of its node; the first replica of the place has the lowest numbers
  GroupId group;
  /// Index into Plan::resources, parallel to contract->resources. An instance that asks something
  /// outside has one more at the end; in a graph with slots each instance of a slot has it that may
  /// ask.
  std::vector<int32_t> resources;
};

/// How the messages of an edge travel. In each replica of a place, its nodes share a process. So
/// either all pairs of instances of an edge are in different processes, or none.
enum class EdgeTransport { kMemory, kIpc, kTcp };
std::string_view to_string(EdgeTransport transport);  // "memory", "ipc", "tcp"

struct PlanEdge {
  std::string name;  // "rollout.group -> trainer.group"
  NodeId from, to;
  uint32_t output = 0;  // index into contract->outputs
  uint32_t input = 0;   // index into contract->inputs
  bool feedback = false;
  bool latest_wins = false;
  int64_t capacity = 64;                   // messages per (source, target) instance
  int64_t bytes_max = int64_t{256} << 20;  // Blob bytes per (source, target) instance
  int64_t at_most = 0;                     // for a feedback edge
  RecordPolicy record = RecordPolicy::kHeader;
  int64_t bound = 0;  // most messages that can wait per (source, target) instance
  EdgeTransport transport = EdgeTransport::kMemory;
};

/// The unit of scheduling and replay: one thread of control, one inbox.
struct PlanGroup {
  std::string name;  // the name of its first instance, or "prefill+decode"
  ProcessId process;
  std::vector<InstanceId> instances;
  std::vector<int32_t> resources;  // owned: created, used and destroyed on this group's thread
  bool own_thread = false;         // has a compute resource or an own_thread actor
};

/// One replica of a place: a process.
struct PlanProcess {
  std::string name;  // "main" without [place]; "inference#1" where the place has replicas
  std::string device = "cpu";
  std::vector<GroupId> groups;
  int32_t place = -1;  // equal in all replicas of a place; -1 without [place]
  int32_t replica = 0;
  std::string machine{};                 // the machine of the process; "" = where the run was
                                         // started
  std::vector<int32_t> cpus{};           // CPUs that its threads may use; empty = all
  std::vector<std::string> variables{};  // "NAME=value", set before it starts
  int64_t memory_max = 0;                // bytes that its resources may keep; 0 = no limit
};

/// `[graph.alarms]`: bounds of the alarms of a run (runtime/monitor/run_alarms.h); 0 = off.
struct AlarmSettings {
  int64_t window = 10;             // steps of a mean
  double entropy_collapse = 0.02;  // part of the entropy of the first steps
  double mismatch_kl = 0.1;        // nats
  double effective_size = 0.5;     // part of the batch
  double all_filtered = 5;         // batches
};

/// `[graph]`.
struct GraphSettings {
  std::string name;
  std::string description;
  std::vector<std::string> plugins;  // shared libraries, absolute
  int64_t seed = 0;
  int64_t tenants_max = 0;   // most tenants that the graph may have; 0 = no limit
  int64_t pool_threads = 0;  // CAF pool; 0 = 1 on machines of up to 4 cores, else cores / 4
  Duration stall_after = Duration::seconds(60);
  Duration handler_alarm_after = Duration::seconds(10);  // 0 = off
  Duration drain_max = Duration::seconds(60);            // more than any environment_timeout
  Duration dead_after = Duration::seconds(15);
  int64_t abandoned_max = 4;  // most stuck environment threads that are replaced
  int64_t memory_max = 0;     // bytes that the resources of a process may keep; 0 = no limit
  int64_t restarts_max = 5;   // within restart_window, of a process and of the run
  Duration restart_window = Duration::seconds(60);
  AlarmSettings alarms;
  TenantLimits tenant_limits;  // of `[graph.tenant_limits]`
};

/// `[trace]`: the record of the run's deliveries, runs/x/trace/.
struct TraceSettings {
  std::string level = "process";  // "process", "power", "ring" or "off"
  std::string full = "block";     // "block" or "gap"
  int64_t bytes_max = int64_t{8} << 30;
  int64_t segment_bytes = int64_t{8} << 20;
  int64_t ring_bytes = int64_t{64} << 20;
  Duration sync_every = Duration::milliseconds(100);
  bool pack = true;
  Duration cut_every = Duration::seconds(60);
  int64_t cut_steps = 100'000;

  bool is_on() const { return level != "off"; }
};

/// Saved states of a process that wait for checkpoints of several tenants: most of them, and their
/// bytes in memory together (runtime/worker/waiting_cuts.h).
inline constexpr size_t kWaitingCutsMax = 4;
inline constexpr uint64_t kWaitingCutsBytesMax = uint64_t{64} << 20;

struct Plan {
  /// The catalog that the contracts below belong to: the program's, with the plugins' entries.
  std::shared_ptr<const Catalog> catalog;
  GraphSettings settings;
  TraceSettings trace;
  std::vector<Tenant> tenants;  // index = slot
  /// The other slots of a graph with `tenant_limits`, after those of `tenants`. Each has the limits
  /// as its numbers and a name that no tenant can have ("slot-3"). No actor of such a slot exists.
  std::vector<Tenant> free_slots;
  std::vector<PlanModel> models;
  std::vector<PlanResource> resources;
  std::vector<PlanNode> nodes;
  std::vector<PlanEdge> edges;
  std::vector<PlanInstance> instances;
  std::vector<PlanGroup> groups;
  std::vector<PlanProcess> processes;
  std::string resolved_toml;  // canonical text: absolute paths, no includes, all defaults written
                              // out
  uint64_t graph_hash = 0;    // of the whole resolved_toml, [trace] and `record` included

  const PlanNode& node(NodeId id) const { return nodes[id.index()]; }
  const PlanEdge& edge(EdgeId id) const { return edges[id.index()]; }
  const PlanInstance& instance(InstanceId id) const { return instances[id.index()]; }
  const PlanGroup& group(GroupId id) const { return groups[id.index()]; }
  const PlanProcess& process(ProcessId id) const { return processes[id.index()]; }
  const Contract& contract_of(InstanceId id) const { return *node(instance(id).node).contract; }
  ProcessId process_of(InstanceId id) const { return group(instance(id).group).process; }
  size_t num_slots() const { return tenants.size() + free_slots.size(); }
  /// Tenants that the run folder is laid out for: several if more may join.
  size_t layout_tenants() const {
    return settings.tenant_limits.are_set() && tenants.size() < 2 ? 2 : tenants.size();
  }
  bool is_free(TenantSlot slot) const {
    return !slot.is_none() && slot.index() >= tenants.size() && slot.index() < num_slots();
  }
  /// Whether the instance does nothing and gets no message: its slot is free, or a client trains
  /// its tenant and its actor is a part of loops (Contract::is_for_loops).
  bool is_vacant(InstanceId id) const;
  /// Whether all instances of the group are vacant.
  bool is_vacant(GroupId id) const;
  /// The tenant of a slot, or the limits of a free one.
  const Tenant& in_slot(TenantSlot slot) const {
    CHECK(!slot.is_none() && slot.index() < num_slots(), "a plan was asked for another slot");
    return is_free(slot) ? free_slots[slot.index() - tenants.size()] : tenants[slot.index()];
  }
  /// The tenants of all slots, for the Amounts of contracts.
  std::vector<Tenant> all_slots() const;
  /// Whether all nodes of the process use an engine: then its state can be computed again, and
  /// connected processes send their requests again.
  bool is_restartable(ProcessId id) const;
  /// Whether an edge between their nodes has a link between these two instances: equal slots if
  /// both have one, and the same replica in a place with replicas. Without limits, vacant instances
  /// have none; with them, a later tenant of the slot may need it.
  bool are_joined(InstanceId sender, InstanceId target) const;
};

/// Values that are added to the file: `--set a.b=v` and `--overlay FILE`, in order.
struct Overrides {
  std::vector<std::string> sets;
  std::vector<std::string> overlays;
  int32_t cores = 0;  // shared among compute resources without `threads`; 0 = this machine's
  /// The graph will run from this machine: the rules also read what its processes here will open
  /// and need before their first step.
  bool for_run = false;
  /// The graph belongs to a record that is only read: the results of the weights are in it.
  bool may_lack_weights = false;
  /// Files of tenants may also be in this folder, whatever `data_root` of the limits says: those
  /// that came to the run over HTTP.
  std::string uploaded_data;
};

/// One value of the resolved graph and its origin, for `show --resolved --origin`.
struct ResolvedValue {
  std::string path;    // "tenant.main.group_size"
  std::string value;   // as TOML
  std::string origin;  // "graph.toml:7:14", "--set", or "default"
};

/// The result of reading and checking a graph: always all findings; a plan only without errors.
struct CheckedGraph {
  Sources sources;
  Diagnostics diagnostics;
  /// The positions of "graph", "tenant.main", "node.router", "resource.engine": findings that are
  /// made from the plan point there.
  std::map<std::string, Span, std::less<>> tables;
  std::shared_ptr<const Plan> plan;     // null if there are errors
  std::vector<ResolvedValue> resolved;  // in the order of Plan::resolved_toml; empty without a plan
};

inline constexpr size_t kPluginsMax = 64;  // of one graph

/// Reads a file with its includes, applies overrides, loads its plugins and checks everything.
/// Starts nothing. The catalog must stay valid while the plan exists.
CheckedGraph load_graph(const std::string& path, const Overrides& overrides,
                        const Catalog& catalog);
/// The same from a text, for tests; relative paths start from `folder`.
CheckedGraph load_graph_text(std::string_view text, const std::string& name,
                             const std::string& folder, const Overrides& overrides,
                             const Catalog& catalog);

}  // namespace primerl
