// The resources of a plan: one copy in each process that uses it, except weight channels, which
// have one for all.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "graph/resolve.h"
#include "graph/tenant_outside.h"

namespace primerl {
namespace {

class ResourceCopies {
 public:
  ResourceCopies(const Draft& draft, const PlanOrder& order, Plan& plan)
      : draft_(draft), order_(order), plan_(plan) {
    for (size_t i = 0; i < plan.models.size(); ++i)
      model_by_name_[plan.models[i].name] = static_cast<int32_t>(i);
    std::map<std::string_view, const DraftResource*> by_name;
    for (const auto& resource : draft.resources) by_name[resource.spec->name] = &resource;
    for (const auto& [name, resource] : by_name) add(*resource);
    add_tokenizers();
  }

  int32_t find(const DraftNode& node, size_t use, uint32_t process) const {
    const int32_t target = node.uses[use];
    if (target < 0) return -1;  // an engine without a weight channel
    if (node.contract->resources[use].kind == kTokenizerKind)
      return tokenizers_.at({target, process});
    const auto* resource = &draft_.resources[static_cast<size_t>(target)];
    const auto shared = shared_.find(resource);
    return shared != shared_.end() ? shared->second : copies_.at({resource, process});
  }

 private:
  int32_t model_of(int32_t model) const {
    return model < 0 ? -1 : model_by_name_.at(draft_.models[static_cast<size_t>(model)].spec->name);
  }

  void add(const DraftResource& resource) {
    PlanResource copy;
    copy.name = resource.spec->name;
    copy.kind = resource.common.kind;
    copy.backend = resource.common.backend;
    copy.contract = resource.contract;
    copy.options = resource.options;
    copy.model = model_of(resource.model);
    copy.threads = threads_of(resource);
    copy.memory = resource.memory;
    const auto next = [this] { return static_cast<int32_t>(plan_.resources.size()); };
    if (!is_exclusive(copy.kind)) {
      shared_[&resource] = next();
      plan_.resources.push_back(std::move(copy));
      return;
    }
    for (const uint32_t process : processes_of(resource)) {
      copies_[{&resource, process}] = next();
      plan_.resources.push_back(copy);
    }
  }

  std::set<uint32_t> processes_of(const DraftResource& resource) const {
    std::set<uint32_t> processes;
    for (const int32_t user : resource.users) {
      const auto& node = draft_.nodes[static_cast<size_t>(user)];
      const uint32_t first = order_.first_process[static_cast<size_t>(node.place)];
      for (int64_t replica = 0; replica < place_replicas(draft_, node); ++replica)
        processes.insert(first + static_cast<uint32_t>(replica));
    }
    return processes;
  }

  /// The threads of each copy, if the resource does not state them. A process could give each its
  /// cores divided by its compute resources, at least 1; all copies get the smallest of these
  /// numbers.
  int32_t threads_of(const DraftResource& resource) const {
    if (resource.common.threads > 0) return static_cast<int32_t>(resource.common.threads);
    if (!resource.contract->computes) return 1;
    std::map<uint32_t, int32_t> computing;  // compute resources by process
    for (const auto& other : draft_.resources)
      if (other.contract->computes)
        for (const uint32_t process : processes_of(other)) ++computing[process];
    std::map<std::string_view, int32_t> sharing;  // processes that share a machine's cores evenly
    for (const auto& [process, count] : computing)
      if (cores_of(process) == 0) ++sharing[plan_.processes[process].machine];
    int32_t threads = draft_.cores;
    for (const uint32_t process : processes_of(resource)) {
      const int32_t own = cores_of(process);
      const int32_t cores =
          own > 0 ? own : draft_.cores / std::max(sharing[plan_.processes[process].machine], 1);
      threads = std::min(threads, std::max(cores / computing[process], 1));
    }
    return std::max(threads, 1);
  }

  /// The cores that the place states; 0 = a share of the machine's.
  int32_t cores_of(uint32_t process) const {
    const PlanProcess& placed = plan_.processes[process];
    if (placed.place < 0) return 0;
    const auto draft_place = static_cast<size_t>(order_.places[static_cast<size_t>(placed.place)]);
    const auto& options = draft_.places[draft_place].options;
    if (options.threads > 0) return static_cast<int32_t>(options.threads);
    return static_cast<int32_t>(placed.cpus.size());
  }

  void add_tokenizers() {
    std::set<std::tuple<std::string_view, uint32_t, int32_t>> used;
    for (const auto& node : draft_.nodes)
      for (size_t use = 0; use < node.uses.size(); ++use) {
        if (node.contract->resources[use].kind != kTokenizerKind) continue;
        const std::string_view name = draft_.models[static_cast<size_t>(node.uses[use])].spec->name;
        const uint32_t first = order_.first_process[static_cast<size_t>(node.place)];
        for (int64_t replica = 0; replica < place_replicas(draft_, node); ++replica)
          used.insert({name, first + static_cast<uint32_t>(replica), node.uses[use]});
      }
    for (const auto& [name, process, model] : used) {
      PlanResource tokenizer;
      tokenizer.name = std::string(name);
      tokenizer.kind = kTokenizerKind;
      tokenizer.model = model_of(model);
      tokenizers_[{model, process}] = static_cast<int32_t>(plan_.resources.size());
      plan_.resources.push_back(std::move(tokenizer));
    }
  }

  const Draft& draft_;
  const PlanOrder& order_;
  Plan& plan_;
  std::map<std::string_view, int32_t> model_by_name_;
  std::map<const DraftResource*, int32_t> shared_;
  std::map<std::pair<const DraftResource*, uint32_t>, int32_t> copies_;
  std::map<std::pair<int32_t, uint32_t>, int32_t> tokenizers_;
};

}  // namespace

/// The environment and the rewards of a tenant may ask something outside. Each instance that serves
/// the tenant has workers of its own. In a graph with slots a tenant may join that asks.
void add_outside(const PlanInstance& instance, Plan& plan, std::vector<int32_t>& resources) {
  if (!plan.node(instance.node).contract->asks_outside) return;
  const size_t slot = instance.tenant.is_none() ? 0 : instance.tenant.index();
  const bool may_join = plan.settings.tenant_limits.are_set() && !instance.tenant.is_none();
  TenantOutside outside;
  if (slot < plan.tenants.size()) outside = outside_of(plan.tenants[slot]);
  if (!outside.asks() && !may_join) return;
  PlanResource resource;
  if (may_join) resource.slot = instance.tenant;
  resource.name = instance.name;
  resource.kind = Outside::kResourceKind;
  resource.options = std::make_shared<const OutsideSpec>(std::move(outside.spec));
  resources.push_back(static_cast<int32_t>(plan.resources.size()));
  plan.resources.push_back(std::move(resource));
}

void make_resources(const Draft& draft, const PlanOrder& order,
                    const std::vector<uint32_t>& process_of, Plan& plan) {
  const ResourceCopies copies(draft, order, plan);
  for (size_t i = 0; i < plan.instances.size(); ++i) {
    auto& instance = plan.instances[i];
    const auto& node = draft.nodes[static_cast<size_t>(order.nodes[instance.node.index()])];
    for (size_t use = 0; use < node.uses.size(); ++use)
      instance.resources.push_back(copies.find(node, use, process_of[i]));
    add_outside(instance, plan, instance.resources);
  }
}

}  // namespace primerl
