// Finds tables whose own name is misspelt. Otherwise every reference to such a table would be an
// error, far from the mistake. If several places use one similar name, that name is used.
#include <algorithm>
#include <map>
#include <utility>

#include "graph/check.h"
#include "graph/check/names.h"

namespace primerl {
namespace {

/// By name, how many places use it.
using Named = std::map<std::string, int, std::less<>>;

void count_text(const Value& value, Named& named) {
  if (value.is_string() && !value.as_string().empty()) ++named[value.as_string()];
}

Named count_nodes(const GraphSpec& spec) {
  Named named;
  for (const auto& edge : spec.edge_list)
    for (const auto* end : {&edge.from, &edge.to}) ++named[std::string(end->node)];
  for (const auto& place : spec.place)
    if (const Entry* nodes = place.table->find("nodes"); nodes && nodes->value.is_array())
      for (const auto& node : nodes->value.as_array()) count_text(node, named);
  return named;
}

/// The names in options of nodes that refer to `kind`: "model" or "resource:...".
Named count_options(const GraphSpec& spec, const Catalog& catalog, std::string_view kind) {
  Named named;
  for (const auto& node : spec.nodes) {
    const Contract* contract = catalog.find_actor(text_of(*node.table, "actor"));
    if (contract == nullptr) continue;
    for (const auto& field : contract->options.fields)
      if (field.constraint.refers.kind.rfind(kind, 0) == 0)
        if (const Entry* entry = node.table->find(field.name)) count_text(entry->value, named);
  }
  return named;
}

bool has_finding(const Diagnostics& diagnostics, const Span& span) {
  return std::any_of(diagnostics.all().begin(), diagnostics.all().end(), [&](const auto& found) {
    return found.span.source == span.source && found.span.begin.line == span.begin.line &&
           found.span.begin.column == span.begin.column;
  });
}

void correct(std::vector<NamedTable>& tables, std::string_view what, std::string_view code,
             const Named& named, Diagnostics& diagnostics) {
  std::vector<std::string> unnamed;
  for (const auto& table : tables)
    if (!named.contains(table.name)) unnamed.push_back(table.name);
  for (const auto& [name, count] : named) {
    if (count < 2 || unnamed.empty()) continue;
    const auto is_called = [](std::string_view wanted) {
      return [wanted](const NamedTable& table) { return table.name == wanted; };
    };
    if (std::any_of(tables.begin(), tables.end(), is_called(name))) continue;
    const auto near = nearest_name(name, unnamed);
    const auto meant = std::find_if(tables.begin(), tables.end(), is_called(near));
    if (near.empty() || meant == tables.end()) continue;
    const std::string written = std::exchange(meant->name, name);
    unnamed.erase(std::find(unnamed.begin(), unnamed.end(), written));
    // An invalid name was reported already.
    if (has_finding(diagnostics, meant->name_span)) continue;
    diagnostics
        .error(code, meant->name_span, "nothing names {} '{}', but {} places name '{}'", what,
               written, count, name)
        .suggest(fmt::format("did you mean [{}.{}]?", what, name));
  }
}

}  // namespace

void correct_names(GraphSpec& spec, const Catalog& catalog, Diagnostics& diagnostics) {
  Named models = count_options(spec, catalog, "model");
  for (const auto& resource : spec.resources)
    if (const Entry* model = resource.table->find("model")) count_text(model->value, models);
  correct(spec.nodes, "node", "G011", count_nodes(spec), diagnostics);
  correct(spec.models, "model", "G014", models, diagnostics);
  correct(spec.resources, "resource", "G013", count_options(spec, catalog, "resource:"),
          diagnostics);
}

}  // namespace primerl
