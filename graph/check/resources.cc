// Binding of [resource.*], and the rules about the users of resources.
#include <algorithm>
#include <set>

#include "graph/base/suggest.h"
#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

std::vector<std::string> known_kinds(const Catalog& catalog) {
  std::vector<std::string> kinds;
  for (const auto& resource : catalog.resources)
    if (std::find(kinds.begin(), kinds.end(), resource.kind) == kinds.end())
      kinds.push_back(resource.kind);
  return kinds;
}

std::vector<std::string> known_backends(const Catalog& catalog, std::string_view kind) {
  std::vector<std::string> backends;
  for (const auto& resource : catalog.resources)
    if (resource.kind == kind) backends.push_back(resource.backend);
  return backends;
}

std::string default_backend(const Catalog& catalog, const std::string& kind) {
  const auto backends = known_backends(catalog, kind);
  // Some kinds have a backend "auto", for which another one is chosen later.
  const bool has_auto = std::find(backends.begin(), backends.end(), "auto") != backends.end();
  const std::string usual = kind != kWeightChannelKind ? "torch" : has_auto ? "auto" : "memory";
  if (std::find(backends.begin(), backends.end(), usual) != backends.end()) return usual;
  return backends.empty() ? usual : backends.front();
}

Span value_span(const Table& table, std::string_view key) {
  const Entry* entry = table.find(key);
  return entry != nullptr ? entry->value.span : table.span;
}

void find_contract(DraftResource& resource, Draft& draft) {
  auto& common = resource.common;
  const auto kinds = known_kinds(draft.catalog);
  if (std::find(kinds.begin(), kinds.end(), common.kind) == kinds.end()) {
    auto& found = draft.diagnostics.error("G016", value_span(*resource.spec->table, "kind"),
                                          "there is no resource of kind '{}'", common.kind);
    found.note(fmt::format("kinds: {}", join_names(kinds)));
    suggest_name(found, common.kind, kinds);
    return;
  }
  if (common.backend.empty() || (common.kind == kWeightChannelKind && common.backend == "auto"))
    common.backend = default_backend(draft.catalog, common.kind);
  resource.contract = draft.catalog.find_resource(common.kind, common.backend);
  if (resource.contract != nullptr) return;
  const auto backends = known_backends(draft.catalog, common.kind);
  auto& found =
      draft.diagnostics.error("G016", value_span(*resource.spec->table, "backend"),
                              "there is no {} with backend '{}'", common.kind, common.backend);
  found.note(fmt::format("backends of {}: {}", common.kind, join_names(backends)));
  suggest_name(found, common.backend, backends);
}

void find_model(DraftResource& resource, Draft& draft) {
  const Entry* model = resource.spec->table->find("model");
  if (!resource.contract->needs_model) {
    if (model == nullptr) return;
    // A warning, not an error: one flag may run the same file with another backend.
    draft.diagnostics.warning("G042", model->key_span,
                              "resource '{}' ({}, {}) reads no model: this key has no effect",
                              resource.spec->name, resource.common.kind, resource.common.backend);
  }
  const Span span = model != nullptr ? model->value.span : resource.spec->name_span;
  const std::string what = fmt::format("resource '{}'", resource.spec->name);
  resource.model = find_model_index(draft, resource.common.model, span, what);
  if (resource.model >= 0) {
    auto& found = draft.models[static_cast<size_t>(resource.model)];
    found.is_named = true;
    resource.common.model = found.spec->name;
  }
}

