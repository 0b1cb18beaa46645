#include "graph/joining.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "graph/base/suggest.h"
#include "graph/resolve.h"

namespace primerl {
namespace {

constexpr std::string_view kTenantHeader = "[tenant.";

/// Calls `use` with each table of a resolved graph: its header line and all lines up to the next.
void for_each_table(std::string_view text, const std::function<void(std::string_view table)>& use) {
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t next = text.find("\n[", begin);
    const size_t end = next == std::string_view::npos ? text.size() : next + 1;
    use(text.substr(begin, end - begin));
    begin = end;
  }
}

/// The name in "[tenant.alice]\n..."; empty for other tables.
std::string_view tenant_of(std::string_view table) {
  if (!table.starts_with(kTenantHeader)) return {};
  const size_t end = table.find(']');
  return table.substr(kTenantHeader.size(), end - kTenantHeader.size());
}

/// Whether a tenant may join at all.
bool has_free_slot(const JoinedFile& joined, const Plan& planned,
                   const std::map<std::string, std::string>& present, Diagnostics& diagnostics) {
  const TenantLimits& limits = planned.settings.tenant_limits;
  if (!limits.are_set()) {
    diagnostics
        .error("G096", joined.name_span, "tenant '{}' cannot join graph '{}', which has no limits",
               joined.tenant, planned.settings.name)
        .suggest("add [graph.tenant_limits] with tenants_max and rank to the graph");
    return false;
  }
  if (std::cmp_less(present.size(), limits.tenants_max)) return true;
  std::vector<std::string> names;
  for (const auto& [name, table] : present) names.push_back(name);
  diagnostics
      .error("G065", joined.name_span, "the graph is full: tenants have all its {} slots",
             limits.tenants_max)
      .note(fmt::format("tenants: {}", join_names(names)))
      .suggest("wait until one has ended, or remove one");
  return false;
}

/// Reports edges and resources that need more with the tenant than the graph was planned for.
void check_planned(const std::string& name, Span span, const Plan& planned, const Plan& plan,
                   Diagnostics& diagnostics) {
  CHECK(plan.edges.size() == planned.edges.size(), "a tenant changed the edges of its graph");
  for (size_t i = 0; i < plan.edges.size(); ++i)
    if (plan.edges[i].bound > planned.edges[i].bound)
      diagnostics
          .error("G096", span,
                 "with tenant '{}' the edge '{}' may have {} messages, but {} were planned", name,
                 plan.edges[i].name, plan.edges[i].bound, planned.edges[i].bound)
          .note(
              "limits of the graph bound most amounts; this one also grows with the tenant's "
              "judges or the samples of its evaluations")
          .suggest("write fewer of them");
  const auto memory_of = [](const Plan& of, const PlanResource& resource) {
    const auto same = std::ranges::find_if(of.resources, [&](const PlanResource& each) {
      return each.name == resource.name && each.kind == resource.kind;
    });
    return same == of.resources.end() ? 0.0 : sum_of(same->memory);
  };
  std::vector<std::string> seen;  // copies of a resource have the same memory
  for (const auto& resource : plan.resources) {
    if (resource.contract == nullptr) continue;
    if (!seen.empty() && seen.back() == resource.name) continue;
    seen.push_back(resource.name);
    const double bytes = sum_of(resource.memory), most = memory_of(planned, resource);
    if (bytes > most)
      diagnostics
          .error("G096", span,
                 "with tenant '{}' {} '{}' needs {:.0f} bytes, but {:.0f} were planned", name,
                 resource.kind, resource.name, bytes, most)
          .suggest("write a smaller rank, fewer targets of the adapter, or another optimizer");
  }
}

/// The tenant `name` of a graph that was checked with it; "": it was not read.
CheckedTenant result_of(CheckedGraph checked, const std::string& name) {
  checked.diagnostics.sort();
  CheckedTenant result;
  if (!name.empty() && checked.plan != nullptr && !checked.diagnostics.has_errors()) {
    const auto& all = checked.plan->tenants;
    const auto found = std::ranges::find(all, name, &Tenant::name);
    CHECK(found != all.end(), "a plan lacks the tenant that was checked");
    // Its environment and rewards point into the catalog of the plan.
    result.tenant = std::shared_ptr<const Tenant>(checked.plan, &*found);
    result.table = tenant_tables(checked.plan->resolved_toml).at(name);
  }
  result.sources = std::move(checked.sources);
  result.diagnostics = std::move(checked.diagnostics);
  return result;
}

}  // namespace

