/// TenantLimits: the typed form of `[graph.tenant_limits]`. A graph with this table has
/// `tenants_max` slots, whether a tenant is in them or not: its instances, links, bounds and memory
/// are those of tenants that need as much as the limits allow. So a tenant that joins later changes
/// no number of the plan (docs/design/hosted.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace primerl {

/// Most slots of a graph.
inline constexpr int64_t kTenantSlotsMax = 1024;

struct TenantLimits {
  int64_t tenants_max = 0;           // slots; 0 = the graph has no such table
  int64_t rank = 0;                  // of adapters
  int64_t seq_len = 2048;            // tokens
  int64_t group_size = 8;            // rollouts
  int64_t batch_size = 64;           // rollouts
  int64_t inflight = 64;             // rollouts at once
  int64_t max_off_policy_steps = 8;  // steps
  int64_t turns_max = 8;             // turns of one trajectory
  int64_t tokens_per_second = 0;     // of engines for each tenant; 0 = no limit
  bool clients = false;              // tenants may be trained by clients
  int64_t snapshots = 8;             // weights for samplers that one client keeps
  std::vector<std::string> targets = {"all-linear"};
  std::vector<std::string> optimizers;    // kinds; empty = the learner's alone
  std::vector<std::string> environments;  // names; empty = all of the program
  std::vector<std::string> rewards;       // names; empty = all of the program
  std::string data_root;                  // absolute; files of tenants are in it; empty = any file

  bool are_set() const { return tenants_max > 0; }
};

}  // namespace primerl
