#include "runtime/bin/weight_backend.h"

#include <algorithm>
#include <set>

#include "graph/base/suggest.h"

namespace primerl {
namespace {

std::set<ProcessId> processes_of(const Plan& plan, int32_t index) {
  std::set<ProcessId> processes;
  for (const auto& instance : plan.instances)
    if (std::find(instance.resources.begin(), instance.resources.end(), index) !=
        instance.resources.end())
      processes.insert(plan.host(instance.host).process);
  return processes;
}

}  // namespace

Result<std::string> weight_backend(const Plan& plan, int32_t index) {
  const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
  const auto processes = processes_of(plan, index);
  std::set<std::string> machines;  // "" is the one where the run was started
  std::vector<std::string> names;
  for (const ProcessId id : processes) {
    machines.insert(plan.process(id).machine);
    names.push_back(plan.process(id).name);
  }
  const bool is_one_process = processes.size() <= 1, is_one_machine = machines.size() <= 1;
  if (resource.backend == "auto")
    return std::string(is_one_process ? "memory" : is_one_machine ? "shm" : "files");
  if ((resource.backend == "memory" && !is_one_process) ||
      (resource.backend == "shm" && !is_one_machine))
    return error(Code::kInvalid, "weight channel '{}' by {} cannot join the processes {}",
                 resource.name, resource.backend, join_names(names))
        .note(
            "memory reaches one process, shm one machine, files what shares a disk; 'auto' is "
            "the first that reaches all");
  return resource.backend;
}

}  // namespace primerl
