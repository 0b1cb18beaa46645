#include "tests/exec/small_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace primerl::testing {

Blob blob_of(size_t num_bytes) { return Blob(std::vector<std::byte>(num_bytes)); }

Contract Puppet::contract() {
  return ContractOf<Puppet, Strings>("puppet", "does what its test says")
      .in("in", &Puppet::on_in, "numbers", optional_port(), refuse_with(&Puppet::refuse))
      .in("side", &Puppet::on_side, "numbers", optional_port())
      .in("back", &Puppet::on_back, "answers", optional_port())
      .out("out", &Puppet::out, "to one", optional_port(), work_burst(1))
      .out("many", &Puppet::many, "to all", optional_port(), broadcast(), work_burst(1))
      .out("pick", &Puppet::pick, "to one chosen", optional_port(), addressed(), work_burst(1))
      .out("keyed", &Puppet::keyed, "by value", optional_port(), keyed_by(&Number::value),
           work_burst(1))
      .out("reply", &Puppet::reply, "to who began", optional_port(), to_origin(), work_burst(1))
      .out("tell", &Puppet::tell, "back to one", optional_port(), work_burst(1))
      .timer("tick", &Puppet::on_tick, "a timer")
      .timer("tock", &Puppet::on_tock, "another timer")
      .state([](auto& f) { f("count", &Puppet::count)("seen", &Puppet::seen); });
}

Status Puppet::on_in(const Number& number) {
  seen.push_back(number.value);
  ++count;
  return strings.on_in ? strings.on_in(*this, number) : ok();
}
Status Puppet::on_side(const Number& number) {
  seen.push_back(number.value);
  return strings.on_side ? strings.on_side(*this, number) : ok();
}
Status Puppet::on_back(const Number& number) {
  seen.push_back(number.value);
  return strings.on_back ? strings.on_back(*this, number) : ok();
}

struct SmallGraph::Parts {
  Plan plan;
  std::deque<Contract> contracts;
  std::vector<NodeSetup> setups;
  std::map<std::string, uint32_t> groups;
};

SmallGraph::SmallGraph(int num_tenants) : parts_(std::make_shared<Parts>()) {
  settings.drain_max = Duration::seconds(30);
  for (int i = 0; i < num_tenants; ++i) {
    Tenant tenant;
    tenant.name = fmt::format("t{}", i);
    tenant.slot = TenantSlot(static_cast<uint32_t>(i));
    parts_->plan.tenants.push_back(tenant);
  }
}

SmallGraph& SmallGraph::node(const std::string& name, NodeSetup setup) {
  Plan& plan = parts_->plan;
  Contract& contract = parts_->contracts.emplace_back(Puppet::contract());
  if (setup.contract) setup.contract(contract);
  PlanNode node;
  node.name = name;
  node.contract = &contract;
  node.options = std::make_shared<Strings>(setup.strings);
  node.per_tenant = setup.per_tenant;
  node.replicas = setup.replicas;
  node.on_error = setup.on_error;
  node.restarts_max = setup.restarts_max;
  node.process = ProcessId(static_cast<uint32_t>(setup.process));
  const NodeId id(static_cast<uint32_t>(plan.nodes.size()));
  const int num_slots = setup.per_tenant ? static_cast<int>(plan.tenants.size()) : 1;
  while (plan.processes.size() <= static_cast<size_t>(setup.process))
    plan.processes.push_back({fmt::format("p{}", plan.processes.size()), "cpu", {}});
  for (int slot = 0; slot < num_slots; ++slot) {
    for (int replica = 0; replica < setup.replicas; ++replica) {
      PlanInstance instance;
      instance.name = name;
      if (setup.per_tenant) instance.name += "." + plan.tenants[static_cast<size_t>(slot)].name;
      if (setup.replicas > 1) instance.name += fmt::format("#{}", replica);
      instance.node = id;
      if (setup.per_tenant) instance.tenant = TenantSlot(static_cast<uint32_t>(slot));
      instance.replica = replica;
      const auto key = setup.group.empty() ? instance.name : setup.group;
      const auto [found, is_new] =
          parts_->groups.try_emplace(key, static_cast<uint32_t>(plan.groups.size()));
      const GroupId group(found->second);
      if (is_new) {
        plan.groups.push_back({key, node.process, {}, {}, false});
        plan.processes[node.process.index()].groups.push_back(group);
      }
      instance.group = group;
      const InstanceId number(static_cast<uint32_t>(plan.instances.size()));
      plan.groups[group.index()].instances.push_back(number);
      if (contract.thread_class == ThreadClass::kOwnThread)
        plan.groups[group.index()].own_thread = true;
      node.instances.push_back(number);
      plan.instances.push_back(instance);
    }
  }
  plan.nodes.push_back(std::move(node));
  return *this;
}

