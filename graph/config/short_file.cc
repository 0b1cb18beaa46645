#include "graph/config/short_file.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "graph/base/suggest.h"
#include "graph/config/built_in_graphs.h"
#include "graph/config/toml_source.h"

namespace primerl {
namespace {

constexpr std::string_view kWrite = "write ";  // how the help of a finding names a value

/// Whether a user wrote [edges], or a word that probably means it.
bool has_edges(const Table& root) {
  const std::vector<std::string> meant = {"edges"};
  return std::ranges::any_of(root.entries, [&](const Entry& entry) {
    return entry.key == "edges" || !nearest_name(entry.key, meant).empty();
  });
}

Table* table_at(Table& root, std::string_view key) {
  Entry* entry = root.find(key);
  return entry != nullptr && entry->value.is_table() ? &entry->value.as_table() : nullptr;
}

/// A table [resource.x] without a kind probably means a resource of the loop with a similar name.
void correct_loop_resources(Table& root, const Table& loop_resources, Diagnostics& diagnostics) {
  Table* resources = table_at(root, "resource");
  if (resources == nullptr) return;
  std::vector<std::string> unwritten;
  for (const auto& resource : loop_resources.entries)
    if (resources->find(resource.key) == nullptr) unwritten.push_back(resource.key);
  for (auto& entry : resources->entries) {
    if (!entry.value.is_table() || loop_resources.find(entry.key) != nullptr) continue;
    if (entry.value.as_table().find("kind") != nullptr) continue;
    const std::string near = nearest_name(entry.key, unwritten);
    if (near.empty()) continue;
    diagnostics.error("G013", entry.key_span, "nothing names resource '{}'", entry.key)
        .suggest(fmt::format("did you mean [resource.{}]?", near));
    std::erase(unwritten, near);
    entry.key = near;
    entry.is_guess = true;
  }
}

/// Reports tables [node.x] that are not in the loop. A misspelt one is renamed to the node that was
/// meant, and any other is removed, so that one mistake gives one error.
void check_loop_nodes(Table& root, const Table& loop_nodes, const BuiltInGraph& graph,
                      Diagnostics& diagnostics) {
  Table* nodes = table_at(root, "node");
  if (nodes == nullptr) return;
  std::vector<std::string> known, unwritten;
  for (const auto& node : loop_nodes.entries) {
    known.push_back(node.key);
    if (nodes->find(node.key) == nullptr) unwritten.push_back(node.key);
  }
  const auto is_known = [&](const Entry& entry) {
    return std::ranges::find(known, entry.key) != known.end() || !entry.value.is_table();
  };
  for (auto& entry : nodes->entries) {
    if (is_known(entry)) continue;
    auto& found = diagnostics.error("G011", entry.key_span, "the loop '{}' has no node '{}'",
                                    graph.name, entry.key);
    found.note(fmt::format("nodes: {}", join_names(known)));
    const std::string near = nearest_name(entry.key, unwritten);
    if (near.empty()) {
      found.suggest("to add a node, write [edges] with all edges: then nothing is implied");
      continue;
    }
    found.suggest(fmt::format("did you mean [node.{}]?", near));
    std::erase(unwritten, near);
    entry.key = near;
    entry.is_guess = true;
  }
  std::erase_if(nodes->entries, [&](const Entry& entry) { return !is_known(entry); });
}

bool has_name(const Value& table, std::string_view wanted) {
  if (!table.is_table()) return false;
  const Entry* name = table.as_table().find("name");
  return name != nullptr && name->value.is_string() && name->value.as_string() == wanted;
}

bool is_judge(const Value& reward) { return has_name(reward, "judge"); }

/// Whether a tenant, or an item of its `environments`, has a value at `key` for which `is_wanted`.
bool any_tenant(Table& root, std::string_view key, bool (*is_wanted)(const Value& value)) {
  const Table* tenants = table_at(root, "tenant");
  if (tenants == nullptr) return false;
  const auto has = [&](const Value& table) {
    const Entry* entry = table.is_table() ? table.as_table().find(key) : nullptr;
    return entry != nullptr && is_wanted(entry->value);
  };
  return std::ranges::any_of(tenants->entries, [&](const Entry& tenant) {
    if (has(tenant.value)) return true;
    const Entry* items =
        tenant.value.is_table() ? tenant.value.as_table().find("environments") : nullptr;
    return items != nullptr && items->value.is_array() &&
           std::ranges::any_of(items->value.as_array(), has);
  });
}

/// Whether a service of the operator has such a table. A tenant that joins later may name it.
bool any_service(Table& root, std::string_view kind, bool (*is_wanted)(const Value& value)) {
  Table* services = table_at(root, "service");
  const Table* of_kind = services != nullptr ? table_at(*services, kind) : nullptr;
  return of_kind != nullptr && std::ranges::any_of(of_kind->entries, [&](const Entry& service) {
           return is_wanted(service.value);
         });
}

/// Whether an environment of a tenant drives rollouts, or may.
bool has_driven_environment(Table& root) {
  const auto drives = [](const Value& environment) { return has_name(environment, "verifiers"); };
  return any_tenant(root, "environment", drives) || any_service(root, "environment", drives);
}

/// Whether clients train a tenant, or may train one that joins.
bool has_client(Table& root) {
  const auto is_true = [](const Value& value) { return value.is_bool() && value.as_bool(); };
  Table* const graph = table_at(root, "graph");
  const Table* const limits = graph != nullptr ? table_at(*graph, "tenant_limits") : nullptr;
  const Entry* const may_join = limits != nullptr ? limits->find("clients") : nullptr;
  return (may_join != nullptr && is_true(may_join->value)) || any_tenant(root, "client", is_true);
}

/// Whether a tenant's reward, or one of its rewards, is a judge, or may be.
bool has_judge(Table& root) {
  if (any_service(root, "reward", &is_judge)) return true;
  return any_tenant(root, "reward", [](const Value& reward) {
    return is_judge(reward) ||
           (reward.is_array() && std::ranges::any_of(reward.as_array(), &is_judge));
  });
}

/// The name itself if there is such a model, else the nearest one, so that a misspelt name gives
/// one error; none if no name is near.
std::optional<std::string> known_model(Table& root, const std::string& name) {
  const Table* known = table_at(root, "model");
  if (known == nullptr) return std::nullopt;
  if (known->find(name) != nullptr) return name;
  std::vector<std::string> names;
  for (const Entry& model : known->entries) names.push_back(model.key);
  const std::string near = nearest_name(name, names);
  return near.empty() ? std::nullopt : std::optional(near);
}

/// The teacher's model, which the first tenant with a teacher names; none without a teacher.
std::optional<std::string> teacher_model(Table& root) {
  const Table* tenants = table_at(root, "tenant");
  if (tenants == nullptr) return std::nullopt;
  for (const Entry& tenant : tenants->entries) {
    const Entry* teacher =
        tenant.value.is_table() ? tenant.value.as_table().find("teacher") : nullptr;
    if (teacher == nullptr) continue;
    const Entry* model =
        teacher->value.is_table() ? teacher->value.as_table().find("model") : nullptr;
    if (model != nullptr && model->value.is_string() && !model->value.as_string().empty())
      return known_model(root, model->value.as_string());
  }
  return std::nullopt;
}

/// The judge's model is the one that [resource.judge] names, else [model.judge]; empty if neither
/// says it.
std::string judge_model(Table& root) {
  Table* resources = table_at(root, "resource");
  const Table* judge = resources != nullptr ? table_at(*resources, "judge") : nullptr;
  const Entry* named = judge != nullptr ? judge->find("model") : nullptr;
  if (named != nullptr && named->value.is_string()) return named->value.as_string();
  const Table* known = table_at(root, "model");
  return known != nullptr && known->find("judge") != nullptr ? "judge" : "";
}

/// The policy's model is the only one that is not `frozen`; empty if there is none or several.
std::string policy_model(Table& root, const std::set<std::string>& frozen) {
  const Table* known = table_at(root, "model");
  if (known == nullptr || known->entries.size() < 2) return {};
  const auto is_other = [&](const Entry& model) { return !frozen.contains(model.key); };
  if (std::ranges::count_if(known->entries, is_other) != 1) return {};
  return std::ranges::find_if(known->entries, is_other)->key;
}

/// Adds the tables and edges of a part, such as the judge's, to those of the loop.
void add_part(const Table& part, Table& loop) {
  for (const char* kind : {"forward", "feedback"}) {
    const auto& added = part.find("edges")->value.as_table().find(kind)->value.as_array();
    Entry* const own = loop.find("edges")->value.as_table().find(kind);
    if (own == nullptr) continue;  // complete() adds them
    auto& edges = own->value.as_array();
    edges.insert(edges.end(), added.begin(), added.end());
  }
  complete(loop, part);
}

bool names_value(const Table& nodes, const std::string& name) {
  return std::ranges::any_of(nodes.entries, [&](const Entry& node) {
    return node.value.is_table() &&
           std::ranges::any_of(node.value.as_table().entries, [&](const Entry& option) {
             return option.value.is_string() && option.value.as_string() == name;
           });
  });
}

/// A resource of the loop is left out if the nodes name others in its place.
void drop_unnamed_resources(Table& root, const Sources& sources) {
  Table* resources = table_at(root, "resource");
  const Table* nodes = table_at(root, "node");
  if (resources == nullptr || nodes == nullptr) return;
  std::erase_if(resources->entries, [&](const Entry& resource) {
    return sources.is_built_in(resource.key_span) && !names_value(*nodes, resource.key);
  });
}

}  // namespace

void name_built_in(const Value& item, GraphFile& file, Diagnostics& diagnostics) {
  const std::string& name = item.as_string();
  const std::vector<std::string> known = built_in_names();
  if (find_built_in(name) == nullptr) {
    auto& found = diagnostics.error("G003", item.span, "there is no built-in graph '{}'", name);
    found.note(fmt::format("built-in graphs: {}", join_names(known)));
    if (const auto near = nearest_name(name, known); !near.empty())
      found.suggest(fmt::format("did you mean '{}'?", near));
    file.is_partial = true;
    return;
  }
  if (file.built_in.empty() || file.built_in == name) {
    file.built_in = name;
    return;
  }
  diagnostics.error("G008", item.span, "'{}' and '{}' are both whole graphs", file.built_in, name)
      .suggest("include one of them, and write [edges] for what it lacks");
}

void complete_file(GraphFile& file, Sources& sources, Diagnostics& diagnostics) {
  const bool has_own_edges = has_edges(file.root);
  if (file.built_in.empty() && (has_own_edges || file.is_partial)) return;
  const BuiltInGraph& graph =
      file.built_in.empty() ? standard_graph() : *find_built_in(file.built_in);
  file.built_in = graph.name;
  const bool is_loop = !has_own_edges && graph.name == standard_graph().name;
  // Supervised examples go through a teacher too: it gives their tokens its likeliest ones.
  const bool is_taught = is_loop || (!has_own_edges && graph.name == kSupervisedGraph);
  const auto teacher = is_taught ? teacher_model(file.root) : std::nullopt;
  const SourceId source =
      sources.add(std::string(graph.name),
                  teacher ? with_teacher(std::string(graph.text)) : std::string(graph.text), true);
  file.folders.emplace_back(".");
  auto loop = parse_toml(sources, source, diagnostics);
  CHECK(loop.has_value(), "a built-in graph is not TOML");
  const auto add = [&](std::string_view what, const std::string& text) {
    const SourceId part = sources.add(fmt::format("{} with {}", graph.name, what), text, true);
    file.folders.emplace_back(".");
    const auto tables = parse_toml(sources, part, diagnostics);
    CHECK(tables.has_value(), "a part of a built-in graph is not TOML");
    add_part(*tables, *loop);
  };
  if (is_loop) {
    const bool judges = has_judge(file.root);
    const std::string judge = judges ? judge_model(file.root) : std::string();
    const std::string policy = policy_model(file.root, {judge, teacher.value_or("")});
    if (judges) add("a judge", judge_part({judge, policy}));
    if (teacher) add("a teacher", teacher_part({*teacher, policy}));
    if (has_driven_environment(file.root)) add("a gateway", gateway_part(policy));
    if (has_client(file.root)) add("a tinker node", tinker_part(policy));
  } else if (teacher) {
    const std::string policy = policy_model(file.root, {*teacher});
    add("a teacher", teacher_part({*teacher, policy, {"resource.learner", "node.data"}}));
  }
  correct_loop_resources(file.root, *table_at(*loop, "resource"), diagnostics);
  if (!has_own_edges) check_loop_nodes(file.root, *table_at(*loop, "node"), graph, diagnostics);
  complete(file.root, *loop);
  drop_unnamed_resources(file.root, sources);
}

Span graph_span(const GraphFile& file, const Sources& sources) {
  const Entry* graph = file.root.find("graph");
  const bool is_in_file = graph != nullptr && graph->value.is_table() &&
                          graph->key_span.source < file.first_set &&
                          !sources.is_built_in(graph->key_span);
  return is_in_file ? graph->value.as_table().span : Span{0, {1, 1}, {1, 1}};
}

void leave_built_in_lines(const GraphFile& file, const Sources& sources, Diagnostics& diagnostics) {
  if (file.built_in.empty()) return;
  const Span there = graph_span(file, sources);
  std::set<std::pair<std::string, std::string>> seen;
  std::set<std::tuple<SourceId, uint32_t, uint32_t, std::string>> said;
  diagnostics.change_each([&](Diagnostic& found) {
    // Several edges of the loop may show one fault of a line of the file.
    const Position& at = found.span.begin;
    if (!said.emplace(found.span.source, at.line, at.column, found.code + found.message).second)
      return false;
    if (!sources.is_built_in(found.span)) return true;
    const auto& loop = sources.get(found.span.source);
    const std::string line = built_in_line(loop.text, found.span.begin.line);
    // A value is added in a table of the file; the built-in table cannot be edited.
    if (const std::string table = line.substr(0, line.find(']') + 1);
        found.help.starts_with(kWrite) && table != "[edges]")
      found.help = fmt::format("add a table {} with {}", table, found.help.substr(kWrite.size()));
    found.note(fmt::format("the loop '{}' has: {}", loop.name, line));
    found.span = there;
    // Two lines that one addition to the file puts right are one fault.
    const std::string cure = found.help.empty() ? found.message : found.help;
    return seen.emplace(found.code, cure).second;
  });
}

}  // namespace primerl