void bind_resource(DraftResource& resource, Draft& draft) {
  static const std::vector<std::string> kCommon = resource_options().names();
  Table& table = *resource.spec->table;
  const std::string what = fmt::format("resource '{}'", resource.spec->name);
  for (const auto* key : {"kind", "backend"})
    correct_key(table, what, *resource_options().find(key), kCommon, draft.diagnostics);
  resource.common.kind = text_of(table, "kind");
  resource.common.backend = text_of(table, "backend");
  if (!resource.common.kind.empty()) find_contract(resource, draft);
  if (resource.contract == nullptr) {
    Table common = only(table, kCommon);
    resource_options().bind(common, what, {}, &resource.common, draft.diagnostics);
    return;
  }
  const auto& options = resource.contract->options;
  resource.options = options.make ? options.make() : nullptr;
  const size_t num_errors = draft.diagnostics.num_errors();
  options.bind(table, what, kCommon, resource.options.get(), draft.diagnostics);
  resolve_files(options, table, resource.options.get(), what, draft);
  if (resource.contract->validate && draft.diagnostics.num_errors() == num_errors)
    if (const Status valid = resource.contract->validate(resource.options.get()); !valid.ok())
      refuse_options(draft, table, resource.spec->name_span, what, valid.error());
  // A key that both have (`threads`) belongs to the table itself.
  std::vector<std::string> own = options.names();
  std::erase_if(own, [](const std::string& name) {
    return std::find(kCommon.begin(), kCommon.end(), name) != kCommon.end();
  });
  resource_options().bind(table, what, own, &resource.common, draft.diagnostics);
  resource.common.backend = resource.contract->backend;  // if the file has none, or "auto"
  find_model(resource, draft);
}

/// The processes that have a user of the resource, and the names of their places.
struct Homes {
  int64_t num_processes = 0;
  int64_t num_here = 0;  // the number of these on the machine where the run starts
  std::vector<std::string> names;
  std::set<std::string> machines;  // "" is the machine where the run starts
};

Homes homes_of(const Draft& draft, const DraftResource& resource) {
  std::set<int32_t> places;
  Homes homes;
  for (const int32_t user : resource.users) {
    const auto& node = draft.nodes[static_cast<size_t>(user)];
    if (node.place < 0 || !places.insert(node.place).second) continue;
    const int64_t replicas = place_replicas(draft, node);
    const bool is_elsewhere =
        !draft.places.empty() && draft.places[static_cast<size_t>(node.place)].is_elsewhere();
    homes.num_processes += replicas;
    homes.num_here += is_elsewhere ? 0 : replicas;
  }
  for (const int32_t place : places) {
    if (static_cast<size_t>(place) >= draft.places.size()) break;  // a graph without [place]
    const auto& placed = draft.places[static_cast<size_t>(place)];
    const int64_t replicas = placed.options.replicas;
    homes.machines.insert(placed.is_elsewhere() ? placed.options.host : "");
    homes.names.push_back(replicas == 1
                              ? placed.spec->name
                              : fmt::format("{} ({} replicas)", placed.spec->name, replicas));
  }
  return homes;
}

}  // namespace

void bind_resources(Draft& draft) {
  for (const auto& spec : draft.spec.resources) {
    DraftResource resource;
    resource.spec = &spec;
    bind_resource(resource, draft);
    draft.resources.push_back(std::move(resource));
  }
}

void check_resource_copies(Draft& draft) {
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr) continue;
    for (const int32_t user : resource.users) {
      const auto& node = draft.nodes[static_cast<size_t>(user)];
      if (is_exclusive(resource.common.kind) && node.common.replicas > 1)
        draft.diagnostics
            .error("G045", value_span(*node.spec->table, "replicas"),
                   "node '{}' uses {} '{}' and cannot have {} replicas", node.spec->name,
                   resource.common.kind, resource.spec->name, node.common.replicas)
            .suggest("replicate its place instead: each replica has its own resources");
    }
    const auto [num_processes, num_here, names, machines] = homes_of(draft, resource);
    if (num_processes < 2) continue;
    const Span span = written_span(draft, {resource.spec->name_span, place_span(draft, resource)});
    if (resource.contract->one_per_graph)
      draft.diagnostics
          .error("G041", span, "{} '{}' is used in {} places, {}", resource.common.kind,
                 resource.spec->name, num_processes, join_names(names))
          .note("there can be only one copy of it: a second one would train another model")
          .suggest("put its users in one place without replicas");
    else if (resource.common.kind == kWeightChannelKind && resource.common.backend == "memory")
      draft.diagnostics
          .error("G055", span,
                 "weight channel '{}' is in the memory of one process and cannot connect the "
                 "places {}",
                 resource.spec->name, join_names(names))
          .note(fmt::format("backends of weight_channel: {}",
                            join_names(known_backends(draft.catalog, kWeightChannelKind))))
          .suggest(
              "put its users in one place without replicas, or use a backend that connects "
              "processes");
    else if (resource.common.kind == kWeightChannelKind && resource.common.backend == "shm" &&
             machines.size() > 1)
      draft.diagnostics
          .error("G055", span,
                 "weight channel '{}' is in the memory of one machine and cannot connect the "
                 "places {}, which are on {}",
                 resource.spec->name, join_names(names), machines.size())
          .note("shm connects processes of one machine, files those that share a disk, stream any")
          .suggest(
              "write backend = \"stream\", or leave it out: \"auto\" selects a backend that "
              "connects them");
  }
}

