// Binding of [node.*], and the rules about nodes.
#include <algorithm>
#include <map>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

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

/// An engine may do without a weight channel: it keeps the weights of its model folder.
bool may_lack_weights(const DraftNode& node) {
  return std::ranges::any_of(node.contract->resources,
                             [](const ResourceUse& use) { return use.kind == "engine"; });
}

/// Checks options that name something in the graph, and fills in those that are left out.
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
    } else if (kind == "resource:weight_channel" && name == kNoWeights && may_lack_weights(node)) {
      continue;
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
      auto& found = draft.diagnostics.error(
          "G019", span, "{} names tenant '{}', which does not exist", what, name);
      found.note(fmt::format("tenants: {}", join_names(known)));
      suggest_name(found, name, known);
    }
  }
}

/// Called after resolve_references(): resolves resources to indices and notes their users.
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
  Table& table = *node.spec->table;
  const std::string what = fmt::format("node '{}'", node.spec->name);
  correct_key(table, what, *node_options().find("actor"), kCommon, draft.diagnostics);
  node.common.actor = text_of(table, "actor");
  if (!node.common.actor.empty()) find_actor(node, draft);
  if (node.contract == nullptr) {
    Table common = only(table, kCommon);
    node_options().bind(common, what, {}, &node.common, draft.diagnostics);
    return;
  }
  const auto& options = node.contract->options;
  // Another actor than the loop's may lack options that the loop states for it.
  std::erase_if(table.entries, [&](const Entry& entry) {
    return draft.sources.is_built_in(entry.key_span) && options.find(entry.key) == nullptr &&
           std::ranges::find(kCommon, entry.key) == kCommon.end();
  });
  node.options = options.make ? options.make() : nullptr;
  const size_t num_errors = draft.diagnostics.num_errors();
  options.bind(table, what, kCommon, node.options.get(), draft.diagnostics);
  node_options().bind(table, what, options.names(), &node.common, draft.diagnostics);
  resolve_files(options, table, node.options.get(), what, draft);
  if (draft.diagnostics.num_errors() == num_errors)
    note_digests(options, table, node.options.get(), draft);
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
        .suggest("remove [edges]: then the standard loop is implied, or add tables [node.*]");
}

void check_single(Draft& draft) {
  std::map<std::string_view, const DraftNode*> first;
  for (const auto& node : draft.nodes) {
    if (node.contract == nullptr || !node.contract->is_single) continue;
    if (node.common.replicas > 1)
      draft.diagnostics
          .error("G070", value_span(*node.spec, "replicas"),
                 "node '{}' has {} replicas, but there can be only one '{}'{}", node.spec->name,
                 node.common.replicas, node.contract->name,
                 node.common.per_tenant ? " per tenant" : "")
          .suggest("remove 'replicas'");
    if (const int64_t replicas = place_replicas(draft, node); replicas > 1) {
      const auto& place = draft.places[static_cast<size_t>(node.place)];
      draft.diagnostics
          .error("G070", value_span(*place.spec, "replicas"),
                 "place '{}' has {} replicas, but there can be only one '{}'{}, node '{}'",
                 place.spec->name, replicas, node.contract->name,
                 node.common.per_tenant ? " per tenant" : "", node.spec->name)
          .suggest(fmt::format("put '{}' into a place without replicas", node.spec->name));
    }
    const auto [other, is_first] = first.emplace(node.contract->name, &node);
    if (!is_first)
      draft.diagnostics
          .error("G070",
                 written_span(draft,
                              {node.spec->name_span, value_span(*other->second->spec, "actor")}),
                 "node '{}' is a second '{}', but a graph can have only one", node.spec->name,
                 node.contract->name)
          .note(fmt::format("the first is node '{}'", other->second->spec->name));
  }
}

void check_one_tenant(Draft& draft) {
  const bool has_limits = draft.any_tenant.has_value();
  if (draft.num_slots() < 2 && !has_limits) return;
  std::vector<std::string> tenants;
  for (const auto& tenant : draft.tenants) tenants.push_back(tenant.spec->name);
  const Span second =
      has_limits ? draft.any_tenant->spec->name_span : draft.tenants[1].spec->name_span;
  for (const auto& node : draft.nodes) {
    if (node.contract == nullptr || !node.contract->is_one_tenant || node.common.per_tenant)
      continue;
    draft.diagnostics
        .error("G067", written_span(draft, {node.spec->name_span, second}),
               "{} share node '{}', but an instance of '{}' serves one tenant",
               has_limits ? std::string("the tenants of all slots")
                          : fmt::format("{} tenants", tenants.size()),
               node.spec->name, node.contract->name)
        .note(has_limits ? fmt::format("slots of [graph.tenant_limits]: {}", draft.num_slots())
                         : fmt::format("tenants: {}", join_names(tenants)))
        .suggest(draft.sources.is_built_in(node.spec->name_span)
                     ? write_help(draft, "node", *node.spec, "per_tenant = true")
                     : fmt::format("write per_tenant = true in [node.{}]", node.spec->name));
  }
}

void check_restart(Draft& draft) {
  for (const auto& node : draft.nodes)
    if (node.contract != nullptr && node.common.on_error == "restart" &&
        !node.contract->is_restartable)
      draft.diagnostics
          .error("G071", value_span(*node.spec, "on_error"),
                 "node '{}' cannot restart: actor '{}' has state that it cannot save",
                 node.spec->name, node.contract->name)
          .suggest("write on_error = \"drop\" or \"stop\"");
}

}  // namespace primerl
