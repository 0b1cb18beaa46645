// Binding of [graph], [tenant.*] and [model.*]: tables to typed values.
#include <algorithm>
#include <filesystem>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kGraphNameBytesMax = 64;

bool is_file_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

void bind_environment(Entry& entry, DraftTenant& tenant, Draft& draft) {
  auto& diagnostics = draft.diagnostics;
  if (!entry.value.is_table()) {
    auto& found = diagnostics.error("G021", entry.value.span,
                                    "'environment' of tenant '{}' must be a table, not {}",
                                    tenant.spec->name, entry.value.kind());
    if (entry.value.is_string())
      found.suggest(
          fmt::format("write environment = {{ name = \"{}\" }}", entry.value.as_string()));
    return;
  }
  Table& table = entry.value.as_table();
  const std::string what = fmt::format("the environment of tenant '{}'", tenant.spec->name);
  correct_key(table, what, *environment_options().find("name"), {}, diagnostics);
  const Entry* name = table.find("name");
  if (name == nullptr || !name->value.is_string()) {
    Table only_name = only(table, {"name"});
    only_name.span = entry.value.span;
    environment_options().bind(only_name, what, {}, &tenant.tenant.environment, diagnostics);
    return;
  }
  tenant.tenant.environment.name = name->value.as_string();
  tenant.environment = draft.catalog.find_environment(name->value.as_string());
  if (tenant.environment == nullptr) {
    std::vector<std::string> known;
    for (const auto& environment : draft.catalog.environments) known.push_back(environment.name);
    auto& found = diagnostics.error("G015", name->value.span, "there is no environment '{}'",
                                    name->value.as_string());
    found.note(fmt::format("environments: {}", join_names(known)));
    suggest_name(found, name->value.as_string(), known);
    return;
  }
  const OptionSet& options = tenant.environment->options;
  std::shared_ptr<void> bound = options.make ? options.make() : nullptr;
  const std::string environment = fmt::format("environment '{}'", tenant.environment->name);
  const size_t num_errors = diagnostics.num_errors();
  options.bind(table, environment, {"name"}, bound.get(), diagnostics);
  if (tenant.environment->first_tasks && diagnostics.num_errors() == num_errors)
    if (const auto made = tenant.environment->first_tasks(bound.get(), 0, 0); !made.ok())
      refuse_options(draft, table, entry.key_span, environment, made.error());
  tenant.tenant.environment.options = bound;
}

void read_facts(DraftModel& model, Draft& draft) {
  const auto report = [&](const std::string& words) -> Diagnostic& {
    return draft.diagnostics.error("G044", model.path_span, "model '{}' cannot be used: {}",
                                   model.spec->name, words);
  };
  std::error_code fault;
  if (!fs::exists(model.path, fault)) {
    report("its folder does not exist").note(fmt::format("looked for '{}'", model.path));
    return;
  }
  if (!fs::is_directory(model.path, fault)) {
    report("it is no folder").note(fmt::format("looked at '{}'", model.path));
    return;
  }
  if (!draft.catalog.model_facts) return;
  auto facts = draft.catalog.model_facts(model.path);
  if (facts.ok()) {
    model.facts = *facts;
    return;
  }
  auto& found = report(facts.error().message());
  for (const auto& note : facts.error().notes()) found.note(note);
}

}  // namespace

void bind_settings(Draft& draft) {
  std::string& name = draft.settings.name;
  if (draft.spec.graph != nullptr)
    graph_options().bind(*draft.spec.graph, "[graph]", {}, &draft.settings, draft.diagnostics);
  if (name.empty() && draft.sources.size() > 0) {
    name = fs::path(draft.sources.get(0).name).stem().string().substr(0, kGraphNameBytesMax);
    std::replace_if(
        name.begin(), name.end(), [](char c) { return !is_file_character(c); }, '-');
    if (name.empty()) name = "graph";
    if (name[0] == '.') name[0] = '-';
    return;
  }
  if (name.size() <= kGraphNameBytesMax && name[0] != '.' &&
      std::all_of(name.begin(), name.end(), is_file_character))
    return;
  draft.diagnostics
      .error("G017", draft.spec.graph->find("name")->value.span, "'{}' is no name for a graph",
             name)
      .note(fmt::format("it names the run's folder: letters, digits, '-', '_' and '.', no '.' "
                        "first, at most {} bytes",
                        kGraphNameBytesMax));
}

void bind_models(Draft& draft) {
  for (const auto& spec : draft.spec.models) {
    DraftModel model;
    model.spec = &spec;
    ModelOptions options;
    model_options().bind(*spec.table, fmt::format("model '{}'", spec.name), {}, &options,
                         draft.diagnostics);
    const Entry* path = spec.table->find("path");
    if (path != nullptr && path->value.is_string() && !options.path.empty()) {
      model.path = absolute_path(draft, path->value);
      model.path_span = path->value.span;
      read_facts(model, draft);
    }
    draft.models.push_back(std::move(model));
  }
}

void bind_tenants(Draft& draft) {
  for (const auto& spec : draft.spec.tenants) {
    DraftTenant tenant;
    tenant.spec = &spec;
    tenant.tenant.name = spec.name;
    const std::string what = fmt::format("tenant '{}'", spec.name);
    tenant_options().bind(*spec.table, what, {"environment"}, &tenant.tenant, draft.diagnostics);
    tenant.seq_len_is_written = spec.table->find("seq_len") != nullptr;
    if (Entry* environment = spec.table->find("environment"))
      bind_environment(*environment, tenant, draft);
    draft.tenants.push_back(std::move(tenant));
  }
}

}  // namespace primerl
