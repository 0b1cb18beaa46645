#include "graph/config/reference_docs.h"

#include <algorithm>

#include "graph/base/suggest.h"
#include "graph/config/built_in_graphs.h"
#include "graph/config/tables.h"
#include "graph/option_text.h"

namespace primerl {
namespace {

constexpr std::string_view kGenerated =
    "Generated from the option registry; `primerl-graph` prints the same with `options`, `actors`, "
    "`messages` and `schema`.\n";

/// Escapes `|`, which would end a cell.
std::string cell(std::string_view text) {
  std::string clean;
  for (const char c : text) clean += c == '|' ? std::string("\\|") : std::string(1, c);
  return clean;
}

std::string sentence(std::string text) {
  if (text.size() > 1 && text[0] >= 'a' && text[0] <= 'z')
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text + ".";
}

void add_rows(const OptionSet& set, const std::string& prefix, const std::vector<std::string>& skip,
              std::string& text) {
  for (const auto& field : set.fields) {
    if (std::find(skip.begin(), skip.end(), field.name) != skip.end()) continue;
    if (field.type == OptionType::kTable) {
      text += fmt::format("| `{}{}` | table | | | {} |\n", prefix, field.name, cell(field.doc));
      add_rows(*field.table, prefix + field.name + ".", {}, text);
      continue;
    }
    const auto& constraint = field.constraint;
    text +=
        fmt::format("| `{}{}` | {} | {} | {} | {} |\n", prefix, field.name, type_name(field.type),
                    constraint.required ? "required" : "`" + cell(field.default_text) + "`",
                    cell(range_text(field)), cell(field.doc));
    if (field.type == OptionType::kTableList)
      add_rows(*field.table, prefix + field.name + "[].", {}, text);
  }
}

std::string options_table(const OptionSet& set, const std::vector<std::string>& skip = {}) {
  std::string rows;
  add_rows(set, "", skip, rows);
  if (rows.empty()) return "No options.\n";
  return "| Option | Type | Default | Range | Meaning |\n|---|---|---|---|---|\n" + rows;
}

std::string built_in_sections() {
  std::string text =
      "\n## Built-in graphs\n\nA file whose text, includes and overlays have no `[edges]` is "
      "completed "
      "by `primerl:async_rl`. `include = [\"primerl:sft\"]` names another one. Every value of the "
      "file wins. `[node.x]` then sets options of the built-in node x; a node of another name is "
      "an "
      "error. A built-in resource that no node names is left out.\n";
  for (const auto& graph : built_in_graphs())
    text += fmt::format("\n`{}`: {}\n\n```toml\n{}```\n", graph.name, graph.doc, graph.text);
  return text;
}

std::string graph_file_page() {
  std::string text = fmt::format("# The graph file\n\n{}\n", kGenerated);
  text +=
      "At the top of a file, `include = [\"base.toml\"]` reads other files first; its own values "
      "replace theirs. Tables merge key by key, any other value (also a list) is replaced. "
      "`--overlay FILE` comes after the file, `--set a.b.c=value` last.\n\nA duration is a string "
      "with its unit: `\"250ms\"`, `\"30s\"`, `\"5m\"`, `\"2h\"`. A size is a whole number of "
      "bytes, or a string with its unit: `\"512MiB\"` and `\"2GiB\"` of 1024, `\"1.5GB\"` of "
      "1000.\n";
  const std::pair<std::string_view, const OptionSet&> tables[] = {
      {"[graph]", graph_options()},          {"[graph.tenant_limits]", tenant_limits_options()},
      {"[tenant.<name>]", tenant_options()}, {"[[tenant.<name>.environments]]", mix_options()},
      {"[model.<name>]", model_options()},   {"[resource.<name>]", resource_options()},
      {"[node.<name>]", node_options()},     {"[edges]", edge_options()},
      {"[place]", place_options()},          {"[trace]", trace_options()},
  };
  for (const auto& [title, set] : tables) {
    text += fmt::format("\n## {}\n\n", title);
    if (title == "[graph.tenant_limits]")
      text +=
          "The most that a tenant may need. A graph with this table is planned for `tenants_max` "
          "tenants, whether it has them or not, and may have none. A key that a tenant does not "
          "write has its default, or the limit if that is smaller.\n\n";
    if (title == "[tenant.<name>]")
      text +=
          "`environment = { name = \"...\", ... }` names the environment and has its options "
          "([environments](environments.md)). `reward = { name = \"...\", ... }` names the reward "
          "of a finished trajectory ([rewards](rewards.md)); without it, the environment gives the "
          "reward. `reward = [{ ... }, { ... }]` names several; each has a `weight` (1), and the "
          "reward is the sum of scores times weights.\n\n";
    if (title == "[tenant.<name>]")
      text +=
          "Instead of its own, a tenant may name one of the graph: `environment = { service = "
          "\"math\" }` has the values of `[service.environment.math]`, and `reward = { service = "
          "\"answer\", weight = 0.5 }` those of `[service.reward.answer]`. These tables have "
          "`name` "
          "and the options of what they name, and paths relative to the graph's file.\n\n";
    if (title == "[[tenant.<name>.environments]]")
      text +=
          "Several environments of one tenant, instead of its `environment` "
          "([how](../how-to/mix-environments.md)). Each item has `environment` and `reward` as a "
          "tenant has, and these keys; those that it does not write are the tenant's.\n\n";
    if (title == "[resource.<name>]")
      text += "It also has the options of its kind and backend ([resources](resources.md)).\n\n";
    if (title == "[node.<name>]")
      text += "It also has the options of its actor ([actors](actors.md)).\n\n";
    if (title == "[edges]")
      text +=
          "`forward` and `feedback` are lists; each item is \"node.output -> node.input\" or a "
          "table of these.\n\n";
    if (title == "[place]")
      text += "Each key is a process. Without the table all nodes run in one process.\n\n";
    if (title == "[trace]")
      text +=
          "The record of the run's deliveries, in the run's folder. It is part of the graph's "
          "hash: "
          "every process of a run has the same.\n\n";
    text += options_table(set);
  }
  return text + built_in_sections();
}

std::string number_of(const InputPort& port) {
  if (port.latest_wins) return "latest wins";
  return port.at_most ? "at most " + port.at_most->text : "";
}

std::string ports_of(const Contract& actor) {
  std::string text = "\n| Port | Message | Kind | Numbers | Meaning |\n|---|---|---|---|---|\n";
  for (const auto& port : actor.inputs)
    text += fmt::format("| `{}` | {} | input{} | {} | {} |\n", port.name, port.type->name,
                        port.is_optional ? ", optional" : "", number_of(port), cell(port.doc));
  for (const auto& port : actor.outputs) {
    std::vector<std::string> numbers;
    if (port.burst.text != "1") numbers.push_back("burst " + port.burst.text);
    if (port.work_burst.text != "0") numbers.push_back("work turn " + port.work_burst.text);
    if (port.at_most) numbers.push_back("at most " + port.at_most->text);
    text +=
        fmt::format("| `{}` | {} | output, {}{}{} | {} | {} |\n", port.name, port.type->name,
                    to_string(port.routing), port.is_optional ? ", optional" : "",
                    port.is_recorded ? ", recorded" : "", fmt::join(numbers, "; "), cell(port.doc));
  }
  return text;
}

std::string traits_of(const Contract& actor) {
  std::vector<std::string> traits;
  traits.push_back(actor.thread_class == ThreadClass::kOwnThread ? "own thread" : "pooled");
  if (actor.is_source) traits.push_back("source");
  if (actor.works) traits.push_back("works");
  if (actor.is_single) traits.push_back("one per graph, or one per tenant if `per_tenant`");
  if (actor.is_one_tenant) traits.push_back("an instance serves one tenant");
  if (actor.is_for_loops) traits.push_back("vacant for a tenant that a client trains");
  if (actor.is_restartable) traits.push_back("restartable");
  if (actor.replicas_are_expendable) traits.push_back("replicas beyond the first may be lost");
  if (actor.stops_on_error) traits.push_back("stops the run when a handler fails");
  for (const auto& use : actor.resources) traits.push_back("uses " + use.kind);
  for (const auto& timer : actor.timers)
    traits.push_back(fmt::format("timer `{}`: {}", timer.name, timer.doc));
  return fmt::format("{}", fmt::join(traits, "; "));
}

std::string actors_page(const Catalog& catalog) {
  std::string text = fmt::format("# Actors\n\n{}", kGenerated);
  for (const auto& actor : catalog.actors)
    text += fmt::format("\n## {}\n\n{}\n\n{}\n{}\n{}", actor.name, sentence(actor.doc),
                        sentence(traits_of(actor)), ports_of(actor), options_table(actor.options));
  return text;
}

std::string messages_page(const Catalog& catalog) {
  std::string text = fmt::format("# Messages\n\n{}", kGenerated);
  text += "\n| Message | Version | Bytes in memory | Fields |\n|---|---|---|---|\n";
  for (const auto* message : catalog.messages) {
    std::string fields = message->schema;
    std::replace(fields.begin(), fields.end(), ';', ' ');
    while (!fields.empty() && fields.back() == ' ') fields.pop_back();
    text += fmt::format("| {} | {} | {} | `{}` |\n", message->name, message->version,
                        message->size_in_memory, cell(fields));
  }
  return text;
}

std::string resources_page(const Catalog& catalog) {
  std::string text = fmt::format("# Resources\n\n{}", kGenerated);
  text += "\nThe options of every resource are in [the graph file](graph-file.md).\n";
  for (const auto& resource : catalog.resources) {
    text +=
        fmt::format("\n## {}, {}\n\n{}", resource.kind, resource.backend, sentence(resource.doc));
    if (resource.needs_model) text += " Needs a model.";
    if (resource.one_per_graph)
      text += " One copy in a graph; several tenants share it if each trains an adapter.";
    text += "\n\n" + options_table(resource.options, resource_options().names());
  }
  return text;
}

/// The page of environments, or of rewards.
std::string contracts_page(std::string_view title, const auto& contracts) {
  std::string text = fmt::format("# {}\n\n{}", title, kGenerated);
  for (const auto& contract : contracts)
    text += fmt::format("\n## {}\n\n{}\n\n{}", contract.name, sentence(contract.doc),
                        options_table(contract.options));
  return text;
}

}  // namespace

std::vector<ReferencePage> reference_pages(const Catalog& catalog) {
  return {{"graph-file.md", graph_file_page()},
          {"actors.md", actors_page(catalog)},
          {"messages.md", messages_page(catalog)},
          {"resources.md", resources_page(catalog)},
          {"environments.md", contracts_page("Environments", catalog.environments)},
          {"rewards.md", contracts_page("Rewards", catalog.rewards)}};
}

}  // namespace primerl
