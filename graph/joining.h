/// A tenant that joins a running graph: its file is checked by the rules of a graph file, with the
/// same errors, against the graph's limits and the tenants that are there (docs/design/hosted.md).
/// Plain functions, any thread.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/plan.h"
#include "graph/tenant_change.h"

namespace primerl {

/// The tables of the tenants in a resolved graph, by name: "[tenant.alice]\n...", each with all its
/// values.
std::map<std::string, std::string> tenant_tables(std::string_view resolved_toml);
/// The resolved graph with these tables as its only tenants.
std::string with_tenant_tables(std::string_view resolved_toml,
                               const std::map<std::string, std::string>& tables);

/// The result of checking a tenant's file: all findings; a tenant only without errors.
struct CheckedTenant {
  Sources sources;
  Diagnostics diagnostics;
  /// Its slot is not the one that it will have. Null if there are errors.
  std::shared_ptr<const Tenant> tenant;
  /// Its table with all values, absolute paths and no includes, as tenant_tables() returns it.
  std::string table;
};

/// Checks that the tenant of the file `path` may join. `planned` is the graph as it was started,
/// `present` has the tables of the tenants that are in it now. The findings are those of a graph
/// file with one tenant more. In addition: the graph has limits and a free slot; and no edge, no
/// engine and no learner needs more than was planned. `sets` and `overlays` of `overrides` are not
/// used.
CheckedTenant check_joining_tenant(const std::string& path, const Plan& planned,
                                   const std::map<std::string, std::string>& present,
                                   const Overrides& overrides, const Catalog& catalog);

/// The same for a tenant that is there and has another table: `present` has the new one.
CheckedTenant check_changed_tenant(const std::string& name, const Plan& planned,
                                   const std::map<std::string, std::string>& present,
                                   const Catalog& catalog);

/// The tenant of a kJoin, whose table check_joining_tenant() made. It reads no other tenant's
/// table, so every process and every replay makes the same. kInvalid when the table does not fit
/// the graph; the error has all findings.
Result<std::shared_ptr<const Tenant>> tenant_of_join(const Plan& planned, const TenantChange& join,
                                                     const Catalog& catalog);

}  // namespace primerl
