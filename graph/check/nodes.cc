// Binding of [node.*], and the rules about nodes and tenants.
#include <algorithm>
#include <charconv>
#include <map>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

Span value_span(const NamedTable& spec, std::string_view key) {
  const Entry* entry = spec.table->find(key);
  return entry != nullptr ? entry->value.span : spec.name_span;
}

void find_actor(DraftNode& node, Draft& draft) {
  node.contract = draft.catalog.find_actor(node.common.actor);
  if (node.contract != nullptr) return;
  std::vector<std::string> known;
  for (const auto& actor : draft.catalog.actors) known.push_back(actor.name);
  auto& found = draft.diagnostics.error("G010", value_span(*node.spec, "actor"),
                                        "there is no actor '{}'", node.common.actor);
  found.note(fmt::format("actors: {}", join_names(known)));
  suggest_name(found, node.common.actor, known);
}

/// Options that name something of the graph: the name is checked, and filled in when left out.
void resolve_references(DraftNode& node, Draft& draft) {
  const std::string what = fmt::format("node '{}'", node.spec->name);
  for (const auto& field : node.contract->options.fields) {
    if (!field.reference) continue;
    std::string& name = *field.reference(node.options.get());
    const std::string& kind = field.constraint.refers.kind;
    const Span span = value_span(*node.spec, field.name);
    if (kind == "model") {
      const int32_t model = find_model_index(draft, name, span, what);
      if (model < 0) continue;
      draft.models[static_cast<size_t>(model)].is_named = true;
      name = draft.models[static_cast<size_t>(model)].spec->name;
    } else if (kind.rfind("resource:", 0) == 0) {
      const int32_t resource =
          find_resource_index(draft, name, kind.substr(9), span, what, field.name);
      if (resource >= 0)
        name = draft.resources[static_cast<size_t>(resource)].spec->name;
      else
        draft.doubtful_kinds.push_back(kind.substr(9));
    } else if (kind == "tenant" && !name.empty()) {
      std::vector<std::string> known;
      for (const auto& tenant : draft.tenants) known.push_back(tenant.spec->name);
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      auto& found = draft.diagnostics.error("G019", span,
                                            "{} names tenant '{}', which is not there", what, name);
      found.note(fmt::format("tenants: {}", join_names(known)));
      suggest_name(found, name, known);
    }
  }
}

/// After the references hold names: indices, and who uses what.
void resolve_uses(DraftNode& node, int32_t index, Draft& draft) {
  for (const auto& use : node.contract->resources) {
    const std::string name = use.reference(node.options.get());
    int32_t target = -1;
    if (use.kind == kTokenizerKind) {
      for (size_t i = 0; i < draft.models.size(); ++i)
        if (draft.models[i].spec->name == name) target = static_cast<int32_t>(i);
    } else {
      for (size_t i = 0; i < draft.resources.size(); ++i)
        if (draft.resources[i].spec->name == name && draft.resources[i].common.kind == use.kind)
          target = static_cast<int32_t>(i);
    }
    node.uses.push_back(target);
    if (target < 0 || use.kind == kTokenizerKind) continue;
    auto& users = draft.resources[static_cast<size_t>(target)].users;
    if (users.empty() || users.back() != index) users.push_back(index);
  }
}

void bind_node(DraftNode& node, int32_t index, Draft& draft) {
  static const std::vector<std::string> kCommon = node_options().names();
  Table common, own;
  common.span = own.span = node.spec->table->span;
  for (const auto& entry : node.spec->table->entries) {
    const bool is_common = std::find(kCommon.begin(), kCommon.end(), entry.key) != kCommon.end();
    (is_common ? common : own).entries.push_back(entry);
  }
  const std::string what = fmt::format("node '{}'", node.spec->name);
  node_options().bind(common, what, {}, &node.common, draft.diagnostics);
  if (node.common.actor.empty()) return;
  find_actor(node, draft);
  if (node.contract == nullptr) return;
  const auto& options = node.contract->options;
  node.options = options.make ? options.make() : nullptr;
  options.bind(own, what, kCommon, node.options.get(), draft.diagnostics);
  resolve_references(node, draft);
  resolve_uses(node, index, draft);
}

}  // namespace

void bind_nodes(Draft& draft) {
  draft.nodes.reserve(draft.spec.nodes.size());
  for (const auto& spec : draft.spec.nodes) {
    DraftNode node;
    node.spec = &spec;
    const auto index = static_cast<int32_t>(draft.nodes.size());
    bind_node(node, index, draft);
    draft.nodes.push_back(std::move(node));
    draft.node_by_name.emplace(spec.name, index);
  }
}

void check_nodes_exist(Draft& draft) {
  if (draft.spec.nodes.empty())
    draft.diagnostics.error("G007", draft.spec.whole, "the graph has no nodes")
        .suggest("add a table [node.env] with actor = \"env\", or start with `primerl-graph init`");
}

