#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "graph/base/suggest.h"
#include "graph/config/tables.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/graph_options.h"
#include "runtime/cli/option_lines.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

struct OptionsArguments {
  std::string name;
  PluginArguments plugins;
  bool json = false;
};

/// The options of one table of a graph file, or of one item that a table may name.
struct OptionGroup {
  std::string name;   // "tenant.sampling", "resource.engine.torch", "reward.exact"
  std::string where;  // where they are written: "[tenant.NAME] sampling = { ... }"
  std::string doc;
  OptionSet options;  // nested tables are groups too
};

void add_group(std::vector<OptionGroup>& all, OptionGroup group) {
  all.push_back(std::move(group));
  const OptionGroup above = all.back();
  for (const auto& field : above.options.fields)
    if (field.type == OptionType::kTable || field.type == OptionType::kTableList) {
      const std::string_view value = field.type == OptionType::kTable ? "{ ... }" : "[{ ... }]";
      add_group(all, {above.name + "." + field.name,
                      fmt::format("{} {} = {}", above.where, field.name, value), field.doc,
                      *field.table});
    }
}

std::vector<OptionGroup> all_groups(const Catalog& catalog) {
  std::vector<OptionGroup> all;
  add_group(all, {"graph", "[graph]", "the run as a whole", graph_options()});
  add_group(all, {"graph.tenant_limits", "[graph.tenant_limits]", "what a tenant may need at most",
                  tenant_limits_options()});
  add_group(all, {"trace", "[trace]", "the record of the run", trace_options()});
  add_group(all, {"tenant", "[tenant.NAME]", "who trains, and how", tenant_options()});
  // Its tables are those of a tenant.
  OptionSet of_environment = mix_options();
  std::erase_if(of_environment.fields,
                [](const OptionField& field) { return field.type == OptionType::kTable; });
  add_group(all, {"tenant.environments", "[[tenant.NAME.environments]]",
                  "one of several environments of a tenant", std::move(of_environment)});
  add_group(all, {"model", "[model.NAME]", "a model folder", model_options()});
  add_group(all, {"place", "[place] NAME = { ... }", "a process", place_options()});
  add_group(all,
            {"edge", "an item of [edges] as a table", "how two ports are joined", edge_options()});
  add_group(all, {"node", "[node.NAME]", "what every node has", node_options()});
  for (const auto& actor : catalog.actors)
    add_group(all, {"actor." + actor.name, fmt::format("[node.NAME] actor = \"{}\"", actor.name),
                    actor.doc, actor.options});
  add_group(all, {"resource", "[resource.NAME]", "what every resource has", resource_options()});
  for (const auto& resource : catalog.resources)
    add_group(all, {fmt::format("resource.{}.{}", resource.kind, resource.backend),
                    fmt::format("[resource.NAME] kind = \"{}\", backend = \"{}\"", resource.kind,
                                resource.backend),
                    resource.doc, resource.options});
  const auto add_choices = [&](const std::string& key, const auto& contracts) {
    for (const auto& contract : contracts)
      add_group(all, {key + "." + contract.name,
                      fmt::format("[tenant.NAME] {} = {{ name = \"{}\" }}", key, contract.name),
                      contract.doc, contract.options});
  };
  add_choices("environment", catalog.environments);
  add_choices("reward", catalog.rewards);
  return all;
}

/// Whether `word` is the name or complete parts of it: "sampling" and "engine.torch" are.
bool is_named(const std::string& name, const std::string& word) {
  return ("." + name + ".").find("." + word + ".") != std::string::npos;
}

/// Only the option of this name; empty without one.
OptionSet only_option(const OptionSet& options, const std::string& name) {
  OptionSet one;
  std::ranges::copy_if(options.fields, std::back_inserter(one.fields), [&](const auto& field) {
    return field.type != OptionType::kTable && field.name == name;
  });
  return one;
}

/// The groups of this name; if it names none, every option of this name.
std::vector<OptionGroup> chosen_groups(std::vector<OptionGroup> all, const std::string& name) {
  const auto same = std::ranges::find(all, name, &OptionGroup::name);
  if (same != all.end()) return {*same};
  std::vector<OptionGroup> chosen;
  for (const auto& group : all)
    // If groups are nested, the outermost one shows the others.
    if (is_named(group.name, name) &&
        (chosen.empty() || !group.name.starts_with(chosen.back().name + ".")))
      chosen.push_back(group);
  if (!chosen.empty()) return chosen;
  for (auto& group : all) {
    group.options = only_option(group.options, name);
    if (!group.options.fields.empty()) chosen.push_back(std::move(group));
  }
  return chosen;
}

/// Every name that `options NAME` accepts, without duplicates.
std::vector<std::string> known_names(const std::vector<OptionGroup>& all) {
  std::vector<std::string> names;
  const auto add = [&names](const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  };
  for (const auto& group : all) add(group.name);
  for (const auto& group : all)
    for (size_t at = group.name.find('.'); at != std::string::npos;
         at = group.name.find('.', at + 1))
      add(group.name.substr(at + 1, group.name.find('.', at + 1) - at - 1));
  for (const auto& group : all)
    for (const auto& field : group.options.fields) add(field.name);
  return names;
}

std::vector<std::string> group_names() {
  std::vector<std::string> names;
  for (const auto& group : all_groups(full_catalog())) names.push_back(group.name);
  return names;
}

std::string describe(const OptionGroup& group) {
  const std::string lines = option_lines(group.options);
  return fmt::format("{}: {}\n  in {}\n{}", group.name, group.doc, group.where,
                     lines.empty() ? "  no options\n" : lines);
}

int refuse_name(const std::vector<OptionGroup>& all, const std::string& name) {
  const std::string near = nearest_name(name, known_names(all));
  return fail(error(Code::kNotFound, "nothing with options, and no option, is named '{}'", name)
                  .note(near.empty() ? "`primerl-graph options` lists what has options"
                                     : fmt::format("did you mean '{}'?", near)),
              kExitBadCommandLine);
}

int run_options(const OptionsArguments& arguments) {
  const auto catalog = arguments.plugins.catalog();
  if (!catalog.ok()) return fail(catalog.error(), kExitBadConfiguration);
  const std::vector<OptionGroup> all = all_groups(**catalog);
  const auto chosen = arguments.name.empty() ? all : chosen_groups(all, arguments.name);
  if (chosen.empty()) return refuse_name(all, arguments.name);
  if (arguments.json) {
    Json list = Json::array();
    for (const auto& group : chosen)
      list.push_back(Json::object()
                         .set("name", group.name)
                         .set("where", group.where)
                         .set("doc", group.doc)
                         .set("options", options_json(group.options)));
    print_json(Json::object().set("schema", "primerl.options/1").set("groups", std::move(list)));
    return kExitDone;
  }
  std::string text;
  for (const auto& group : chosen)
    text += arguments.name.empty() ? fmt::format("{:<36} {}\n", group.name, group.doc)
                                   : (text.empty() ? "" : "\n") + describe(group);
  print_text(text);
  return kExitDone;
}

}  // namespace

Command options_command() {
  auto arguments = std::make_shared<OptionsArguments>();
  return {"options", "lists what has options, or the options of one",
          "primerl-graph options tenant.sampling",
          [arguments](Arguments& flags) {
            flags.positional(arguments->name, "NAME",
                             "a table, actor, resource, environment, reward or option", false);
            flags.offer(group_names);
            arguments->plugins.declare(flags);
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_options(*arguments); }};
}

}  // namespace primerl
