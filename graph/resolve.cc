#include "graph/resolve.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

namespace primerl {
namespace {

const std::string& name_of(const Draft& draft, int32_t node) {
  return draft.nodes[static_cast<size_t>(node)].spec->name;
}

/// Topological order along the forward edges; of the ready nodes, the smallest name first.
std::vector<int32_t> order_nodes(const Draft& draft) {
  std::vector<int32_t> waiting(draft.nodes.size());
  std::vector<std::vector<int32_t>> leaving(draft.nodes.size());
  for (const auto& edge : draft.edges) {
    if (edge.spec->feedback) continue;
    ++waiting[static_cast<size_t>(edge.to)];
    leaving[static_cast<size_t>(edge.from)].push_back(edge.to);
  }
  const auto later = [&draft](int32_t a, int32_t b) {
    return name_of(draft, a) > name_of(draft, b);
  };
  std::priority_queue<int32_t, std::vector<int32_t>, decltype(later)> ready(later);
  for (size_t node = 0; node < waiting.size(); ++node)
    if (waiting[node] == 0) ready.push(static_cast<int32_t>(node));
  std::vector<int32_t> order;
  while (!ready.empty()) {
    const int32_t node = ready.top();
    ready.pop();
    order.push_back(node);
    for (const int32_t next : leaving[static_cast<size_t>(node)])
      if (--waiting[static_cast<size_t>(next)] == 0) ready.push(next);
  }
  CHECK(order.size() == draft.nodes.size(), "a plan was asked for a graph with a forward cycle");
  return order;
}

template <class T>
std::vector<int32_t> order_by_name(const std::vector<T>& items) {
  std::vector<int32_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&items](int32_t a, int32_t b) {
    return items[static_cast<size_t>(a)].spec->name < items[static_cast<size_t>(b)].spec->name;
  });
  return order;
}

std::vector<int32_t> inverse(const std::vector<int32_t>& order) {
  std::vector<int32_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    place[static_cast<size_t>(order[i])] = static_cast<int32_t>(i);
  return place;
}

OnError on_error_of(const std::string& text, const Contract& contract) {
  if (text == "stop" || (text == "auto" && contract.stops_on_error)) return OnError::kStop;
  return text == "restart" ? OnError::kRestart : OnError::kDrop;
}

void fill_tenants_and_models(const Draft& draft, Plan& plan) {
  for (const int32_t index : order_by_name(draft.tenants)) {
    const TenantSlot slot(static_cast<uint32_t>(plan.tenants.size()));
    Tenant tenant = draft.tenants[static_cast<size_t>(index)].value(slot);
    plan.tenants.push_back(std::move(tenant));
  }
  plan.free_slots = draft.free_slots();
  for (const int32_t index : order_by_name(draft.models)) {
    const auto& model = draft.models[static_cast<size_t>(index)];
    plan.models.push_back({model.spec->name, model.path, model.served_as});
  }
}

/// One process for every replica of every place.
void fill_processes(const Draft& draft, const PlanOrder& order, Plan& plan) {
  if (draft.places.empty()) {
    plan.processes.emplace_back().name = "main";
    plan.processes.back().memory_max = draft.settings.memory_max;
    return;
  }
  for (size_t place = 0; place < order.places.size(); ++place) {
    const auto& from = draft.places[static_cast<size_t>(order.places[place])];
    const auto replicas = static_cast<size_t>(from.options.replicas);
    for (size_t replica = 0; replica < replicas; ++replica) {
      PlanProcess process;
      process.name =
          replicas == 1 ? from.spec->name : fmt::format("{}#{}", from.spec->name, replica);
      process.place = static_cast<int32_t>(place);
      process.replica = static_cast<int32_t>(replica);
      if (!from.options.device.empty()) process.device = from.options.device;
      if (!from.options.devices.empty()) process.device = from.options.devices[replica];
      if (from.is_elsewhere()) process.machine = from.options.host;
      // Adjacent CPUs of the list go to one replica; the remainder is spread over the replicas.
      const auto first = from.cpus.begin();
      process.cpus.assign(
          first + static_cast<ptrdiff_t>(from.cpus.size() * replica / replicas),
          first + static_cast<ptrdiff_t>(from.cpus.size() * (replica + 1) / replicas));
      process.variables = from.options.variables;
      const int64_t own = from.options.memory_max;
      process.memory_max = own > 0 ? own : draft.settings.memory_max;
      plan.processes.push_back(std::move(process));
    }
  }
}