void check_tenants_exist(Draft& draft) {
  const auto limit = draft.settings.tenants_max;
  if (limit > 0 && static_cast<int64_t>(draft.tenants.size()) > limit) {
    const Entry* entry = draft.spec.graph->find("tenants_max");
    draft.diagnostics.error("G065", entry->value.span,
                            "the graph has {} tenants, more than 'tenants_max' {}",
                            draft.tenants.size(), limit);
  }
  const auto per_tenant = std::find_if(draft.nodes.begin(), draft.nodes.end(),
                                       [](const auto& node) { return node.common.per_tenant; });
  if (per_tenant == draft.nodes.end()) return;
  if (draft.tenants.empty())
    draft.diagnostics
        .error("G060", per_tenant->spec->name_span,
               "node '{}' is per_tenant, but the graph has no tenant", per_tenant->spec->name)
        .suggest("add a table [tenant.main] with environment = { name = ... }");
  if (draft.catalog.environments.empty()) return;
  for (const auto& tenant : draft.tenants)
    if (tenant.spec->table->find("environment") == nullptr) {
      std::vector<std::string> known;
      for (const auto& environment : draft.catalog.environments) known.push_back(environment.name);
      draft.diagnostics
          .error("G066", tenant.spec->name_span, "tenant '{}' has no environment",
                 tenant.spec->name)
          .note(fmt::format("environments: {}", join_names(known)))
          .suggest(fmt::format("write environment = {{ name = \"{}\" }}", known.front()));
    }
}

void check_batches(Draft& draft) {
  for (const auto& tenant : draft.tenants) {
    const int64_t group = tenant.tenant.group_size, batch = tenant.tenant.batch_size;
    if (batch % group == 0) continue;
    const bool batch_is_written = tenant.spec->table->find("batch_size") != nullptr;
    const int64_t nearest = std::max(group, batch / group * group);
    draft.diagnostics
        .error("G061", value_span(*tenant.spec, batch_is_written ? "batch_size" : "group_size"),
               "'batch_size' {} of tenant '{}' is no multiple of 'group_size' {}", batch,
               tenant.spec->name, group)
        .note("a step trains whole groups: groups a step = batch_size / group_size")
        .suggest(fmt::format("write batch_size = {}", nearest));
  }
}

void check_inflight(Draft& draft) {
  const DraftTenant* largest = nullptr;
  for (const auto& tenant : draft.tenants)
    if (largest == nullptr || tenant.tenant.group_size > largest->tenant.group_size)
      largest = &tenant;
  if (largest == nullptr) return;
  for (const auto& node : draft.nodes) {
    const OptionField* field =
        node.contract != nullptr ? node.contract->options.find("max_inflight") : nullptr;
    if (field == nullptr || field->type != OptionType::kInteger) continue;
    const std::string text = field->print(node.options.get());
    int64_t inflight = 0;
    std::from_chars(text.data(), text.data() + text.size(), inflight);
    if (inflight >= largest->tenant.group_size) continue;
    draft.diagnostics
        .error("G062", value_span(*node.spec, "max_inflight"),
               "'max_inflight' {} of node '{}' is smaller than 'group_size' {} of tenant '{}'",
               inflight, node.spec->name, largest->tenant.group_size, largest->spec->name)
        .note("a group starts only when all its rollouts fit")
        .suggest(fmt::format("write max_inflight = {}", largest->tenant.group_size));
  }
}

void check_sequence_lengths(Draft& draft) {
  const DraftModel* shortest = nullptr;
  for (const auto& model : draft.models) {
    if (!model.is_named || !model.facts || model.facts->max_position_embeddings <= 0) continue;
    if (shortest == nullptr ||
        model.facts->max_position_embeddings < shortest->facts->max_position_embeddings)
      shortest = &model;
  }
  if (shortest == nullptr) return;
  const int64_t limit = shortest->facts->max_position_embeddings;
  for (auto& tenant : draft.tenants) {
    if (tenant.tenant.seq_len <= limit) continue;
    if (!tenant.seq_len_is_written) {
      tenant.tenant.seq_len = limit;
      continue;
    }
    draft.diagnostics
        .error("G064", value_span(*tenant.spec, "seq_len"),
               "'seq_len' {} of tenant '{}' is beyond model '{}', which was made for {} tokens",
               tenant.tenant.seq_len, tenant.spec->name, shortest->spec->name, limit)
        .note(
            fmt::format("max_position_embeddings in '{}/config.json' is {}", shortest->path, limit))
        .suggest(fmt::format("write seq_len = {}", limit));
  }
}

void check_single(Draft& draft) {
  std::map<std::string_view, const DraftNode*> first;
  for (const auto& node : draft.nodes) {
    if (node.contract == nullptr || !node.contract->is_single) continue;
    if (node.common.replicas > 1)
      draft.diagnostics
          .error("G070", value_span(*node.spec, "replicas"),
                 "node '{}' has {} replicas, but there is one '{}'{}", node.spec->name,
                 node.common.replicas, node.contract->name,
                 node.common.per_tenant ? " per tenant" : "")
          .suggest("take 'replicas' out");
    const auto [other, is_first] = first.emplace(node.contract->name, &node);
    if (!is_first)
      draft.diagnostics
          .error("G070", node.spec->name_span, "node '{}' is a second '{}', but a graph has one",
                 node.spec->name, node.contract->name)
          .note(fmt::format("the first is node '{}'", other->second->spec->name));
  }
}

void check_restart(Draft& draft) {
  for (const auto& node : draft.nodes)
    if (node.contract != nullptr && node.common.on_error == "restart" &&
        !node.contract->is_restartable)
      draft.diagnostics
          .error("G071", value_span(*node.spec, "on_error"),
                 "node '{}' cannot restart: actor '{}' has state it cannot give back",
                 node.spec->name, node.contract->name)
          .suggest("write on_error = \"drop\" or \"stop\"");
}

}  // namespace primerl
