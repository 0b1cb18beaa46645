#include "runtime/exec/wiring.h"

#include <algorithm>

namespace primerl {
namespace {

WiredLink make_link(const Plan& plan, EdgeId id, InstanceId sender, InstanceId target,
                    uint32_t num_slots) {
  const PlanEdge& edge = plan.edge(id);
  WiredLink link;
  link.edge = id;
  link.sender = sender;
  link.target = target;
  link.sender_group = plan.instance(sender).group;
  link.target_group = plan.instance(target).group;
  link.output = edge.output;
  link.input = edge.input;
  link.is_feedback = edge.feedback;
  link.latest_wins = edge.latest_wins;
  link.is_remote = plan.group(link.sender_group).process != plan.group(link.target_group).process;
  link.bytes_max = edge.bytes_max;
  link.bound = edge.bound;
  link.capacity = edge.capacity;
  // For each tenant, one value may be in transit while the next one waits in the outbox.
  if (link.latest_wins)
    link.capacity = int64_t{num_slots} + 1;
  else if (link.is_feedback)
    link.capacity = std::max<int64_t>(edge.bound, 1);
  link.grant_messages =
      link.latest_wins ? 1 : static_cast<uint64_t>(std::max<int64_t>(link.capacity / 2, 1));
  link.grant_bytes = static_cast<uint64_t>(std::max<int64_t>(link.bytes_max / 2, 1));
  link.target_tenant = plan.instance(target).tenant;
  return link;
}

/// The instances of a node by slot: with thousands of tenants, each pair of theirs would be too
/// many.
class TargetsBySlot {
 public:
  TargetsBySlot(const Plan& plan, const PlanNode& node)
      : all_(node.instances), by_slot_(plan.num_slots()) {
    for (const InstanceId id : node.instances) {
      const TenantSlot slot = plan.instance(id).tenant;
      is_shared_ = is_shared_ || slot.is_none();
      if (!slot.is_none()) by_slot_[slot.index()].push_back(id);
    }
  }
  /// Those that a sender of this slot may reach; "none": a shared one.
  const std::vector<InstanceId>& of(TenantSlot slot) const {
    return slot.is_none() || is_shared_ ? all_ : by_slot_[slot.index()];
  }

 private:
  const std::vector<InstanceId>& all_;
  std::vector<std::vector<InstanceId>> by_slot_;
  bool is_shared_ = false;
};

std::vector<NodeBursts> bursts_of(const Plan& plan) {
  const std::vector<Tenant> tenants = plan.all_slots();
  std::vector<NodeBursts> bursts;
  for (const PlanNode& node : plan.nodes) {
    NodeBursts& made = bursts.emplace_back();
    for (const OutputPort& port : node.contract->outputs) {
      made.of_handler.push_back(port.burst.value(node.options.get(), tenants));
      made.of_work.push_back(port.work_burst.value(node.options.get(), tenants));
    }
  }
  return bursts;
}

void add_peer(GroupWiring& group, GroupId peer) { group.peers.push_back(peer); }

}  // namespace

std::shared_ptr<const Wiring> make_wiring(const Plan& plan) {
  auto wiring = std::make_shared<Wiring>();
  wiring->groups.resize(plan.groups.size());
  wiring->num_slots = static_cast<uint32_t>(plan.num_slots());
  wiring->bursts = bursts_of(plan);
  for (uint32_t e = 0; e < plan.edges.size(); ++e) {
    const PlanEdge& edge = plan.edges[e];
    const TargetsBySlot targets(plan, plan.node(edge.to));
    for (InstanceId sender : plan.node(edge.from).instances)
      for (InstanceId target : targets.of(plan.instance(sender).tenant))
        if (plan.are_joined(sender, target))
          wiring->links.push_back(make_link(plan, EdgeId(e), sender, target, wiring->num_slots));
  }
  for (uint32_t i = 0; i < wiring->links.size(); ++i) {
    WiredLink& link = wiring->links[i];
    auto& from = wiring->groups[link.sender_group.index()];
    auto& to = wiring->groups[link.target_group.index()];
    link.out_index = static_cast<uint32_t>(from.out.size());
    from.out.push_back(LinkId(i));
    link.in_index = static_cast<uint32_t>(to.in.size());
    to.in.push_back(LinkId(i));
    if (link.sender_group == link.target_group) continue;
    add_peer(from, link.target_group);
    add_peer(to, link.sender_group);
  }
  for (auto& group : wiring->groups) {
    std::sort(group.peers.begin(), group.peers.end());
    group.peers.erase(std::unique(group.peers.begin(), group.peers.end()), group.peers.end());
  }
  return wiring;
}

}  // namespace primerl