void check_shared_learners(Draft& draft) {
  if (draft.tenants.size() < 2) return;
  std::vector<std::string> whole;  // tenants that train all weights
  for (const DraftTenant& each : draft.tenants)
    if (!each.tenant.adapter.is_there()) whole.push_back(each.tenant.name);
  if (whole.empty()) return;
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr || !resource.contract->one_per_graph) continue;
    std::vector<std::string> users;
    for (const int32_t user : resource.users) {
      const auto& node = draft.nodes[static_cast<size_t>(user)];
      if (node.common.per_tenant) users.push_back(node.spec->name);
    }
    if (users.empty()) continue;
    const auto first = std::ranges::find(draft.tenants, whole.front(),
                                         [](const DraftTenant& each) { return each.tenant.name; });
    draft.diagnostics
        .error("G048", written_span(draft, {resource.spec->name_span, first->spec->name_span}),
               "{} tenants share {} '{}', but {} would train all its weights", draft.tenants.size(),
               resource.common.kind, resource.spec->name, join_names(whole))
        .note(fmt::format("per_tenant nodes that use it: {}", join_names(users)))
        .note("all tenants share the weights of the model; each has its own adapter")
        .suggest(fmt::format("add [tenant.{}.adapter] with a rank, or train it with a graph of "
                             "its own",
                             whole.front()));
  }
}

void check_adapter_slots(Draft& draft) {
  const auto tenants = draft.tenant_values();
  const auto num_adapters = std::ranges::count_if(
      tenants, [](const Tenant& tenant) { return tenant.adapter.is_there(); });
  for (const auto& resource : draft.resources) {
    const Entry* slots = resource.spec->table->find("adapter_slots");
    if (resource.contract == nullptr || slots == nullptr || !slots->value.is_integer()) continue;
    const int64_t asked = slots->value.as_integer();
    if (asked <= num_adapters) continue;
    const Span span = slots->value.span;
    if (num_adapters == 0)
      draft.diagnostics
          .warning("G074", span,
                   "engine '{}' has {} adapter slots, but no tenant trains an adapter",
                   resource.spec->name, asked)
          .suggest("add [tenant.<name>.adapter] with a rank, or remove the key");
    else
      draft.diagnostics
          .warning("G074", span, "engine '{}' has {} adapter slots, but there {} {} adapter{}",
                   resource.spec->name, asked, num_adapters == 1 ? "is" : "are", num_adapters,
                   num_adapters == 1 ? "" : "s")
          .suggest(fmt::format(
              "write {} or less, or remove the key: then there is one slot for each adapter",
              num_adapters));
  }
}

/// Whether an option such as "schedule.min_lr" has its default. A resolved graph writes all of
/// them.
bool has_default(const OptionSet& set, void* options, std::string_view path) {
  const size_t dot = std::min(path.find('.'), path.size());
  const OptionField* field = set.find(path.substr(0, dot));
  if (field == nullptr) return false;
  if (dot == path.size()) return field->print(options) == field->default_text;
  return has_default(*field->table, field->nested(options), path.substr(dot + 1));
}