std::map<std::string, std::string> tenant_tables(std::string_view resolved_toml) {
  std::map<std::string, std::string> tables;
  for_each_table(resolved_toml, [&](std::string_view table) {
    if (const auto name = tenant_of(table); !name.empty()) {
      while (table.ends_with("\n\n")) table.remove_suffix(1);
      tables.emplace(name, table);
    }
  });
  return tables;
}

std::string with_tenant_tables(std::string_view resolved_toml,
                               const std::map<std::string, std::string>& tables) {
  std::string text;
  for_each_table(resolved_toml, [&](std::string_view table) {
    if (tenant_of(table).empty()) text += table;
  });
  for (const auto& [name, table] : tables) text += "\n" + table;
  return text;
}

CheckedTenant check_joining_tenant(const std::string& path, const Plan& planned,
                                   const std::map<std::string, std::string>& present,
                                   const Overrides& overrides, const Catalog& catalog) {
  CheckedGraph checked;
  auto joined = read_joining_file(path, with_tenant_tables(planned.resolved_toml, present),
                                  checked.sources, checked.diagnostics);
  if (joined && has_free_slot(*joined, planned, present, checked.diagnostics)) {
    check_and_resolve(joined->file, overrides, catalog, checked);
    // The graph runs, so its warnings were shown when it began.
    checked.diagnostics.change_each([&](const Diagnostic& found) {
      return found.severity == Severity::kError || found.span.source < joined->graph_source;
    });
    if (checked.plan != nullptr)
      check_planned(joined->tenant, joined->name_span, planned, *checked.plan, checked.diagnostics);
  }
  return result_of(std::move(checked), joined ? joined->tenant : "");
}

CheckedTenant check_changed_tenant(const std::string& name, const Plan& planned,
                                   const std::map<std::string, std::string>& present,
                                   const Catalog& catalog) {
  Overrides overrides;
  overrides.may_lack_weights = true;  // they were there when the tenant was admitted
  overrides.uploaded_data = "/";      // and its files were where they may be
  CheckedGraph checked = load_graph_text(with_tenant_tables(planned.resolved_toml, present),
                                         "graph.resolved.toml", ".", overrides, catalog);
  const auto table = checked.tables.find("tenant." + name);
  // Warnings were shown when the graph began and when its tenants joined. Those about other tenants
  // are not for this one.
  checked.diagnostics.change_each(
      [](const Diagnostic& found) { return found.severity == Severity::kError; });
  if (checked.plan != nullptr)
    check_planned(name, table == checked.tables.end() ? Span() : table->second, planned,
                  *checked.plan, checked.diagnostics);
  return result_of(std::move(checked), name);
}

Result<std::shared_ptr<const Tenant>> tenant_of_join(const Plan& planned, const TenantChange& join,
                                                     const Catalog& catalog) {
  const auto tables = tenant_tables(join.table);
  if (tables.size() != 1)
    return error(Code::kInvalid, "a tenant's table is one [tenant.<name>] table, this has {}",
                 tables.size());
  Overrides overrides;
  overrides.may_lack_weights = true;  // they were there when the tenant was admitted
  overrides.uploaded_data = "/";      // and its files were where they may be
  // The plugins of the plan's own catalog are loaded already.
  std::optional<Catalog> loaded;
  if (!catalog.plugins.empty()) {
    loaded = catalog;
    loaded->add_plugins = [](const auto&, Catalog&) { return std::vector<PluginFault>(); };
  }
  const CheckedGraph checked =
      load_graph_text(with_tenant_tables(planned.resolved_toml, tables), "graph.resolved.toml", ".",
                      overrides, loaded ? *loaded : catalog);
  const std::string& name = tables.begin()->first;
  if (checked.plan == nullptr)
    return error(Code::kInvalid, "the table of tenant '{}' does not fit the graph", name)
        .note(render(checked.diagnostics, checked.sources));
  const auto found = std::ranges::find(checked.plan->tenants, name, &Tenant::name);
  CHECK(found != checked.plan->tenants.end(), "a plan lacks the tenant of its only table");
  const auto placed = [&join](const Tenant& from) {
    Tenant tenant = from;
    tenant.slot = join.slot;
    tenant.tenancy = join.tenancy;
    tenant.begins_at = join.begins_at;
    return tenant;
  };
  // Its environment and rewards point into the catalog of the plan.
  struct Kept {
    std::shared_ptr<const Plan> plan;
    Tenant tenant;
  };
  auto kept = std::make_shared<Kept>(Kept{checked.plan, placed(*found)});
  for (auto& part : kept->tenant.mix) part = std::make_shared<const Tenant>(placed(*part));
  return std::shared_ptr<const Tenant>(kept, &kept->tenant);
}

}  // namespace primerl
