#include "graph/check/draft.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <set>

namespace primerl {

size_t Draft::num_slots() const {
  return std::max(tenants.size(), static_cast<size_t>(settings.tenant_limits.tenants_max));
}

std::vector<Tenant> Draft::free_slots() const {
  auto slots = limit_values();
  slots.erase(slots.begin(),
              slots.begin() + static_cast<ptrdiff_t>(std::min(slots.size(), tenants.size())));
  return slots;
}

std::vector<Tenant> Draft::tenant_values() const {
  std::vector<Tenant> values;
  values.reserve(num_slots());
  for (const auto& tenant : tenants) values.push_back(tenant.value());
  for (auto& slot : free_slots()) values.push_back(std::move(slot));
  return values;
}

std::vector<Tenant> Draft::limit_values(const SlotChange& change) const {
  std::vector<Tenant> values;
  for (uint32_t slot = 0; any_tenant && slot < num_slots(); ++slot) {
    Tenant& tenant = values.emplace_back(any_tenant->value(TenantSlot(slot)));
    tenant.name = fmt::format("slot-{}", slot);
    if (change) change(tenant);
  }
  return values;
}

std::vector<DraftTenant*> Draft::all_tenants() {
  std::vector<DraftTenant*> all;
  for (auto& tenant : tenants) all.push_back(&tenant);
  if (any_tenant) all.push_back(&*any_tenant);
  return all;
}

bool is_exclusive(std::string_view resource_kind) {
  return resource_kind != kTokenizerKind && resource_kind != kWeightChannelKind;
}

bool has_no_weights(const DraftNode& node) {
  return node.contract != nullptr && node.options != nullptr &&
         std::ranges::any_of(node.contract->resources, [&](const ResourceUse& use) {
           return use.kind == kWeightChannelKind && use.reference(node.options.get()) == kNoWeights;
         });
}

bool is_frozen(const Draft& draft, const DraftResource& resource) {
  return resource.common.kind == "engine" && !resource.users.empty() &&
         std::ranges::all_of(resource.users, [&](int32_t user) {
           return has_no_weights(draft.nodes[static_cast<size_t>(user)]);
         });
}

bool is_here(const Draft& draft, const DraftNode& node) {
  return node.place < 0 || draft.places.empty() ||
         !draft.places[static_cast<size_t>(node.place)].is_elsewhere();
}

bool is_used_here(const Draft& draft, const DraftResource& resource) {
  return std::ranges::any_of(resource.users, [&](int32_t user) {
    return is_here(draft, draft.nodes[static_cast<size_t>(user)]);
  });
}

std::set<std::string> devices_of(const PlaceOptions& place) {
  if (!place.devices.empty()) return {place.devices.begin(), place.devices.end()};
  return {place.device.empty() ? "cpu" : place.device};
}

std::set<std::string> devices_of(const Draft& draft, const DraftResource& resource) {
  std::set<std::string> devices;
  for (const int32_t user : resource.users) {
    const int32_t place = draft.nodes[static_cast<size_t>(user)].place;
    if (place < 0 || static_cast<size_t>(place) >= draft.places.size())
      devices.insert("cpu");
    else
      devices.merge(devices_of(draft.places[static_cast<size_t>(place)].options));
  }
  return devices;
}

int64_t count_instances(const Draft& draft, const DraftNode& node) {
  const auto slots = static_cast<int64_t>(node.common.per_tenant ? draft.num_slots() : 1);
  return slots * node.common.replicas * place_replicas(draft, node);
}

int64_t place_replicas(const Draft& draft, const DraftNode& node) {
  if (node.place < 0 || static_cast<size_t>(node.place) >= draft.places.size()) return 1;
  return draft.places[static_cast<size_t>(node.place)].options.replicas;
}

EdgeTransport transport_of(const Draft& draft, const DraftEdge& edge) {
  const int32_t from = draft.nodes[static_cast<size_t>(edge.from)].place;
  const int32_t to = draft.nodes[static_cast<size_t>(edge.to)].place;
  if (draft.places.empty() || from == to) return EdgeTransport::kMemory;
  const auto host = [&draft](int32_t place) {
    const auto& placed = draft.places[static_cast<size_t>(place)];
    return placed.is_elsewhere() ? placed.options.host : std::string();
  };
  if (host(from) != host(to) || edge.spec->transport == "tcp") return EdgeTransport::kTcp;
  return EdgeTransport::kIpc;
}

namespace {

/// Most requests that are open at once of the teachers that send to `node`, the router of their
/// engine; 0 if there are none. A teacher states how many answers may be in flight to it.
int64_t requests_of_teachers(const Draft& draft, int32_t node, const std::vector<Tenant>& tenants) {
  int64_t requests = 0;
  for (const auto& edge : draft.edges) {
    if (!edge.is_whole() || edge.to != node || edge.spec->feedback) continue;
    const auto& from = draft.nodes[static_cast<size_t>(edge.from)];
    if (from.contract == nullptr || !from.contract->is_teacher) continue;
    for (const auto& input : from.contract->inputs)
      if (input.at_most)
        requests = std::max(requests, input.at_most->value(from.options.get(), tenants));
  }
  return requests;
}

/// The bound that an output states. Bounds of a router grow with Tenant::inflight_max, the rollouts
/// in flight. The router of a teacher's engine has the teacher's requests instead: in supervised
/// training no rollout is in flight.
int64_t bound_of_output(const Draft& draft, const DraftEdge& edge, const Amount& amount,
                        const std::vector<Tenant>& tenants) {
  const void* const options = draft.nodes[static_cast<size_t>(edge.from)].options.get();
  const int64_t requests = requests_of_teachers(draft, edge.from, tenants);
  if (requests == 0) return amount.value(options, tenants);
  auto asked = tenants;
  for (Tenant& tenant : asked) tenant.inflight_max = tenant.teacher.is_there() ? requests : 0;
  return amount.value(options, asked);
}

}  // namespace

FeedbackNumber feedback_number(const Draft& draft, const DraftEdge& edge,
                               const std::vector<Tenant>& tenants) {
  const auto& from = draft.nodes[static_cast<size_t>(edge.from)];
  const auto& to = draft.nodes[static_cast<size_t>(edge.to)];
  const auto& output = from.contract->outputs[static_cast<size_t>(edge.output)];
  const auto& input = to.contract->inputs[static_cast<size_t>(edge.input)];
  FeedbackNumber number;
  number.is_stated = true;
  if (input.latest_wins) {
    number.latest_wins = true;
    number.at_most =
        from.common.per_tenant ? 1 : std::max<int64_t>(1, static_cast<int64_t>(draft.num_slots()));
    number.text = "the latest of each sender and tenant";
  } else if (output.at_most || input.at_most) {
    // If both ports state a bound, the smaller one is used.
    number.at_most = std::numeric_limits<int64_t>::max();
    const auto take = [&](const Amount& amount, int64_t value) {
      if (value >= number.at_most) return;
      number.at_most = value;
      number.text = amount.text;
    };
    if (output.at_most)
      take(*output.at_most, bound_of_output(draft, edge, *output.at_most, tenants));
    if (input.at_most) take(*input.at_most, input.at_most->value(to.options.get(), tenants));
  } else {
    number.is_stated = false;
  }
  return number;
}

RecordPolicy record_policy(const Draft& draft, const DraftEdge& edge) {
  for (const auto policy :
       {RecordPolicy::kNone, RecordPolicy::kHeader, RecordPolicy::kInput, RecordPolicy::kPayload})
    if (edge.spec->record == to_string(policy)) return policy;
  const auto& from = draft.nodes[static_cast<size_t>(edge.from)];
  if (from.contract->outputs[static_cast<size_t>(edge.output)].is_recorded)
    return RecordPolicy::kPayload;
  // After a crash, a process resumes without the processes that sent to it, so their messages must
  // be in its record.
  return from.place == draft.nodes[static_cast<size_t>(edge.to)].place ? RecordPolicy::kHeader
                                                                       : RecordPolicy::kInput;
}

std::vector<int32_t> actor_groups(const Draft& draft) {
  std::vector<int32_t> group(draft.nodes.size());
  std::iota(group.begin(), group.end(), 0);
  const auto root = [&group](int32_t node) {
    while (group[static_cast<size_t>(node)] != node) node = group[static_cast<size_t>(node)];
    return node;
  };
  for (const auto& resource : draft.resources) {
    if (!is_exclusive(resource.common.kind)) continue;
    // There is one copy per process: only users in one process share a thread.
    std::map<int32_t, int32_t> first_of_place;
    for (const int32_t user : resource.users) {
      const int32_t place = draft.nodes[static_cast<size_t>(user)].place;
      const auto [first, is_new] = first_of_place.emplace(place, user);
      if (is_new) continue;
      const int32_t a = root(user), b = root(first->second);
      group[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
    }
  }
  for (size_t node = 0; node < group.size(); ++node) group[node] = root(static_cast<int32_t>(node));
  return group;
}

}  // namespace primerl
