// Instances, host groups and processes of a plan.
#include <algorithm>

#include "graph/resolve.h"

namespace primerl {
namespace {

std::string instance_name(const Plan& plan, const PlanNode& node, TenantSlot slot,
                          int32_t replica) {
  std::string name = node.name;
  if (!slot.is_none()) name += "." + plan.tenants[slot.index()].name;
  if (node.replicas > 1) name += fmt::format("#{}", replica);
  return name;
}

void add_instances(Plan& plan) {
  for (size_t index = 0; index < plan.nodes.size(); ++index) {
    auto& node = plan.nodes[index];
    const size_t slots = node.per_tenant ? plan.tenants.size() : 1;
    for (size_t slot = 0; slot < slots; ++slot)
      for (int32_t replica = 0; replica < node.replicas; ++replica) {
        PlanInstance instance;
        instance.node = NodeId(static_cast<uint32_t>(index));
        if (node.per_tenant) instance.tenant = TenantSlot(static_cast<uint32_t>(slot));
        instance.replica = replica;
        instance.name = instance_name(plan, node, instance.tenant, replica);
        node.instances.push_back(InstanceId(static_cast<uint32_t>(plan.instances.size())));
        plan.instances.push_back(std::move(instance));
      }
  }
}

HostId new_host(Plan& plan, ProcessId process) {
  PlanHost host;
  host.process = process;
  plan.hosts.push_back(std::move(host));
  const HostId id(static_cast<uint32_t>(plan.hosts.size() - 1));
  plan.processes[process.index()].hosts.push_back(id);
  return id;
}

/// The resources a host group owns, and whether it needs a thread of its own.
void add_owned(Plan& plan, PlanHost& host, const PlanNode& node) {
  if (node.contract->thread_class == ThreadClass::kOwnThread) host.own_thread = true;
  for (const int32_t resource : node.resources) {
    const auto& used = plan.resources[static_cast<size_t>(resource)];
    if (!is_exclusive(used.kind)) continue;
    if (used.contract->computes) host.own_thread = true;
    if (std::find(host.resources.begin(), host.resources.end(), resource) == host.resources.end())
      host.resources.push_back(resource);
  }
}

void name_hosts(Plan& plan) {
  for (auto& host : plan.hosts) {
    std::vector<std::string> names;
    for (const InstanceId id : host.instances) names.push_back(plan.instance(id).name);
    if (names.size() > 4) {
      const size_t others = names.size() - 3;
      names.resize(3);
      names.push_back(fmt::format("{} more", others));
    }
    host.name = fmt::format("{}", fmt::join(names, "+"));
  }
}

}  // namespace

void place_instances(const Draft& draft, const PlanOrder& order, Plan& plan) {
  for (const int32_t place : order.places) {
    PlanProcess process;
    if (draft.spec.places == nullptr) {
      process.name = "main";
    } else {
      const auto& from = draft.places[static_cast<size_t>(place)];
      process.name = from.spec->name;
      if (!from.options.device.empty()) process.device = from.options.device;
    }
    plan.processes.push_back(std::move(process));
  }
  add_instances(plan);

  const auto group = host_groups(draft);
  std::vector<HostId> host_of_group(draft.nodes.size());
  for (size_t index = 0; index < plan.nodes.size(); ++index) {
    auto& node = plan.nodes[index];
    const auto root = static_cast<size_t>(group[static_cast<size_t>(order.nodes[index])]);
    // Instances of one node that holds an engine share its thread too.
    const bool owns = std::any_of(node.resources.begin(), node.resources.end(), [&](int32_t used) {
      return is_exclusive(plan.resources[static_cast<size_t>(used)].kind);
    });
    for (const InstanceId id : node.instances) {
      HostId host = owns ? host_of_group[root] : HostId();
      if (host.is_none()) host = new_host(plan, node.process);
      if (owns) host_of_group[root] = host;
      plan.instances[id.index()].host = host;
      plan.hosts[host.index()].instances.push_back(id);
      add_owned(plan, plan.hosts[host.index()], node);
    }
  }
  name_hosts(plan);
}

}  // namespace primerl
