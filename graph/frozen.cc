#include "graph/frozen.h"

#include <algorithm>

namespace primerl {

bool is_frozen(const Plan& plan, int32_t resource) {
  if (plan.resources[static_cast<size_t>(resource)].kind != "engine") return false;
  return std::ranges::none_of(plan.instances, [&](const PlanInstance& instance) {
    const auto& used = instance.resources;
    return std::ranges::find(used, resource) != used.end() &&
           std::ranges::any_of(used, [&](int32_t other) {
             return other >= 0 &&
                    plan.resources[static_cast<size_t>(other)].kind == "weight_channel";
           });
  });
}

std::vector<Tenant> without_adapters(std::vector<Tenant> tenants) {
  for (Tenant& tenant : tenants) tenant.adapter = {};
  return tenants;
}

std::vector<Tenant> tenants_of_engine(const Plan& plan, int32_t engine) {
  return is_frozen(plan, engine) ? without_adapters(plan.all_slots()) : plan.all_slots();
}

}  // namespace primerl
