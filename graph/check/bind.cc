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
  const std::vector<DraftService<Chosen>>& services;
  Chosen& chosen;  // filled in: name, options and contract
};

std::vector<std::string> names_of(const auto& contracts) {
  std::vector<std::string> names;
  for (const auto& contract : contracts) names.push_back(contract.name);
  return names;
}

/// `{ service = "math" }`: the values of the operator's table. The tenant may write only the keys
/// that all choices have, such as the weight of a reward.
template <class Contract, class Chosen>
void bind_service(Table& table, const Entry& service, const std::string& what,
                  const NamedChoice<Contract, Chosen>& choice, Draft& draft) {
  auto& diagnostics = draft.diagnostics;
  std::vector<std::string> common = choice.name_option.names();
  std::erase(common, "name");
  std::vector<std::string> allowed = common;
  allowed.insert(allowed.begin(), "service");
  for (const Entry& entry : table.entries)
    if (std::ranges::find(allowed, entry.key) == allowed.end())
      diagnostics
          .error("G085", entry.key_span, "{} names a service and has '{}', which the service says",
                 what, entry.key)
          .note(fmt::format("beside 'service' it may have: {}",
                            common.empty() ? std::string("nothing") : join_names(common)))
          .suggest(fmt::format("remove '{}'", entry.key));
  const std::string name = service.value.is_string() ? service.value.as_string() : std::string();
  const auto named = std::ranges::find_if(
      choice.services, [&](const auto& each) { return each.spec->name == name; });
  if (named == choice.services.end()) {
    std::vector<std::string> known;
    for (const auto& each : choice.services) known.push_back(each.spec->name);
    auto& found = diagnostics.error("G015", service.value.span, "there is no service '{}' for {}",
                                    name, what);
    found.note(known.empty() ? fmt::format("the graph has no table [service.{}.<name>]", choice.key)
                             : fmt::format("services: {}", join_names(known)));
    suggest_name(found, name, known);
    return;
  }
  choice.chosen = named->chosen;
  choice.chosen.service = name;
  Table own = only(table, common);
  own.span = table.span;
  own.entries.push_back({"name", service.key_span, Value(choice.chosen.name, service.value.span)});
  choice.name_option.bind(own, what, {}, &choice.chosen, diagnostics);
}

template <class Contract, class Chosen>
void bind_table(Table& table, Span span, const std::string& what,
                const NamedChoice<Contract, Chosen>& choice, Draft& draft);

template <class Contract, class Chosen>
void bind_choice(Value& value, const NamedTable& tenant,
                 const NamedChoice<Contract, Chosen>& choice, Draft& draft) {
  auto& diagnostics = draft.diagnostics;
  if (!value.is_table()) {
    auto& found =
        diagnostics.error("G021", value.span, "'{}' of tenant '{}' must be a table, not {}",
                          choice.key, tenant.name, value.kind());
    if (value.is_string())
      found.suggest(fmt::format("write {} = {{ name = \"{}\" }}", choice.key, value.as_string()));
    return;
  }
  Table& table = value.as_table();
  const std::string what = fmt::format("the {} of tenant '{}'", choice.key, tenant.name);
  if (const Entry* const service = table.find("service"))
    bind_service(table, *service, what, choice, draft);
  else
    bind_table(table, value.span, what, choice, draft);
}

