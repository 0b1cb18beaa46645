#include "graph/resolve.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>

namespace primerl {
namespace {

const std::string& name_of(const Draft& draft, int32_t node) {
  return draft.nodes[static_cast<size_t>(node)].spec->name;
}

/// Along the forward edges, the smallest name first among those that are ready.
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
    Tenant tenant = draft.tenants[static_cast<size_t>(index)].tenant;
    tenant.slot = TenantSlot(static_cast<uint32_t>(plan.tenants.size()));
    plan.tenants.push_back(std::move(tenant));
  }
  for (const int32_t index : order_by_name(draft.models)) {
    const auto& model = draft.models[static_cast<size_t>(index)];
    plan.models.push_back({model.spec->name, model.path});
  }
}

/// Position of `place` in the plan's processes.
uint32_t process_index(const PlanOrder& order, int32_t place) {
  const auto found = std::find(order.places.begin(), order.places.end(), place);
  return found == order.places.end()
             ? 0
             : static_cast<uint32_t>(std::distance(order.places.begin(), found));
}

/// One copy of a resource per process that uses it, weight channels one for all.
class ResourceCopies {
 public:
  ResourceCopies(const Draft& draft, const PlanOrder& order, Plan& plan)
      : draft_(draft),
        order_(order),
        plan_(plan),
        model_index_(inverse(order_by_name(draft.models))) {
    for (const int32_t index : order_by_name(draft.resources)) add(index);
    add_tokenizers();
  }

  int32_t find(const DraftNode& node, size_t use) const {
    const int32_t target = node.uses[use];
    if (node.contract->resources[use].kind == kTokenizerKind)
      return tokenizers_.at({target, node.place});
    const auto shared = copies_.find({target, -1});
    return shared != copies_.end() ? shared->second : copies_.at({target, node.place});
  }

 private:
  void add(int32_t index) {
    const auto& resource = draft_.resources[static_cast<size_t>(index)];
    PlanResource copy;
    copy.name = resource.spec->name;
    copy.kind = resource.common.kind;
    copy.backend = resource.common.backend;
    copy.contract = resource.contract;
    copy.options = resource.options;
    copy.model = resource.model < 0 ? -1 : model_index_[static_cast<size_t>(resource.model)];
    const auto places = places_of(resource);
    copy.threads = threads_of(resource, places);
    for (const int32_t place : places) {
      copies_[{index, place}] = static_cast<int32_t>(plan_.resources.size());
      plan_.resources.push_back(copy);
    }
  }

  std::vector<int32_t> places_of(const DraftResource& resource) const {
    if (!is_exclusive(resource.common.kind)) return {-1};
    std::vector<int32_t> places;
    for (const int32_t user : resource.users)
      places.push_back(draft_.nodes[static_cast<size_t>(user)].place);
    std::sort(places.begin(), places.end(), [this](int32_t a, int32_t b) {
      return process_index(order_, a) < process_index(order_, b);
    });
    places.erase(std::unique(places.begin(), places.end()), places.end());
    return places;
  }

  /// Cores of a process divided by its compute resources, at least 1; processes share evenly. All
  /// copies of a resource have the same number: that of its most crowded process.
  int32_t threads_of(const DraftResource& resource, const std::vector<int32_t>& places) const {
    if (resource.common.threads > 0) return static_cast<int32_t>(resource.common.threads);
    if (!resource.contract->computes) return 1;
    std::map<int32_t, int32_t> computing;  // compute resources by place
    for (const auto& other : draft_.resources)
      if (other.contract->computes)
        for (const int32_t place : places_of(other)) ++computing[place];
    int32_t crowd = 1;
    for (const int32_t place : places) crowd = std::max(crowd, computing[place]);
    const auto processes = std::max(1, static_cast<int32_t>(computing.size()));
    return std::max(1, draft_.cores / processes / crowd);
  }

  void add_tokenizers() {
    std::set<std::tuple<std::string_view, uint32_t, int32_t, int32_t>> used;
    for (const auto& node : draft_.nodes)
      for (size_t use = 0; use < node.uses.size(); ++use)
        if (node.contract->resources[use].kind == kTokenizerKind)
          used.insert({draft_.models[static_cast<size_t>(node.uses[use])].spec->name,
                       process_index(order_, node.place), node.uses[use], node.place});
    for (const auto& [name, process, model, place] : used) {
      PlanResource tokenizer;
      tokenizer.name = std::string(name);
      tokenizer.kind = kTokenizerKind;
      tokenizer.model = model_index_[static_cast<size_t>(model)];
      tokenizers_[{model, place}] = static_cast<int32_t>(plan_.resources.size());
      plan_.resources.push_back(std::move(tokenizer));
    }
  }

  const Draft& draft_;
  const PlanOrder& order_;
  Plan& plan_;
  std::vector<int32_t> model_index_;
  std::map<std::pair<int32_t, int32_t>, int32_t> copies_, tokenizers_;
};

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
  return order;
}

void fill_tables(const Draft& draft, const PlanOrder& order, Plan& plan) {
  plan.settings = draft.settings;
  plan.trace = draft.trace;
  fill_tenants_and_models(draft, plan);
  const ResourceCopies copies(draft, order, plan);
  for (const int32_t index : order.nodes) {
    const auto& from = draft.nodes[static_cast<size_t>(index)];
    PlanNode node;
    node.name = from.spec->name;
    node.contract = from.contract;
    node.options = from.options;
    node.per_tenant = from.common.per_tenant;
    node.replicas = static_cast<int32_t>(from.common.replicas);
    node.on_error = on_error_of(from.common.on_error, *from.contract);
    node.restarts_max = static_cast<int32_t>(from.common.restarts_max);
    node.restart_window = from.common.restart_window;
    node.process = ProcessId(process_index(order, from.place));
    for (size_t use = 0; use < from.uses.size(); ++use)
      node.resources.push_back(copies.find(from, use));
    plan.nodes.push_back(std::move(node));
  }
  fill_edges(draft, order, plan);
}

}  // namespace primerl