SmallGraph& SmallGraph::edge(const std::string& from, const std::string& to, EdgeSetup setup) {
  Plan& plan = parts_->plan;
  const auto split = [](const std::string& port) {
    const auto dot = port.find('.');
    return std::make_pair(port.substr(0, dot), port.substr(dot + 1));
  };
  const auto node_of = [&](const std::string& name) {
    for (uint32_t i = 0; i < plan.nodes.size(); ++i)
      if (plan.nodes[i].name == name) return NodeId(i);
    CHECK(false, "no such node: " + name);
    return NodeId();
  };
  PlanEdge edge;
  edge.name = from + " -> " + to;
  edge.from = node_of(split(from).first);
  edge.to = node_of(split(to).first);
  const Contract& source = *plan.node(edge.from).contract;
  const Contract& target = *plan.node(edge.to).contract;
  edge.output =
      static_cast<uint32_t>(source.find_output(split(from).second) - source.outputs.data());
  edge.input = static_cast<uint32_t>(target.find_input(split(to).second) - target.inputs.data());
  edge.feedback = setup.at_most > 0 || setup.latest_wins;
  edge.latest_wins = setup.latest_wins;
  edge.capacity = setup.capacity;
  edge.bytes_max = setup.bytes_max;
  edge.at_most = setup.latest_wins ? static_cast<int64_t>(plan.tenants.size()) + 1 : setup.at_most;
  plan.edges.push_back(std::move(edge));
  return *this;
}

std::shared_ptr<const Plan> SmallGraph::plan() {
  Plan& plan = parts_->plan;
  plan.settings = settings;
  if (num_free_slots > 0) {
    plan.settings.tenant_limits.tenants_max = static_cast<int64_t>(plan.num_slots());
    plan.settings.tenant_limits.rank = 1;
  }
  while (std::cmp_less(plan.free_slots.size(), num_free_slots)) {
    plan.free_slots.insert(plan.free_slots.begin(), plan.tenants.back());
    plan.tenants.pop_back();
  }
  for (Tenant& tenant : plan.tenants) tenant.environment_timeout = environment_timeout;
  for (PlanEdge& edge : plan.edges) {
    const Contract& source = *plan.node(edge.from).contract;
    const OutputPort& port = source.outputs[edge.output];
    const int64_t burst = port.burst.value(nullptr, plan.tenants);
    edge.bound = edge.at_most;
    if (edge.feedback) continue;
    edge.bound = edge.capacity + burst - 1 + port.work_burst.value(nullptr, plan.tenants);
    edge.bound += static_cast<int64_t>(source.timers.size()) * burst;
    for (const PlanEdge& back : plan.edges)
      if (back.feedback && back.to == edge.from) edge.bound += back.at_most * burst;
  }
  return std::shared_ptr<const Plan>(parts_, &plan);
}

SmallRun::SmallRun(SmallGraph& graph, uint64_t seed, StepHooks* hooks)
    : plan(graph.plan()),
      executor(plan,
               [](const Plan&, int32_t) -> Result<std::shared_ptr<Resource>> {
                 return error(Code::kInternal, "small graphs have no resources");
               },
               process_services,
               {.seed = seed,
                .step_hooks = hooks,
                .events_max = 1'000'000,
                .repeat_with = fmt::format("PRIMERL_SEED={} runtime_test "
                                           "--gtest_filter='*EverySeed*'",
                                           seed)}) {
  const Status status = executor.start();
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().text());
}

GroupId SmallRun::group(std::string_view name) const {
  for (uint32_t i = 0; i < plan->groups.size(); ++i)
    if (plan->groups[i].name == name) return GroupId(i);
  CHECK(false, "no such group");
  return {};
}

EdgeLedger SmallRun::edge(std::string_view name) const {
  for (size_t i = 0; i < plan->edges.size(); ++i)
    if (plan->edges[i].name == name) return executor.ledger()[i];
  CHECK(false, "no such edge");
  return {};
}

std::function<Result<bool>(Puppet&)> counts_to(int64_t count, bool finishes) {
  return [count, finishes](Puppet& puppet) -> Result<bool> {
    if (puppet.count == count) {
      if (finishes) puppet.world().finish(TenantSlot(0));
      return false;
    }
    if (puppet.out.room() <= 0) return false;
    puppet.out.send({.value = ++puppet.count, .bulk = {}}, for_tenant(TenantSlot(0)));
    return true;
  };
}

void make_source(Contract& contract) { contract.works = contract.is_source = true; }

SmallGraph a_line(NodeSetup middle, std::function<Result<bool>(Puppet&)> on_work, int num_tenants) {
  SmallGraph graph(num_tenants);
  graph.node("source", {.strings = {.on_work = std::move(on_work)}, .contract = make_source})
      .node("middle", std::move(middle))
      .edge("source.out", "middle.in");
  return graph;
}

Status fail_at(const Number& number, int64_t value) {
  if (number.value != value) return ok();
  return error(Code::kUnavailable, "no {} today", value);
}

Error failure_of(SmallGraph graph) {
  SmallRun run(graph);
  const auto outcome = run->wait();
  EXPECT_EQ(outcome.end, RunEnd::kFailed);
  return outcome.status.ok() ? Error(error(Code::kInternal, "the run did not fail"))
                             : outcome.status.error();
}

}  // namespace primerl::testing