/// `table` has a name and the options of what it names. `what`: "the reward of tenant 'a'".
template <class Contract, class Chosen>
void bind_table(Table& table, Span span, const std::string& what,
                const NamedChoice<Contract, Chosen>& choice, Draft& draft) {
  auto& diagnostics = draft.diagnostics;
  correct_key(table, what, *choice.name_option.find("name"), {}, diagnostics);
  const Entry* name = table.find("name");
  if (name == nullptr || !name->value.is_string()) {
    Table only_name = only(table, {"name"});
    only_name.span = span;
    choice.name_option.bind(only_name, what, {}, &choice.chosen, diagnostics);
    return;
  }
  choice.chosen.name = name->value.as_string();
  const Span name_span = name->value.span;
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
  const std::vector<std::string> common = choice.name_option.names();
  Table only_common = only(table, common);
  only_common.span = table.span;
  choice.name_option.bind(only_common, what, {}, &choice.chosen, diagnostics);
  contract->options.bind(table, named, common, bound.get(), diagnostics);
  resolve_files(contract->options, table, bound.get(), what, draft);
  if (diagnostics.num_errors() == num_errors)
    note_digests(contract->options, table, bound.get(), draft);
  if (contract->validate && diagnostics.num_errors() == num_errors)
    if (const Status valid = contract->validate(bound.get()); !valid.ok())
      // An overlay merges into the table of the base file, but its name has its own position.
      refuse_options(draft, table, name_span, named, valid.error());
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
    report("its folder does not exist")
        .note(fmt::format("looked for '{}'", model.path))
        .suggest(
            "put a Hugging Face folder there; `primerl-graph model fetch smollm2-135m-instruct "
            "DIR` makes one of a small chat model");
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
    graph_options().bind(*draft.spec.graph, "[graph]", {"tenant_limits"}, &draft.settings,
                         draft.diagnostics);
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
      model.impl = options.impl;
      if (const Entry* impl = spec.table->find("impl")) model.impl_span = impl->value.span;
      model.is_strict = options.strict;
      model.served_as = options.served_as;
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

/// "exact", and "exact#2" for the second reward of that name.
void label_rewards(std::vector<TenantReward>& rewards) {
  for (size_t i = 0; i < rewards.size(); ++i) {
    const auto same = std::count_if(
        rewards.begin(), rewards.begin() + static_cast<std::ptrdiff_t>(i),
        [&](const TenantReward& each) { return each.shown_name() == rewards[i].shown_name(); });
    const std::string& name = rewards[i].shown_name();
    rewards[i].label = same == 0 ? name : fmt::format("{}#{}", name, same + 1);
  }
}

/// `reward = { ... }`, or a list of such tables.
void bind_rewards(Entry& entry, const NamedTable& spec, Tenant& tenant, Draft& draft) {
  std::vector<Value*> values;
  if (entry.value.is_array())
    for (Value& value : entry.value.as_array()) values.push_back(&value);
  else
    values.push_back(&entry.value);
  if (values.empty() || values.size() > kTenantRewardsMax) {
    draft.diagnostics
        .error("G085", entry.value.span, "'reward' of tenant '{}' lists {} rewards", spec.name,
               values.size())
        .note(fmt::format("a list has 1 to {} tables", kTenantRewardsMax));
    return;
  }
  for (Value* value : values)
    bind_choice(*value, spec,
                NamedChoice<RewardContract, TenantReward>{
                    "reward", reward_options(), draft.catalog.rewards, draft.reward_services,
                    tenant.rewards.emplace_back()},
                draft);
  label_rewards(tenant.rewards);
}

namespace {

using EnvironmentChoice = NamedChoice<EnvironmentContract, TenantEnvironment>;

void bind_environment(Value& value, const NamedTable& spec, Tenant& tenant, Draft& draft) {
  bind_choice(value, spec,
              EnvironmentChoice{"environment", environment_options(), draft.catalog.environments,
                                draft.environment_services, tenant.environment},
              draft);
}

/// An item of `environments`; what it does not write is the tenant's.
void bind_item(Table& table, Span span, size_t index, DraftTenant& drafted, Draft& draft) {
  DraftTenant& part = drafted.mix.emplace_back();
  part.item = std::make_shared<const NamedTable>(NamedTable{drafted.spec->name, span, &table});
  part.spec = part.item.get();
  part.tenant = drafted.tenant;
  const std::string what = fmt::format("environments[{}] of tenant '{}'", index, part.spec->name);
  mix_options().bind(table, what, {"environment", "reward"}, &part.tenant, draft.diagnostics);
  if (Entry* environment = table.find("environment"))
    bind_environment(environment->value, *part.spec, part.tenant, draft);
  else
    draft.diagnostics.error("G066", span, "{} has no environment", what)
        .suggest("write environment = { name = ... }");
  if (Entry* reward = table.find("reward")) {
    part.tenant.rewards.clear();
    bind_rewards(*reward, *part.spec, part.tenant, draft);
  }
  if (part.tenant.label.empty()) part.tenant.label = part.tenant.environment.shown_name();
}

/// `[[tenant.x.environments]]`.
void bind_mix(Entry& entry, DraftTenant& drafted, Draft& draft) {
  const NamedTable& spec = *drafted.spec;
  if (spec.table->find("environment") != nullptr)
    draft.diagnostics
        .error("G085", entry.key_span, "tenant '{}' has 'environment' and 'environments'",
               spec.name)
        .suggest("write each environment as an item of 'environments'");
  const bool is_list =
      entry.value.is_array() && std::ranges::all_of(entry.value.as_array(), &Value::is_table);
  if (!is_list) {
    draft.diagnostics
        .error("G021", entry.value.span,
               "'environments' of tenant '{}' must be a list of tables, not {}", spec.name,
               entry.value.kind())
        .suggest(fmt::format("write [[tenant.{}.environments]] for each", spec.name));
    return;
  }
  auto& items = entry.value.as_array();
  if (items.empty() || items.size() > kTenantEnvironmentsMax) {
    draft.diagnostics
        .error("G085", entry.value.span, "'environments' of tenant '{}' lists {}", spec.name,
               items.size())
        .note(fmt::format("a list has 1 to {} tables", kTenantEnvironmentsMax));
    return;
  }
  for (size_t i = 0; i < items.size(); ++i)
    bind_item(items[i].as_table(), items[i].span, i, drafted, draft);
  fold_mix(drafted, draft);
}

}  // namespace

void bind_services(Draft& draft) {
  for (const auto& spec : draft.spec.environment_services) {
    DraftService<TenantEnvironment> service{&spec, {}};
    bind_table(*spec.table, spec.name_span, fmt::format("environment service '{}'", spec.name),
               EnvironmentChoice{"environment", environment_options(), draft.catalog.environments,
                                 draft.environment_services, service.chosen},
               draft);
    draft.environment_services.push_back(std::move(service));
  }
  for (const auto& spec : draft.spec.reward_services) {
    DraftService<TenantReward> service{&spec, {}};
    bind_table(
        *spec.table, spec.name_span, fmt::format("reward service '{}'", spec.name),
        NamedChoice<RewardContract, TenantReward>{"reward", reward_options(), draft.catalog.rewards,
                                                  draft.reward_services, service.chosen},
        draft);
    draft.reward_services.push_back(std::move(service));
  }
}

void bind_tenants(Draft& draft) {
  for (const auto& spec : draft.spec.tenants) {
    DraftTenant tenant;
    tenant.spec = &spec;
    tenant.tenant.name = spec.name;
    const std::string what = fmt::format("tenant '{}'", spec.name);
    tenant_options().bind(*spec.table, what, {"environment", "environments", "reward"},
                          &tenant.tenant, draft.diagnostics);
    apply_limits(spec, tenant.tenant, draft);
    bind_adapter_path(spec, tenant.tenant.adapter, draft);
    fill_client(tenant.tenant);
    tenant.seq_len_is_written = spec.table->find("seq_len") != nullptr;
    if (Entry* environment = spec.table->find("environment"))
      bind_environment(environment->value, spec, tenant.tenant, draft);
    if (Entry* reward = spec.table->find("reward"))
      bind_rewards(*reward, spec, tenant.tenant, draft);
    if (Entry* mix = spec.table->find("environments")) bind_mix(*mix, tenant, draft);
    draft.tenants.push_back(std::move(tenant));
  }
}

}  // namespace primerl
