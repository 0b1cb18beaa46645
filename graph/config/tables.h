/// The options of the tables that every graph may have, whatever its actors are. Parser, errors,
/// schema and generated docs read only these sets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/options.h"
#include "graph/plan.h"
#include "graph/tenant.h"

namespace primerl {

/// `[node.x]`, without the options of its actor.
struct NodeOptions {
  std::string actor;
  bool per_tenant = false;
  int64_t replicas = 1;
  std::string on_error = "auto";
  int64_t restarts_max = 5;
  Duration restart_window = Duration::seconds(60);
};

/// `[resource.x]`, beside the options of its backend.
struct ResourceOptions {
  std::string kind;
  std::string backend;
  std::string model;
  int64_t threads = 0;
};

/// `[model.x]`.
struct ModelOptions {
  std::string path;
  std::string impl = "auto";  // who computes it: auto, native or transformers
  bool strict = false;
  std::vector<std::string> served_as;  // names under which clients know it
};
/// Most names of one model, and bytes of one.
inline constexpr int64_t kServedNamesMax = 16;
inline constexpr size_t kServedNameBytesMax = 128;

/// `[place] x = { ... }`.
struct PlaceOptions {
  std::vector<std::string> nodes;
  std::string device;
  std::vector<std::string> devices;  // one per replica
  int64_t replicas = 1;
  std::string host;
  int64_t threads = 0;
  std::string cpus;
  std::vector<std::string> variables;
  int64_t memory_max = 0;
};

/// An edge that is written as a table.
struct EdgeOptions {
  std::string path;
  int64_t capacity = 64;
  int64_t bytes_max = int64_t{256} << 20;
  std::string record = "auto";
  std::string transport = "auto";
};

const OptionSet& graph_options();          // GraphSettings
const OptionSet& tenant_limits_options();  // TenantLimits; `[graph]` reads it apart
const OptionSet& trace_options();          // TraceSettings
const OptionSet& tenant_options();         // Tenant, without environments and `reward`
const OptionSet& mix_options();            // an item of `environments`: the same of Tenant
OptionSet curriculum_options();            // TenantCurriculum
const OptionSet& environment_options();    // `name`: TenantEnvironment
const OptionSet& reward_options();         // `name`: TenantReward
const OptionSet& model_options();
const OptionSet& resource_options();
const OptionSet& node_options();
const OptionSet& place_options();
const OptionSet& edge_options();

}  // namespace primerl
