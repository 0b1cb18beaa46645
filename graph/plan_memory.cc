#include "graph/plan_memory.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace primerl {
namespace {

constexpr size_t kNamedPartsMax = 5;

std::string owner_text(const PlanResource& resource) {
  return fmt::format("{} '{}'", resource.kind, resource.name);
}

/// A part in one process of a machine.
struct MachinePart {
  MemoryPart part;
  std::string owner;  // owner_text() of the first resource that has it
  std::string what;   // "engine 'engine' of process 'main': 512 KV blocks"
};

/// The parts of all processes of a machine. A part in shared memory is listed once.
std::vector<MachinePart> parts_on(const Plan& plan, std::string_view machine) {
  std::vector<MachinePart> parts;
  std::set<std::string> in_shared_memory;
  for (const PlanProcess& process : plan.processes) {
    if (process.machine != machine) continue;
    const ProcessMemory memory = memory_of(plan, process);
    for (const auto& held : memory.all()) {
      if (held.part.sharing == Sharing::kMachine &&
          !in_shared_memory.insert(held.owners_text() + held.part.what).second)
        continue;
      parts.push_back({held.part, held.owners.front(),
                       fmt::format("{} of process '{}': {}", held.owners_text(), process.name,
                                   held.what_text())});
    }
  }
  return parts;
}

}  // namespace

ProcessMemory memory_of(const Plan& plan, const PlanProcess& process) {
  ProcessMemory memory;
  if (process.device != "cpu") return memory;
  const auto add = [&](const PlanResource& resource) {
    const std::string model =
        resource.model < 0 ? "" : plan.models[static_cast<size_t>(resource.model)].path;
    memory.add(owner_text(resource), model, resource.memory);
  };
  std::set<int32_t> added;  // groups share a weight channel
  for (const GroupId id : process.groups) {
    for (const int32_t index : plan.group(id).resources)
      if (added.insert(index).second) add(plan.resources[static_cast<size_t>(index)]);
    for (const InstanceId instance : plan.group(id).instances)
      for (const int32_t index : plan.instance(instance).resources)
        if (index >= 0 && added.insert(index).second)
          add(plan.resources[static_cast<size_t>(index)]);
  }
  return memory;
}

double memory_on(const Plan& plan, std::string_view machine, bool with_optional) {
  double bytes = 0;
  for (const auto& [part, owner, what] : parts_on(plan, machine))
    if (with_optional || !part.is_optional) bytes += part.bytes;
  return bytes;
}

bool has_memory_for_optional(const Plan& plan, const PlanProcess& process,
                             const MemoryLimit& limit) {
  const auto most = static_cast<double>(process.memory_max);
  if (most > 0 && memory_of(plan, process).bytes() > most) return false;
  return limit.bytes == 0 || memory_on(plan, process.machine, true) <= limit.bytes;
}

std::optional<MemoryShortage> memory_shortage(const Plan& plan, std::string_view machine,
                                              const MemoryLimit& limit) {
  const double bytes = memory_on(plan, machine, false);
  if (limit.bytes == 0 || bytes <= limit.bytes) return std::nullopt;
  auto fault = error(Code::kExhausted, "the run needs {} of memory, and {} has {}",
                     memory_text(bytes), machine.empty() ? "this machine" : machine, limit.text());
  auto parts = parts_on(plan, machine);
  std::erase_if(parts, [](const MachinePart& each) { return each.part.is_optional; });
  std::ranges::stable_sort(parts, std::ranges::greater(),
                           [](const MachinePart& each) { return each.part.bytes; });
  for (const auto& [part, owner, what] :
       std::span(parts).first(std::min(parts.size(), kNamedPartsMax)))
    std::move(fault).note(fmt::format("{}: {}", what, memory_text(part.bytes)));
  std::move(fault).note(
      "use a machine with more memory, or lower 'micro_batch_tokens' of the learner, 'kv_blocks', "
      "'max_batched_tokens' or 'max_running' of an engine, or 'batch_size' of a tenant; recompute "
      "= \"full\" of the learner keeps fewer activations");
  const auto largest = std::ranges::find(plan.resources, parts.front().owner, owner_text);
  return MemoryShortage{std::move(fault), largest->name};
}

Status check_memory_on(const Plan& plan, std::string_view machine, const MemoryLimit& limit) {
  auto shortage = memory_shortage(plan, machine, limit);
  return shortage ? Status(std::move(shortage->fault)) : ok();
}

}  // namespace primerl