void check_idle_options(Draft& draft) {
  const auto tenants = draft.tenant_values();
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr || !resource.contract->idle_options) continue;
    const auto devices = devices_of(draft, resource);
    if (devices.empty()) continue;  // check_unused() reports it
    for (const auto& idle :
         resource.contract->idle_options(resource.options.get(), devices, tenants)) {
      const Entry* written = nested_entry(*resource.spec, idle.option);
      if (written == nullptr ||
          has_default(resource.contract->options, resource.options.get(), idle.option))
        continue;
      draft.diagnostics
          .warning("G090", written->value.span, "'{}' of resource '{}' has no effect: {}",
                   idle.option, resource.spec->name, idle.reason)
          .suggest(idle.help);
    }
  }
}

/// Values of a tenant and of its learner may be valid alone, but not together.
void check_training(Draft& draft) {
  for (const auto& resource : draft.resources) {
    const auto* const contract = resource.contract;
    if (contract == nullptr || !contract->check_tenant) continue;
    if (contract->validate && !contract->validate(resource.options.get()).ok()) continue;
    for (const auto& tenant : draft.tenants) {
      const Status valid = contract->check_tenant(resource.options.get(), tenant.tenant);
      if (valid.ok()) continue;
      if (quoted_span(*tenant.spec->table, valid.error())) {
        refuse_options(draft, *tenant.spec->table, tenant.spec->name_span,
                       fmt::format("tenant '{}'", tenant.spec->name), valid.error());
        continue;
      }
      refuse_options(draft, *resource.spec->table, resource.spec->name_span,
                     fmt::format("resource '{}'", resource.spec->name), valid.error());
      break;  // the same for the next tenant
    }
  }
}

void check_unused(Draft& draft) {
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr || !resource.users.empty()) continue;
    const auto& doubtful = draft.doubtful_kinds;
    if (std::find(doubtful.begin(), doubtful.end(), resource.common.kind) != doubtful.end())
      continue;
    draft.diagnostics
        .error("G043", resource.spec->name_span, "no node uses resource '{}'", resource.spec->name)
        .suggest(fmt::format("name it in a node, or remove [resource.{}]", resource.spec->name));
  }
  // A resource or node that could not be resolved may be the one that names the model.
  const bool all_resolved =
      std::all_of(draft.resources.begin(), draft.resources.end(),
                  [](const DraftResource& resource) { return resource.contract != nullptr; }) &&
      std::all_of(draft.nodes.begin(), draft.nodes.end(),
                  [](const DraftNode& node) { return node.contract != nullptr; });
  for (const auto& model : draft.models)
    if (all_resolved && !model.is_named)
      draft.diagnostics
          .error("G043", model.spec->name_span, "nothing uses model '{}'", model.spec->name)
          .suggest(fmt::format("name it in a resource, or remove [model.{}]", model.spec->name));
}

void check_threads(Draft& draft) {
  int64_t total = 0, num_pools = 0;
  std::vector<std::string> shares;
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr || !resource.contract->computes) continue;
    if (resource.common.threads == 0 || resource.users.empty()) continue;
    const int64_t copies = homes_of(draft, resource).num_here;
    if (copies == 0) continue;
    num_pools += copies;
    total += copies * resource.common.threads;
    shares.push_back(copies == 1
                         ? fmt::format("'{}' {}", resource.spec->name, resource.common.threads)
                         : fmt::format("'{}' {} times {}", resource.spec->name, copies,
                                       resource.common.threads));
  }
  if (total <= draft.cores || num_pools < 2) return;
  for (const auto& resource : draft.resources) {
    const Entry* threads = resource.spec->table->find("threads");
    if (threads == nullptr || resource.contract == nullptr || !resource.contract->computes)
      continue;
    draft.diagnostics
        .warning("G047", threads->value.span, "{} compute threads share {} cores", total,
                 draft.cores)
        .note(fmt::format("threads: {}", join_names(shares)))
        .suggest(
            "give them fewer threads: two pools on the same cores slow each other down many times");
    return;
  }
}

}  // namespace primerl
