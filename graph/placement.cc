// Instances, actor groups and processes of a plan.
#include <algorithm>
#include <map>

#include "graph/outside.h"
#include "graph/resolve.h"

namespace primerl {
namespace {

std::string instance_name(const Plan& plan, const PlanNode& node, TenantSlot slot,
                          int32_t replica) {
  std::string name = node.name;
  if (!slot.is_none()) name += "." + plan.in_slot(slot).name;
  if (node.replicas > 1) name += fmt::format("#{}", replica);
  return name;
}

/// Adds the instances, and returns the process of each.
std::vector<uint32_t> add_instances(const Draft& draft, const PlanOrder& order, Plan& plan) {
  std::vector<uint32_t> process_of;
  for (size_t index = 0; index < plan.nodes.size(); ++index) {
    auto& node = plan.nodes[index];
    const auto& from = draft.nodes[static_cast<size_t>(order.nodes[index])];
    const auto in_a_process = static_cast<int32_t>(from.common.replicas);
    const size_t slots = node.per_tenant ? plan.num_slots() : 1;
    for (size_t slot = 0; slot < slots; ++slot)
      for (int32_t replica = 0; replica < node.replicas; ++replica) {
        PlanInstance instance;
        instance.node = NodeId(static_cast<uint32_t>(index));
        if (node.per_tenant) instance.tenant = TenantSlot(static_cast<uint32_t>(slot));
        instance.replica = replica;
        instance.name = instance_name(plan, node, instance.tenant, replica);
        node.instances.push_back(InstanceId(static_cast<uint32_t>(plan.instances.size())));
        plan.instances.push_back(std::move(instance));
        process_of.push_back(node.process.value + static_cast<uint32_t>(replica / in_a_process));
      }
  }
  return process_of;
}

GroupId new_group(Plan& plan, ProcessId process) {
  PlanGroup group;
  group.process = process;
  plan.groups.push_back(std::move(group));
  const GroupId id(static_cast<uint32_t>(plan.groups.size() - 1));
  plan.processes[process.index()].groups.push_back(id);
  return id;
}

/// Adds the resources that an actor group owns, and notes whether it needs a thread of its own.
void add_owned(Plan& plan, PlanGroup& group, const PlanInstance& instance) {
  if (plan.node(instance.node).contract->thread_class == ThreadClass::kOwnThread)
    group.own_thread = true;
  for (const int32_t resource : instance.resources) {
    if (resource < 0) continue;
    const auto& used = plan.resources[static_cast<size_t>(resource)];
    if (!is_exclusive(used.kind)) continue;
    if (used.contract != nullptr && used.contract->computes) group.own_thread = true;
    if (std::find(group.resources.begin(), group.resources.end(), resource) ==
        group.resources.end())
      group.resources.push_back(resource);
  }
}

void name_hosts(Plan& plan) {
  for (auto& group : plan.groups) {
    std::vector<std::string> names;
    for (const InstanceId id : group.instances) names.push_back(plan.instance(id).name);
    if (names.size() > 4) {
      const size_t others = names.size() - 3;
      names.resize(3);
      names.push_back(fmt::format("{} more", others));
    }
    group.name = fmt::format("{}", fmt::join(names, "+"));
  }
}

}  // namespace

void place_instances(const Draft& draft, const PlanOrder& order, Plan& plan) {
  const auto process_of = add_instances(draft, order, plan);
  make_resources(draft, order, process_of, plan);

  const auto roots = actor_groups(draft);
  std::map<std::pair<int32_t, uint32_t>, GroupId> group_of_root;  // by root and process
  for (size_t index = 0; index < plan.nodes.size(); ++index) {
    const int32_t root = roots[static_cast<size_t>(order.nodes[index])];
    for (const InstanceId id : plan.nodes[index].instances) {
      auto& instance = plan.instances[id.index()];
      const uint32_t process = process_of[id.index()];
      // Instances of one node that uses an engine also share its thread.
      const bool owns =
          std::any_of(instance.resources.begin(), instance.resources.end(), [&](int32_t used) {
            if (used < 0) return false;
            const auto& kind = plan.resources[static_cast<size_t>(used)].kind;
            return is_exclusive(kind) && kind != Outside::kResourceKind;
          });
      GroupId group;
      if (const auto found = group_of_root.find({root, process});
          owns && found != group_of_root.end())
        group = found->second;
      if (group.is_none()) group = new_group(plan, ProcessId(process));
      if (owns) group_of_root[{root, process}] = group;
      instance.group = group;
      plan.groups[group.index()].instances.push_back(id);
      add_owned(plan, plan.groups[group.index()], instance);
    }
  }
  name_hosts(plan);
}

}  // namespace primerl
