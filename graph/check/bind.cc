// Binding of [graph], [tenant.*] and [model.*]: from tables to typed values.
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

/// A table of a tenant that names one of the program's environments or rewards, and has the options
/// of that one.
template <class Contract, class Chosen>
struct NamedChoice {
  std::string_view key;  // "environment"
  const OptionSet& name_option;
  const std::vector<Contract>& all;
  Chosen& chosen;  // filled in: name, options and contract
};

std::vector<std::string> names_of(const auto& contracts) {
  std::vector<std::string> names;
  for (const auto& contract : contracts) names.push_back(contract.name);
  return names;
}

template <class Contract, class Chosen>
void bind_choice(Entry& entry, const NamedTable& tenant,
                 const NamedChoice<Contract, Chosen>& choice, Draft& draft) {
  auto& diagnostics = draft.diagnostics;
  if (!entry.value.is_table()) {
    auto& found =
        diagnostics.error("G021", entry.value.span, "'{}' of tenant '{}' must be a table, not {}",
                          choice.key, tenant.name, entry.value.kind());
    if (entry.value.is_string())
      found.suggest(
          fmt::format("write {} = {{ name = \"{}\" }}", choice.key, entry.value.as_string()));
    return;
  }
  Table& table = entry.value.as_table();
  const std::string what = fmt::format("the {} of tenant '{}'", choice.key, tenant.name);
  correct_key(table, what, *choice.name_option.find("name"), {}, diagnostics);
  const Entry* name = table.find("name");
  if (name == nullptr || !name->value.is_string()) {
    Table only_name = only(table, {"name"});
    only_name.span = entry.value.span;
    choice.name_option.bind(only_name, what, {}, &choice.chosen, diagnostics);
    return;
  }
  choice.chosen.name = name->value.as_string();
  const auto contract = std::find_if(choice.all.begin(), choice.all.end(), [&](const auto& each) {
    return each.name == choice.chosen.name;
  });
  if (contract == choice.all.end()) {
    const auto known = names_of(choice.all);
    auto& found = diagnostics.error("G015", name->value.span, "there is no {} '{}'", choice.key,
                                    choice.chosen.name);
    found.note(fmt::format("{}s: {}", choice.key, join_names(known)));
    suggest_name(found, choice.chosen.name, known);
    return;
  }
  const std::string named = fmt::format("{} '{}'", choice.key, contract->name);
  const std::shared_ptr<void> bound = contract->options.make ? contract->options.make() : nullptr;
  const size_t num_errors = diagnostics.num_errors();
  contract->options.bind(table, named, {"name"}, bound.get(), diagnostics);
  resolve_files(contract->options, table, bound.get(), what, draft);
  if (contract->validate && diagnostics.num_errors() == num_errors)
    if (const Status valid = contract->validate(bound.get()); !valid.ok())
      refuse_options(draft, table, entry.key_span, named, valid.error());
  choice.chosen.options = bound;
  choice.chosen.contract = &*contract;
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
    report("it is not a folder").note(fmt::format("looked at '{}'", model.path));
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
  draft.settings.plugins = plugin_files(draft.file);
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
      .error("G017", draft.spec.graph->find("name")->value.span,
             "'{}' is not a valid name for a graph", name)
      .note(fmt::format("it becomes part of a folder's name: letters, digits, '-', '_' and '.', "
                        "not beginning with '.', at most {} bytes",
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
      model.path = absolute_path(draft.file, path->value);
      model.path_span = path->value.span;
      model.is_strict = options.strict;
      read_facts(model, draft);
    }
    draft.models.push_back(std::move(model));
  }
}

/// Makes the path absolute: it is relative to the file that has it. The folder must exist.
void bind_adapter_path(const NamedTable& tenant, TenantAdapter& adapter, Draft& draft) {
  const Entry* table = tenant.table->find("adapter");
  const Entry* entry =
      table != nullptr && table->value.is_table() ? table->value.as_table().find("path") : nullptr;
  if (entry == nullptr || adapter.path.empty()) return;
  const Value& path = entry->value;
  adapter.path = absolute_path(draft.file, path);
  std::error_code fault;
  if (fs::is_directory(adapter.path, fault)) return;
  draft.diagnostics
      .error("G044", path.span, "the adapter of tenant '{}' cannot be used: it is not a folder",
             tenant.name)
      .note(fmt::format("looked at '{}'", adapter.path))
      .suggest("name a PEFT folder, such as weights/ of a checkpoint");
}

void bind_tenants(Draft& draft) {
  for (const auto& spec : draft.spec.tenants) {
    DraftTenant tenant;
    tenant.spec = &spec;
    tenant.tenant.name = spec.name;
    const std::string what = fmt::format("tenant '{}'", spec.name);
    tenant_options().bind(*spec.table, what, {"environment", "reward"}, &tenant.tenant,
                          draft.diagnostics);
    bind_adapter_path(spec, tenant.tenant.adapter, draft);
    tenant.seq_len_is_written = spec.table->find("seq_len") != nullptr;
    if (Entry* environment = spec.table->find("environment"))
      bind_choice(*environment, spec,
                  NamedChoice<EnvironmentContract, TenantEnvironment>{
                      "environment", environment_options(), draft.catalog.environments,
                      tenant.tenant.environment},
                  draft);
    if (Entry* reward = spec.table->find("reward"))
      bind_choice(*reward, spec,
                  NamedChoice<RewardContract, TenantReward>{
                      "reward", reward_options(), draft.catalog.rewards, tenant.tenant.reward},
                  draft);
    draft.tenants.push_back(std::move(tenant));
  }
}

}  // namespace primerl
