/// Draft: a graph while it is being checked. Tables are bound to typed structs, and names are
/// resolved to indices of the vectors below. A name that could not be resolved stays -1 and later
/// rules skip it, so that one mistake gives one error. A Plan is made from a Draft without errors,
/// and from nothing else.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/config/tables.h"
#include "graph/plan.h"
#include "graph/spec.h"

namespace primerl {

struct DraftTenant {
  const NamedTable* spec = nullptr;
  Tenant tenant;
  bool seq_len_is_written = false;
  /// Of `[[tenant.x.environments]]`: the tenant with the keys of each. `spec` is the item's.
  std::vector<DraftTenant> mix = {};
  std::shared_ptr<const NamedTable> item = {};  // what `spec` of an item points to

  /// The tenant as a Plan has it: with its environments.
  Tenant value(TenantSlot slot = {}) const;
};

/// Calls `use` with each environment of a tenant: the tenant itself if it has one.
void for_each_environment(const DraftTenant& tenant,
                          const std::function<void(const DraftTenant& in_environment)>& use);

/// Changes a tenant that is as large as the limits allow.
using SlotChange = std::function<void(Tenant& tenant)>;

/// `[service.environment.x]` or `[service.reward.x]`: what tenants name instead of its values.
template <class Chosen>
struct DraftService {
  const NamedTable* spec = nullptr;
  Chosen chosen;  // without a contract if it has a fault, which is reported
};

struct DraftModel {
  const NamedTable* spec = nullptr;
  std::string path;  // absolute
  Span path_span;
  std::optional<ModelFacts> facts;
  std::string impl = "auto";
  Span impl_span;
  bool is_strict = false;
  std::vector<std::string> served_as;
  bool is_named = false;  // a resource or an actor names it
};

struct DraftResource {
  const NamedTable* spec = nullptr;
  ResourceOptions common;
  const ResourceContract* contract = nullptr;
  std::shared_ptr<void> options;
  int32_t model = -1;
  std::vector<int32_t> users;      // nodes, in file order, no node twice
  std::vector<MemoryPart> memory;  // of one copy; empty: unknown
};

struct DraftNode {
  const NamedTable* spec = nullptr;
  NodeOptions common;
  const Contract* contract = nullptr;
  std::shared_ptr<void> options;
  std::vector<int32_t> uses;  // parallel to contract->resources: index of a resource, or of a model
                              // for a tokenizer; -1 = not resolved
  int32_t place = -1;         // index into GraphSpec::place; 0 if there is none
};

struct DraftEdge {
  const EdgeSpec* spec = nullptr;
  int32_t from = -1, to = -1;       // nodes
  int32_t output = -1, input = -1;  // ports of their contracts
  bool is_mismatch = false;         // the message types differ
  bool is_repeated = false;         // the file has this edge twice
  bool is_whole() const { return output >= 0 && input >= 0; }
};

struct DraftPlace {
  const NamedTable* spec = nullptr;
  PlaceOptions options;
  std::vector<int32_t> cpus;  // of all its replicas; empty = all CPUs of the machine
  bool is_elsewhere() const { return !options.host.empty() && options.host != "localhost"; }
};

struct Draft {
  Draft(const GraphFile& graph_file, const GraphSpec& graph_spec, const Catalog& all,
        const Sources& texts, Diagnostics& findings)
      : file(graph_file), spec(graph_spec), catalog(all), sources(texts), diagnostics(findings) {}

  const GraphFile& file;
  const GraphSpec& spec;
  const Catalog& catalog;
  const Sources& sources;
  Diagnostics& diagnostics;
  bool may_lack_weights = false;  // Overrides::may_lack_weights
  bool for_run = false;           // Overrides::for_run
  std::string uploaded_data;      // Overrides::uploaded_data

