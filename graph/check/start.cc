// Faults that would end a run before its first step, as far as files and this machine show them
// without starting a process.
#include <sched.h>

#include <algorithm>
#include <filesystem>

#include "graph/check/names.h"
#include "graph/check/rules.h"
#include "graph/frozen.h"

namespace primerl {
namespace {

void check_file(Draft& draft, const DraftNode& node, const FileCheck& file) {
  const Entry* written = node.spec->table->find(file.option);
  const OptionField* field = node.contract->options.find(file.option);
  if (written == nullptr || !written->value.is_string() || field == nullptr || !field->reference)
    return;
  const std::string& name = *field->reference(node.options.get());
  std::error_code fault;  // bind_nodes() reports a missing file
  if (name.empty() || !std::filesystem::is_regular_file(name, fault)) return;
  const Status usable = file.fault(node.options.get());
  if (usable.ok()) return;
  auto& found =
      draft.diagnostics.error("G046", written->value.span, "'{}' of node '{}' cannot be used: {}",
                              file.option, node.spec->name, usable.error().message());
  for (const auto& note : usable.error().notes()) found.note(note);
}

}  // namespace

void check_files(Draft& draft) {
  if (!draft.for_run) return;
  for (const auto& node : draft.nodes) {
    if (node.contract == nullptr || !is_here(draft, node)) continue;
    for (const auto& file : node.contract->file_checks) check_file(draft, node, file);
  }
}

void check_setups(Draft& draft) {
  if (!draft.for_run) return;
  const auto tenants = draft.tenant_values();
  const auto without = without_adapters(tenants);
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr || !resource.contract->check_setup) continue;
    ResourceContract::Setup setup;
    setup.tenants = is_frozen(draft, resource) ? without : tenants;
    if (resource.model >= 0) {
      const DraftModel& model = draft.models[static_cast<size_t>(resource.model)];
      if (!model.facts) continue;  // reported already
      setup.folder = model.path;
    }
    for (const std::string& device : devices_of(draft, resource)) {
      setup.device = device;
      const Status fits = resource.contract->check_setup(resource.options.get(), setup);
      if (fits.ok()) continue;
      refuse_options(draft, *resource.spec->table,
                     written_span(draft, {resource.spec->name_span, place_span(draft, resource)}),
                     fmt::format("resource '{}'", resource.spec->name), fits.error());
      break;
    }
  }
}

void check_machine_cpus(Draft& draft) {
  if (!draft.for_run) return;
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (::sched_getaffinity(0, sizeof usable, &usable) != 0) return;
  for (const auto& place : draft.places) {
    if (place.is_elsewhere()) continue;
    const auto missing = std::ranges::find_if(
        place.cpus, [&](int32_t cpu) { return cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &usable); });
    if (missing == place.cpus.end()) continue;
    std::vector<int> there;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(cpu, &usable)) there.push_back(cpu);
    draft.diagnostics
        .error("G057", value_span(*place.spec, "cpus"),
               "'cpus' of place '{}' names CPU {}, which processes that start here may not use",
               place.spec->name, *missing)
        .note(fmt::format("they may use: {}", fmt::join(there, " ")));
  }
}

}  // namespace primerl
