#include "graph/plan.h"

#include <algorithm>
#include <thread>

#include "graph/base/random.h"
#include "graph/check.h"
#include "graph/resolve.h"

namespace primerl {
namespace {

int32_t machine_cores() {
  return std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

/// See CheckedGraph::tables.
std::map<std::string, Span, std::less<>> tables_of(const GraphSpec& spec) {
  std::map<std::string, Span, std::less<>> tables;
  tables["graph"] = spec.graph != nullptr ? spec.graph->span : spec.whole;
  const auto add = [&](std::string_view kind, const std::vector<NamedTable>& all) {
    for (const auto& table : all) tables[fmt::format("{}.{}", kind, table.name)] = table.name_span;
  };
  add("tenant", spec.tenants);
  add("node", spec.nodes);
  add("resource", spec.resources);
  return tables;
}

/// The catalog with what the file's plugins bring; null when one of them cannot be used: then
/// nobody knows which names of the file are right, and the rest is not checked.
std::shared_ptr<const Catalog> with_plugins(const GraphFile& file, const Catalog& catalog,
                                            Diagnostics& diagnostics) {
  const Value* list = plugin_list(file);
  const std::vector<std::string> files = plugin_files(file);
  if (files.empty()) return {std::shared_ptr<const void>(), &catalog};  // owned by the caller
  std::vector<Span> spans;
  for (const Value& item : list->as_array())
    if (item.is_string()) spans.push_back(item.span);
  const size_t num_errors = diagnostics.num_errors();
  if (files.size() > kPluginsMax) {
    diagnostics.error("G088", list->span, "a graph may name {} plugins, not {}", kPluginsMax,
                      files.size());
  } else if (!catalog.add_plugins) {
    diagnostics.error("G088", list->span, "this program takes no plugins");
  } else {
    auto extended = std::make_shared<Catalog>(catalog);
    for (const PluginFault& fault : catalog.add_plugins(files, *extended)) {
      auto& found =
          diagnostics.error("G088", spans[fault.file], "plugin '{}' cannot be used: {}",
                            list->as_array()[fault.file].as_string(), fault.error.message());
      for (const auto& note : fault.error.notes()) found.note(note);
    }
    if (diagnostics.num_errors() == num_errors) return extended;
  }
  return nullptr;
}

void check_and_resolve(std::optional<GraphFile> file, const Overrides& overrides,
                       const Catalog& base, CheckedGraph& result) {
  const auto catalog =
      file ? with_plugins(*file, base, result.diagnostics) : std::shared_ptr<const Catalog>();
  if (catalog != nullptr) {
    GraphSpec spec = read_spec(*file, result.diagnostics);
    correct_names(spec, *catalog, result.diagnostics);
    Draft draft(*file, spec, *catalog, result.sources, result.diagnostics);
    draft.cores = overrides.cores > 0 ? overrides.cores : machine_cores();
    check_graph(draft);
    if (!result.diagnostics.has_errors()) {
      result.tables = tables_of(spec);
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
  result.diagnostics.sort();
}

}  // namespace

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

bool Plan::is_restartable(ProcessId id) const {
  return std::all_of(instances.begin(), instances.end(), [&](const PlanInstance& instance) {
    if (group(instance.group).process != id) return true;
    return std::any_of(instance.resources.begin(), instance.resources.end(), [&](int32_t used) {
      return used >= 0 && resources[static_cast<size_t>(used)].kind == "engine";
    });
  });
}

bool Plan::are_joined(InstanceId sender, InstanceId target) const {
  const TenantSlot from = instance(sender).tenant, to = instance(target).tenant;
  if (!from.is_none() && !to.is_none() && from != to) return false;
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