  int32_t cores = 1;  // of the machine
  GraphSettings settings;
  TraceSettings trace;
  std::vector<DraftService<TenantEnvironment>> environment_services;
  std::vector<DraftService<TenantReward>> reward_services;
  std::vector<DraftTenant> tenants;
  /// With `[graph.tenant_limits]`: the tenant that needs as much as the limits allow. Its `spec` is
  /// that table. It is in no slot of the file; each free slot has it in a plan.
  std::optional<DraftTenant> any_tenant;
  std::vector<DraftModel> models;
  std::vector<DraftResource> resources;
  std::vector<DraftNode> nodes;
  std::vector<DraftEdge> edges;
  std::vector<DraftPlace> places;
  std::unordered_map<std::string_view, int32_t> node_by_name;
  std::vector<std::string> doubtful_kinds;     // kinds of resources that a node names wrongly
  std::map<std::string, Diagnostic*> missing;  // "node 'x'": missing names, each reported once

  /// Tenants that the graph is planned for: those of the file, or the slots of its limits.
  size_t num_slots() const;
  /// The slots without a tenant of the file, as a plan has them.
  std::vector<Tenant> free_slots() const;
  /// The tenants of all slots as values, for Amounts: those of the file, and the limits for others.
  std::vector<Tenant> tenant_values() const;
  /// The same with the limits for every slot, because any tenant may leave and another may join.
  /// Empty without limits.
  std::vector<Tenant> limit_values(const SlotChange& change = {}) const;
  /// The tenants of the file and `any_tenant`, for rules about one tenant.
  std::vector<DraftTenant*> all_tenants();
};

/// Whether users of such a resource must share one thread: true for all kinds except those that
/// several threads may share.
bool is_exclusive(std::string_view resource_kind);
inline constexpr std::string_view kTokenizerKind = "tokenizer";
inline constexpr std::string_view kWeightChannelKind = "weight_channel";
/// `weights = "none"` of a node that uses an engine: the engine keeps the weights of its folder.
inline constexpr std::string_view kNoWeights = "none";

/// Whether the node writes `weights = "none"`.
bool has_no_weights(const DraftNode& node);
/// Whether all users of the engine write `weights = "none"`: it is a judge, not the policy.
bool is_frozen(const Draft& draft, const DraftResource& resource);

/// The bound that a contract gives a feedback edge, e.g. "max_inflight" of its input; empty = none.
struct FeedbackNumber {
  bool is_stated = false;
  bool latest_wins = false;
  int64_t at_most = 0;
  std::string text;
};
FeedbackNumber feedback_number(const Draft& draft, const DraftEdge& edge,
                               const std::vector<Tenant>& tenants);

/// The part of an edge's messages that the trace keeps: as the file says, or else as its output's
/// contract says.
RecordPolicy record_policy(const Draft& draft, const DraftEdge& edge);

/// Whether the node's processes run on the machine where the run starts. Files and memory of other
/// machines are unknown here.
bool is_here(const Draft& draft, const DraftNode& node);
/// Whether one of its users is_here().
bool is_used_here(const Draft& draft, const DraftResource& resource);

/// The devices of a place's processes: "cpu", "cuda:0".
std::set<std::string> devices_of(const PlaceOptions& place);
/// The devices of the processes that create the resource.
std::set<std::string> devices_of(const Draft& draft, const DraftResource& resource);

/// Number of instances: the node's replicas, times its place's replicas, times the tenants if it is
/// per_tenant.
int64_t count_instances(const Draft& draft, const DraftNode& node);
/// Number of processes of the node's place; 1 without a place.
int64_t place_replicas(const Draft& draft, const DraftNode& node);
/// The transport of an edge: memory within a process, ipc within a machine, tcp between machines;
/// or the value of `transport`, if it is another one that fits.
EdgeTransport transport_of(const Draft& draft, const DraftEdge& edge);

/// For each node, the smallest node index of the actor group that it will belong to.
std::vector<int32_t> actor_groups(const Draft& draft);

}  // namespace primerl
