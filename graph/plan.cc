#include "graph/plan.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "graph/base/random.h"
#include "graph/check.h"
#include "graph/config/short_file.h"
#include "graph/config/tables.h"
#include "graph/resolve.h"

namespace primerl {
namespace {

int32_t machine_cores() {
  return std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

/// See CheckedGraph::tables.
std::map<std::string, Span, std::less<>> tables_of(const GraphFile& file, const GraphSpec& spec,
                                                   const Sources& sources) {
  std::map<std::string, Span, std::less<>> tables;
  const Span whole = graph_span(file, sources);
  tables["graph"] = whole;
  const auto add = [&](std::string_view kind, const std::vector<NamedTable>& all) {
    for (const auto& table : all)
      tables[fmt::format("{}.{}", kind, table.name)] =
          sources.is_built_in(table.name_span) ? whole : table.name_span;
  };
  add("tenant", spec.tenants);
  add("node", spec.nodes);
  add("resource", spec.resources);
  for (const auto& tenant : spec.tenants)
    for (const Entry& entry : tenant.table->entries) {
      if (!entry.value.is_table()) continue;
      for (const Entry& inner : entry.value.as_table().entries)
        tables[fmt::format("tenant.{}.{}.{}", tenant.name, entry.key, inner.key)] =
            sources.is_built_in(inner.key_span) ? whole : inner.key_span;
    }
  return tables;
}

/// Reports errors in the list itself, as for any option of [graph].
void check_plugin_list(const Entry& list, Diagnostics& diagnostics) {
  Table alone;
  alone.span = list.value.span;
  alone.entries.push_back(list);
  alone.entries.back().key = "plugins";
  GraphSettings unused;
  graph_options().bind(alone, "[graph]", {}, &unused, diagnostics);
}

/// The catalog with the entries of the file's plugins. Null if one of them cannot be used: then the
/// valid names are unknown, and the rest is not checked.
std::shared_ptr<const Catalog> with_plugins(const GraphFile& file, const Catalog& catalog,
                                            Diagnostics& diagnostics) {
  const std::shared_ptr<const Catalog> as_it_is(std::shared_ptr<const void>(), &catalog);
  const Entry* list = plugin_list(file);
  if (list == nullptr) return as_it_is;  // the caller's catalog
  const size_t num_errors = diagnostics.num_errors();
  check_plugin_list(*list, diagnostics);
  if (diagnostics.num_errors() > num_errors) return nullptr;
  const std::vector<std::string> files = plugin_files(file);
  if (files.empty()) return as_it_is;
  if (!catalog.add_plugins) {
    diagnostics.error("G088", list->value.span, "this program does not load plugins");
    return nullptr;
  }
  auto extended = std::make_shared<Catalog>(catalog);
  for (const PluginFault& fault : catalog.add_plugins(files, *extended)) {
    const Value& item = list->value.as_array()[fault.file];
    auto& found = diagnostics.error("G088", item.span, "plugin '{}' cannot be used: {}",
                                    item.as_string(), fault.error.message());
    for (const auto& note : fault.error.notes()) found.note(note);
  }
  if (diagnostics.num_errors() > num_errors) return nullptr;
  return extended;
}

void check_with(GraphFile& file, const std::shared_ptr<const Catalog>& catalog,
                const Overrides& overrides, CheckedGraph& result) {
  GraphSpec spec = read_spec(file, result.diagnostics);
  correct_names(spec, *catalog, result.diagnostics);
  Draft draft(file, spec, *catalog, result.sources, result.diagnostics);
  draft.cores = overrides.cores > 0 ? overrides.cores : machine_cores();
  draft.may_lack_weights = overrides.may_lack_weights;
  draft.for_run = overrides.for_run;
  draft.uploaded_data = overrides.uploaded_data;
  check_graph(draft);
  if (!result.diagnostics.has_errors()) {
    result.tables = tables_of(file, spec, result.sources);
    auto plan = std::make_shared<Plan>();
    plan->catalog = catalog;
    const PlanOrder order = order_of(draft);
    fill_tables(draft, order, *plan);
    place_instances(draft, order, *plan);
    bound_edges(draft, order, *plan);
    result.resolved = write_resolved(draft, order, *plan);
    result.plan = std::move(plan);
  }
}

}  // namespace

void check_and_resolve(std::optional<GraphFile> file, const Overrides& overrides,
                       const Catalog& base, CheckedGraph& result) {
  // Without [edges], the text that could not be read decides what the graph is.
  const bool is_whole = file && (!file->is_partial || file->root.find("edges") != nullptr);
  const auto catalog =
      is_whole ? with_plugins(*file, base, result.diagnostics) : std::shared_ptr<const Catalog>();
  try {
    if (catalog != nullptr) check_with(*file, catalog, overrides, result);
  } catch (const std::exception& exception) {
    // Our own code throws nothing: the exception comes from a plugin's contract.
    if (catalog->plugins.empty()) throw;
    result.plan = nullptr;
    result.diagnostics.error("G088", plugin_list(*file)->value.span,
                             "an exception left a plugin's code while the graph was checked: {}",
                             exception.what());
  }
  if (file) leave_built_in_lines(*file, result.sources, result.diagnostics);
  result.diagnostics.sort();
}

std::string_view to_string(RecordPolicy policy) {
  switch (policy) {
    case RecordPolicy::kNone:
      return "none";
    case RecordPolicy::kHeader:
      return "header";
    case RecordPolicy::kInput:
      return "input";
    case RecordPolicy::kPayload:
      return "payload";
  }
  return "unknown";
}

std::string_view to_string(EdgeTransport transport) {
  switch (transport) {
    case EdgeTransport::kMemory:
      return "memory";
    case EdgeTransport::kIpc:
      return "ipc";
    case EdgeTransport::kTcp:
      return "tcp";
  }
  return "unknown";
}

bool Plan::is_vacant(InstanceId id) const {
  const TenantSlot slot = instance(id).tenant;
  if (slot.is_none()) return false;
  return is_free(slot) || (tenants[slot.index()].is_client && contract_of(id).is_for_loops);
}

bool Plan::is_vacant(GroupId id) const {
  return std::ranges::all_of(group(id).instances,
                             [this](InstanceId each) { return is_vacant(each); });
}

std::vector<Tenant> Plan::all_slots() const {
  std::vector<Tenant> all = tenants;
  all.insert(all.end(), free_slots.begin(), free_slots.end());
  return all;
}

bool Plan::is_restartable(ProcessId id) const {
  return std::all_of(instances.begin(), instances.end(), [&](const PlanInstance& instance) {
    if (group(instance.group).process != id) return true;
    const Contract& contract = *node(instance.node).contract;
    if (contract.replicas_are_expendable && instance.replica > 0) return true;
    return std::any_of(instance.resources.begin(), instance.resources.end(), [&](int32_t used) {
      return used >= 0 && resources[static_cast<size_t>(used)].kind == "engine";
    });
  });
}

bool Plan::are_joined(InstanceId sender, InstanceId target) const {
  const TenantSlot from = instance(sender).tenant, to = instance(target).tenant;
  if (!from.is_none() && !to.is_none() && from != to) return false;
  if (!settings.tenant_limits.are_set() && (is_vacant(sender) || is_vacant(target))) return false;
  const ProcessId here = process_of(sender), there = process_of(target);
  return here == there || process(here).place < 0 || process(here).place != process(there).place;
}

CheckedGraph load_graph(const std::string& path, const Overrides& overrides,
                        const Catalog& catalog) {
  CheckedGraph result;
  auto file = read_graph_file(path, overrides, result.sources, result.diagnostics);
  check_and_resolve(std::move(file), overrides, catalog, result);
  return result;
}

CheckedGraph load_graph_text(std::string_view text, const std::string& name,
                             const std::string& folder, const Overrides& overrides,
                             const Catalog& catalog) {
  CheckedGraph result;
  auto file = read_graph_text(text, name, folder, overrides, result.sources, result.diagnostics);
  check_and_resolve(std::move(file), overrides, catalog, result);
  return result;
}

}  // namespace primerl