void fill_edges(const Draft& draft, const PlanOrder& order, Plan& plan) {
  const auto node_index = inverse(order.nodes);
  for (const int32_t index : order.edges) {
    const auto& draft_edge = draft.edges[static_cast<size_t>(index)];
    const auto& from = draft.nodes[static_cast<size_t>(draft_edge.from)];
    const auto& to = draft.nodes[static_cast<size_t>(draft_edge.to)];
    PlanEdge edge;
    edge.from = NodeId(static_cast<uint32_t>(node_index[static_cast<size_t>(draft_edge.from)]));
    edge.to = NodeId(static_cast<uint32_t>(node_index[static_cast<size_t>(draft_edge.to)]));
    edge.output = static_cast<uint32_t>(draft_edge.output);
    edge.input = static_cast<uint32_t>(draft_edge.input);
    edge.name =
        fmt::format("{}.{} -> {}.{}", from.spec->name, from.contract->outputs[edge.output].name,
                    to.spec->name, to.contract->inputs[edge.input].name);
    edge.feedback = draft_edge.spec->feedback;
    edge.capacity = draft_edge.spec->capacity;
    edge.bytes_max = draft_edge.spec->bytes_max;
    edge.record = record_policy(draft, draft_edge);
    edge.transport = transport_of(draft, draft_edge);
    plan.edges.push_back(std::move(edge));
  }
}

}  // namespace

PlanOrder order_of(const Draft& draft) {
  PlanOrder order;
  order.nodes = order_nodes(draft);
  const auto node_index = inverse(order.nodes);
  order.edges.resize(draft.edges.size());
  std::iota(order.edges.begin(), order.edges.end(), 0);
  const auto key = [&](int32_t index) {
    const auto& edge = draft.edges[static_cast<size_t>(index)];
    return std::tuple(edge.spec->feedback, node_index[static_cast<size_t>(edge.from)], edge.output,
                      node_index[static_cast<size_t>(edge.to)], edge.input);
  };
  std::sort(order.edges.begin(), order.edges.end(),
            [&key](int32_t a, int32_t b) { return key(a) < key(b); });
  order.places =
      draft.spec.places == nullptr ? std::vector<int32_t>{0} : order_by_name(draft.places);
  order.first_process.resize(order.places.size());
  uint32_t next = 0;
  for (const int32_t place : order.places) {
    order.first_process[static_cast<size_t>(place)] = next;
    next += draft.places.empty()
                ? 1
                : static_cast<uint32_t>(draft.places[static_cast<size_t>(place)].options.replicas);
  }
  return order;
}

void fill_tables(const Draft& draft, const PlanOrder& order, Plan& plan) {
  plan.settings = draft.settings;
  plan.trace = draft.trace;
  fill_tenants_and_models(draft, plan);
  fill_processes(draft, order, plan);
  for (const int32_t index : order.nodes) {
    const auto& from = draft.nodes[static_cast<size_t>(index)];
    PlanNode node;
    node.name = from.spec->name;
    node.contract = from.contract;
    node.options = from.options;
    node.per_tenant = from.common.per_tenant;
    node.replicas = static_cast<int32_t>(from.common.replicas * place_replicas(draft, from));
    node.on_error = on_error_of(from.common.on_error, *from.contract);
    node.restarts_max = static_cast<int32_t>(from.common.restarts_max);
    node.restart_window = from.common.restart_window;
    node.process = ProcessId(order.first_process[static_cast<size_t>(from.place)]);
    plan.nodes.push_back(std::move(node));
  }
  fill_edges(draft, order, plan);
}

}  // namespace primerl
