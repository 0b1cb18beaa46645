#include "graph/weight_backend.h"

#include <algorithm>
#include <set>

#include "graph/base/suggest.h"

namespace primerl {

std::vector<ProcessId> processes_of(const Plan& plan, int32_t index) {
  std::set<ProcessId> processes;
  for (const auto& instance : plan.instances)
    if (std::find(instance.resources.begin(), instance.resources.end(), index) !=
        instance.resources.end())
      processes.insert(plan.group(instance.group).process);
  return {processes.begin(), processes.end()};
}

Result<std::string> weight_backend(const Plan& plan, int32_t index) {
  const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
  const auto processes = processes_of(plan, index);
  std::set<std::string> machines;  // "" is the machine where the run was started
  std::vector<std::string> names;
  for (const ProcessId id : processes) {
    machines.insert(plan.process(id).machine);
    names.push_back(plan.process(id).name);
  }
  const bool is_one_process = processes.size() <= 1, is_one_machine = machines.size() <= 1;
  if (resource.backend == "auto")
    return std::string(is_one_process ? "memory" : is_one_machine ? "shm" : "stream");
  if ((resource.backend == "memory" && !is_one_process) ||
      (resource.backend == "shm" && !is_one_machine))
    return error(Code::kInvalid,
                 "weight channel '{}' with backend {} cannot connect the processes {}",
                 resource.name, resource.backend, join_names(names))
        .note(
            "memory connects users in one process, shm processes of one machine, files processes "
            "that share a disk, stream any; 'auto' is the first of memory, shm and stream that "
            "connects all");
  return resource.backend;
}

namespace {

bool has_learner(const Plan& plan, ProcessId process) {
  const auto& groups = plan.process(process).groups;
  return std::any_of(groups.begin(), groups.end(), [&](GroupId group) {
    const auto& owned = plan.group(group).resources;
    return std::any_of(owned.begin(), owned.end(), [&](int32_t index) {
      return plan.resources[static_cast<size_t>(index)].kind == "learner";
    });
  });
}

}  // namespace

bool are_joined_by_weights(const Plan& plan, ProcessId one, ProcessId other) {
  for (size_t i = 0; i < plan.resources.size(); ++i) {
    if (plan.resources[i].kind != "weight_channel") continue;
    const auto index = static_cast<int32_t>(i);
    const auto backend = weight_backend(plan, index);
    if (!backend.ok() || *backend != "stream") continue;
    const auto users = processes_of(plan, index);
    const auto uses = [&](ProcessId id) {
      return std::binary_search(users.begin(), users.end(), id);
    };
    if (!uses(one) || !uses(other)) continue;
    const bool is_published = std::any_of(users.begin(), users.end(),
                                          [&](ProcessId user) { return has_learner(plan, user); });
    if (!is_published || has_learner(plan, one) || has_learner(plan, other)) return true;
  }
  return false;
}

}  // namespace primerl
