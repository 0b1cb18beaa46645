#include <fmt/format.h>

#include "graph/base/suggest.h"
#include "runtime/backends/resource_catalog.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/graph_options.h"
#include "runtime/cli/option_lines.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

struct ActorsArguments {
  std::string name;
  PluginArguments plugins;
  bool json = false;
};

std::string attributes(const Contract& actor) {
  std::vector<std::string> all{actor.thread_class == ThreadClass::kPooled ? "pooled"
                                                                          : "own thread"};
  if (actor.is_single) all.push_back("single");
  if (actor.is_one_tenant) all.push_back("one tenant");
  if (actor.is_for_loops) all.push_back("vacant for a tenant that a client trains");
  if (actor.is_restartable) all.push_back("restartable");
  if (actor.replicas_are_expendable) all.push_back("replicas beyond the first may be lost");
  if (actor.stops_on_error) all.push_back("stops the run when a handler fails");
  if (actor.is_source) all.push_back("source");
  return fmt::format("{}", fmt::join(all, ", "));
}

std::string describe(const Contract& actor) {
  std::string text = fmt::format("{}: {}\n  {}\n", actor.name, actor.doc, attributes(actor));
  for (const auto& port : actor.inputs)
    text += fmt::format("  in   {:<12} {:<16} {}{}{}\n", port.name, port.type->name, port.doc,
                        port.is_optional ? " (optional)" : "",
                        port.latest_wins ? " (latest wins)" : "");
  for (const auto& port : actor.outputs)
    text += fmt::format("  out  {:<12} {:<16} {}{} ({}, burst {})\n", port.name, port.type->name,
                        port.doc, port.is_optional ? " (optional)" : "", to_string(port.routing),
                        port.burst.text);
  for (const auto& use : actor.resources)
    text += fmt::format("  uses {:<12} {}\n", use.name, use.kind);
  return text + option_lines(actor.options);
}

Json to_json(const InputPort& port) {
  return Json::object()
      .set("name", port.name)
      .set("message", port.type->name)
      .set("doc", port.doc)
      .set("optional", port.is_optional)
      .set("latest_wins", port.latest_wins);
}

Json to_json(const OutputPort& port) {
  return Json::object()
      .set("name", port.name)
      .set("message", port.type->name)
      .set("doc", port.doc)
      .set("optional", port.is_optional)
      .set("routing", to_string(port.routing))
      .set("burst", port.burst.text);
}

Json to_json(const Contract& actor) {
  Json inputs = Json::array(), outputs = Json::array(), resources = Json::array();
  for (const auto& port : actor.inputs) inputs.push_back(to_json(port));
  for (const auto& port : actor.outputs) outputs.push_back(to_json(port));
  for (const auto& use : actor.resources)
    resources.push_back(Json::object().set("name", use.name).set("kind", use.kind));
  return Json::object()
      .set("name", actor.name)
      .set("doc", actor.doc)
      .set("thread", actor.thread_class == ThreadClass::kPooled ? "pooled" : "own_thread")
      .set("single", actor.is_single)
      .set("one_tenant", actor.is_one_tenant)
      .set("restartable", actor.is_restartable)
      .set("source", actor.is_source)
      .set("inputs", std::move(inputs))
      .set("outputs", std::move(outputs))
      .set("resources", std::move(resources))
      .set("options", options_json(actor.options));
}

std::vector<std::string> actor_names() {
  std::vector<std::string> names;
  for (const auto& actor : full_catalog().actors) names.push_back(actor.name);
  return names;
}

int run_actors(const ActorsArguments& arguments) {
  const auto catalog = arguments.plugins.catalog();
  if (!catalog.ok()) return fail(catalog.error(), kExitBadConfiguration);
  const auto& all = (*catalog)->actors;
  std::vector<const Contract*> chosen;
  std::vector<std::string> names;
  for (const auto& actor : all) {
    names.push_back(actor.name);
    if (arguments.name.empty() || arguments.name == actor.name) chosen.push_back(&actor);
  }
  if (chosen.empty()) {
    const std::string near = nearest_name(arguments.name, names);
    return fail(error(Code::kNotFound, "no actor '{}'", arguments.name)
                    .note(near.empty() ? "actors: " + join_names(names)
                                       : fmt::format("did you mean '{}'?", near)),
                kExitBadCommandLine);
  }
  if (arguments.json) {
    Json list = Json::array();
    for (const auto* actor : chosen) list.push_back(to_json(*actor));
    print_json(Json::object().set("schema", "primerl.actors/1").set("actors", std::move(list)));
    return kExitDone;
  }
  if (!arguments.name.empty()) {
    print_text(describe(*chosen.front()));
    return kExitDone;
  }
  for (const auto* actor : chosen) print_text(fmt::format("{:<12} {}\n", actor->name, actor->doc));
  return kExitDone;
}

}  // namespace

Command actors_command() {
  auto arguments = std::make_shared<ActorsArguments>();
  return {"actors", "lists the actors a node may be, or all about one",
          "primerl-graph actors router",
          [arguments](Arguments& flags) {
            flags.positional(arguments->name, "ACTOR", "shows its ports and options", false);
            flags.offer(actor_names);
            arguments->plugins.declare(flags);
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_actors(*arguments); }};
}

}  // namespace primerl
