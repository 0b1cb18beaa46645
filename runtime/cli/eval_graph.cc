#include "runtime/cli/eval_graph.h"

#include <algorithm>
#include <set>

#include "graph/base/suggest.h"
#include "graph/config/toml_source.h"
#include "graph/config/toml_value.h"
#include "graph/tenant_outside.h"

namespace primerl {
namespace {

constexpr std::string_view kGroupOutput = "group", kGateway = "gateway";

using Names = std::set<std::string, std::less<>>;

Table& table_of(Table& parent, std::string_view key) {
  Entry* entry = parent.find(key);
  CHECK(entry != nullptr && entry->value.is_table(), "a resolved graph lacks a table");
  return entry->value.as_table();
}

void set_value(Table& table, const std::string& key, Value value) {
  if (Entry* entry = table.find(key))
    entry->value = std::move(value);
  else
    table.entries.push_back({key, {}, std::move(value)});
}

void remove_key(Table& table, std::string_view key) {
  std::erase_if(table.entries, [key](const Entry& entry) { return entry.key == key; });
}

bool is_rollout(const PlanNode& node) { return node.contract->name == "rollout"; }

/// All nodes but those that get groups, directly or from each other, and gateways, whose clients
/// would need a live version. A gateway stays if an environment drives rollouts.
Names players_of(const Plan& plan) {
  std::set<NodeId> trains;
  const auto add = [&](const PlanEdge& edge) {
    const PlanNode& from = plan.node(edge.from);
    const bool is_group =
        is_rollout(from) && from.contract->outputs[edge.output].name == kGroupOutput;
    return !edge.feedback && (is_group || trains.contains(edge.from)) &&
           trains.insert(edge.to).second;
  };
  while (std::ranges::any_of(plan.edges, add)) {
  }
  const bool keeps_gateway = std::ranges::any_of(plan.tenants, &drives_rollouts);
  Names players;
  for (uint32_t i = 0; i < plan.nodes.size(); ++i) {
    const bool is_gateway = plan.nodes[i].contract->name == kGateway;
    if (!trains.contains(NodeId(i)) && (keeps_gateway || !is_gateway))
      players.insert(plan.nodes[i].name);
  }
  return players;
}

/// The node names of "a.x -> b.y".
std::pair<std::string_view, std::string_view> ends_of(std::string_view path) {
  const size_t arrow = path.find("->");
  std::string_view from = path.substr(0, path.find('.')), to = path.substr(arrow + 2);
  to.remove_prefix(std::min(to.find_first_not_of(' '), to.size()));
  return {from, to.substr(0, to.find('.'))};
}

void keep_edges(Table& edges, const Names& players) {
  for (Entry& list : edges.entries)
    std::erase_if(list.value.as_array(), [&](const Value& edge) {
      const auto [from, to] = ends_of(edge.as_table().find("path")->value.as_string());
      return !players.contains(from) || !players.contains(to);
    });
}

/// The strings among the values of nodes or resources: names of resources and models.
Names strings_in(const Table& tables) {
  Names names;
  for (const Entry& table : tables.entries)
    for (const Entry& option : table.value.as_table().entries)
      if (option.value.is_string()) names.insert(option.value.as_string());
  return names;
}

/// Keeps the resources that the nodes name, and the models that either of them names.
void keep_named(Table& root) {
  Names named = strings_in(table_of(root, "node"));
  const auto drop_unnamed = [&named](Table& tables) {
    std::erase_if(tables.entries,
                  [&named](const Entry& table) { return !named.contains(table.key); });
  };
  Table& resources = table_of(root, "resource");
  drop_unnamed(resources);
  named.merge(strings_in(resources));
  if (Entry* models = root.find("model")) drop_unnamed(models->value.as_table());
}

void keep_places(Table& root, const Names& players) {
  Entry* places = root.find("place");
  if (places == nullptr) return;
  for (Entry& place : places->value.as_table().entries)
    std::erase_if(table_of(places->value.as_table(), place.key).find("nodes")->value.as_array(),
                  [&](const Value& node) { return !players.contains(node.as_string()); });
  std::erase_if(places->value.as_table().entries, [](const Entry& place) {
    return place.value.as_table().find("nodes")->value.as_array().empty();
  });
}

/// The folder replaces the model whose tokenizer the rollouts use.
Status change_model(Table& root, const std::string& folder) {
  if (folder.empty()) return ok();
  Names names;
  for (const Entry& node : table_of(root, "node").entries) {
    const Table& options = node.value.as_table();
    const Entry* model = options.find("model");
    if (options.find("actor")->value.as_string() == "rollout" && model != nullptr)
      names.insert(model->value.as_string());
  }
  Entry* models = root.find("model");
  Entry* chosen = names.size() == 1 && models != nullptr
                      ? models->value.as_table().find(*names.begin())
                      : nullptr;
  if (chosen == nullptr)
    return error(Code::kInvalid,
                 "--model replaces the model of the rollouts, and this graph has {}", names.size())
        .note(names.empty()
                  ? "its rollouts name no model"
                  : "models: " + join_names(std::vector<std::string>(names.begin(), names.end())))
        .note("write the folder in the graph, or with --set model.NAME.path=DIR");
  set_value(chosen->value.as_table(), "path", Value(folder, {}));
  return ok();
}

void change_tenant(Table& tenant, const EvaluationChanges& changes) {
  remove_key(tenant, "adapter");
  remove_key(tenant, "teacher");
  set_value(tenant, "epochs", Value(int64_t{0}, {}));
  remove_key(tenant, "curriculum");
  Table& eval = table_of(tenant, "eval");
  set_value(eval, "interval", Value(int64_t{0}, {}));
  const auto change = [&](Table& table) {
    if (changes.samples > 0) set_value(table, "samples", Value(changes.samples, {}));
    if (changes.rows > 0) set_value(table, "rows", Value(changes.rows, {}));
  };
  change(eval);
  Entry* const environments = tenant.find("environments");
  if (environments == nullptr || !environments->value.is_array()) return;
  for (Value& item : environments->value.as_array()) {
    if (!item.is_table()) continue;
    remove_key(item.as_table(), "curriculum");
    change(table_of(item.as_table(), "eval"));
  }
}

/// What `check` would say of the values of the command line, with their names there.
Status check_changes(const Tenant& tenant, const EvaluationChanges& changes) {
  for (size_t i = 0; i < tenant.num_environments(); ++i) {
    const Tenant& own = tenant.in_environment(i);
    const EnvironmentContract* environment = own.environment.contract;
    EnvironmentContract::Rows rows;
    if (environment != nullptr && environment->rows) {
      ASSIGN_OR_RETURN(rows, environment->rows(own.environment.options.get()));
    }
    const std::string who =
        fmt::format("environment '{}' of tenant '{}'", own.environment_label(), own.name);
    if (rows.num_evaluation == 0 && changes.rows == 0 && own.eval.rows == 0)
      return error(Code::kInvalid, "{} has no rows, so an evaluation would have no end", who)
          .note("give --rows N");
    if (rows.num_evaluation > 0 && changes.rows > rows.num_evaluation)
      return error(Code::kInvalid, "--rows is {}, but {} has {} to evaluate", changes.rows, who,
                   rows.num_evaluation);
  }
  if (changes.samples > tenant.inflight_max)
    return error(Code::kInvalid, "--k is {}, but tenant '{}' may have {} rollouts in flight",
                 changes.samples, tenant.name, tenant.inflight_max)
        .note("the rollouts of a row start together; raise max_inflight of the rollout node");
  return ok();
}

Status keep_tenants(Table& root, const EvaluationChanges& changes) {
  Table& tenants = table_of(root, "tenant");
  std::vector<std::string> names;
  for (const Entry& tenant : tenants.entries) names.push_back(tenant.key);
  if (!changes.tenant.empty()) {
    if (tenants.find(changes.tenant) == nullptr)
      return unknown_tenant(changes.tenant, names, "this graph");
    std::erase_if(tenants.entries,
                  [&](const Entry& tenant) { return tenant.key != changes.tenant; });
  }
  for (Entry& tenant : tenants.entries) change_tenant(tenant.value.as_table(), changes);
  return ok();
}

}  // namespace

Result<std::string> evaluation_graph(const Plan& plan, const EvaluationChanges& changes) {
  const Names players = players_of(plan);
  if (std::ranges::none_of(plan.nodes, is_rollout))
    return error(Code::kInvalid, "graph '{}' plays no rollouts, so nothing can be evaluated",
                 plan.settings.name)
        .note(
            "supervised training has no engine: name a graph with a node of actor 'rollout', "
            "and the trained folder with --model");
  if (plan.tenants.empty())
    return error(Code::kInvalid, "graph '{}' has no tenant to evaluate", plan.settings.name)
        .note("add a table [tenant.<name>] with environment = { name = ... }");
  Sources sources;
  Diagnostics diagnostics;
  auto root =
      parse_toml(sources, sources.add("the resolved graph", plan.resolved_toml), diagnostics);
  CHECK(root.has_value(), "a resolved graph is not TOML");
  for (const Tenant& tenant : plan.tenants)
    if (changes.tenant.empty() || changes.tenant == tenant.name)
      RETURN_IF_ERROR(check_changes(tenant, changes));
  set_value(table_of(*root, "graph"), "name", Value(plan.settings.name + "-eval", {}));
  remove_key(table_of(*root, "graph"), "tenant_limits");  // of adapters, which are left out
  RETURN_IF_ERROR(keep_tenants(*root, changes));
  Table& nodes = table_of(*root, "node");
  std::erase_if(nodes.entries, [&](const Entry& node) { return !players.contains(node.key); });
  for (Entry& node : nodes.entries)
    if (node.value.as_table().find("actor")->value.as_string() == "rollout")
      set_value(node.value.as_table(), "evaluates_only", Value(true, {}));
  keep_named(*root);
  keep_edges(table_of(*root, "edges"), players);
  keep_places(*root, players);
  RETURN_IF_ERROR(change_model(*root, changes.model));
  return toml_document(*root);
}

}  // namespace primerl
