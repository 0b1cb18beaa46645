#include "runtime/plugins/plugin_contents.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "actors/router/router.h"
#include "actors/trainer/own_objectives.h"
#include "graph/config/tables.h"
#include "graph/spec.h"

namespace primerl {
namespace {

Status check_name(std::string_view kind, const std::string& name) {
  if (is_lower_snake(name)) return ok();
  return error(Code::kInvalid, "it names {} '{}'", kind, name)
      .note("names are lower_snake: a-z, 0-9 and _, a letter first");
}

/// `mine`: new names of a kind; `known`: names that graphs may use already.
Status check_names(std::string_view kind, const auto& mine, const auto& known) {
  std::set<std::string> names;
  for (const auto& each : mine) {
    RETURN_IF_ERROR(check_name(kind, each.name));
    const bool is_known = std::any_of(known.begin(), known.end(),
                                      [&](const auto& other) { return other.name == each.name; });
    if (is_known || !names.insert(each.name).second)
      return error(Code::kInvalid, "it brings {} '{}', and there is one of that name already", kind,
                   each.name)
          .note("give yours another name");
    if (each.doc.empty()) return error(Code::kInvalid, "{} '{}' has no doc text", kind, each.name);
    if (!each.make) return error(Code::kInvalid, "{} '{}' cannot be made", kind, each.name);
  }
  return ok();
}

/// The missing part of a contract; empty when it is complete.
std::string fault_of(const OptionField& field) {
  if (!is_lower_snake(field.name)) return "has no lower_snake name";
  if (field.type == OptionType::kTable)
    return field.table != nullptr && field.nested ? "" : "is a table without options";
  if (field.type == OptionType::kTableList)
    return field.table != nullptr && field.items && field.print ? "" : "is a list without options";
  return field.print && field.assign ? "" : "can be neither read nor written";
}

Status check_options(std::string_view owner, const OptionSet& options,
                     const std::vector<std::string>& taken) {
  if (!options.fields.empty() && !options.make)
    return error(Code::kInvalid, "the options of '{}' cannot be made", owner);
  std::set<std::string> names(taken.begin(), taken.end());
  for (const OptionField& field : options.fields) {
    std::string fault = fault_of(field);
    if (fault.empty() && !names.insert(field.name).second) fault = "is there twice, or is taken";
    if (!fault.empty())
      return error(Code::kInvalid, "option '{}' of '{}' {}", field.name, owner, fault);
  }
  return ok();
}

std::string fault_of(const InputPort& port) {
  if (port.type == nullptr) return "has no message type";
  if (port.at_most && !port.at_most->value) return "has no number in its at_most()";
  return port.handle ? "" : "has no handler";
}

std::string fault_of(const OutputPort& port) {
  if (port.type == nullptr) return "has no message type";
  if (!port.bind) return "belongs to no member";
  if (!port.burst.value || !port.work_burst.value || (port.at_most && !port.at_most->value) ||
      (port.bytes_max && !port.bytes_max->value))
    return "has a number that cannot be computed";
  return port.routing == Routing::kKeyed && !port.key ? "is keyed without a key" : "";
}

std::string fault_of(const TimerPort& timer) { return timer.handle ? "" : "has no handler"; }

std::string fault_of(const ResourceUse& use) {
  static const std::set<std::string> kKinds = {"engine", "learner", "tokenizer", "weight_channel"};
  return kKinds.contains(use.kind) ? "" : fmt::format("is of no known kind ('{}')", use.kind);
}

template <class Part>
Status check_parts(const Contract& actor, std::string_view kind, const std::vector<Part>& parts) {
  std::set<std::string> names;
  for (const Part& part : parts) {
    std::string fault = fault_of(part);
    if (fault.empty() && !is_lower_snake(part.name)) fault = "has no lower_snake name";
    if (fault.empty() && !names.insert(part.name).second) fault = "is there twice";
    if (!fault.empty())
      return error(Code::kInvalid, "{} '{}' of actor '{}' {}", kind, part.name, actor.name, fault);
  }
  return ok();
}

bool is_message_name(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  });
}

/// The catalog's message types, and new types of the actors' ports.
Result<std::vector<const MessageType*>> with_messages(const std::vector<Contract>& actors,
                                                      const Catalog& catalog) {
  std::vector<const MessageType*> known = catalog.messages;
  const auto add = [&](const MessageType* type) -> Status {
    for (const MessageType* other : known) {
      if (other == type) return ok();
      if (other->name == type->name)
        return error(Code::kInvalid, "it has a message '{}' of its own, and there is one already",
                     type->name)
            .note(
                "include the header of that one, or give yours another kName; a plugin that is "
                "compiled with -fvisibility=hidden or linked with -Bsymbolic has copies of its "
                "own: leave that out");
    }
    if (!is_message_name(type->name))
      return error(Code::kInvalid, "it names a message '{}'", type->name)
          .note("letters, digits and _, at most 64 of them");
    known.push_back(type);
    return ok();
  };
  for (const Contract& actor : actors) {
    for (const InputPort& port : actor.inputs) RETURN_IF_ERROR(add(port.type));
    for (const OutputPort& port : actor.outputs) RETURN_IF_ERROR(add(port.type));
  }
  return known;
}

Status check_actors(const std::vector<Contract>& actors) {
  for (const Contract& actor : actors) {
    RETURN_IF_ERROR(check_options(actor.name, actor.options, node_options().names()));
    RETURN_IF_ERROR(check_parts(actor, "input", actor.inputs));
    RETURN_IF_ERROR(check_parts(actor, "output", actor.outputs));
    RETURN_IF_ERROR(check_parts(actor, "timer", actor.timers));
    RETURN_IF_ERROR(check_parts(actor, "use", actor.resources));
    if (actor.state.kind == StateOfActor::Kind::kUnsaid)
      return error(Code::kInvalid, "actor '{}' does not say what its state is", actor.name)
          .note("a contract ends with .state([](auto& f) { ... }) or .stateless()");
    for (const TenantDemand& demand : actor.demands)
      if (!demand.fault)
        return error(Code::kInvalid, "the demand on '{}' of actor '{}' has no check", demand.key,
                     actor.name);
  }
  return ok();
}

Status check_objectives(const std::vector<ObjectiveSpec>& added,
                        const std::vector<ObjectiveSpec>& others) {
  std::set<std::string_view> names;
  for (const ObjectiveSpec& spec : added) {
    RETURN_IF_ERROR(check_name("an objective", std::string(spec.name)));
    const bool is_known =
        find_objective(spec.name) != nullptr ||
        std::ranges::find(others, spec.name, &ObjectiveSpec::name) != others.end();
    if (is_known || !names.insert(spec.name).second)
      return error(Code::kInvalid,
                   "it brings an objective '{}', and there is one of that name already", spec.name)
          .note("give yours another name");
    RETURN_IF_ERROR(check_own_objective(spec));
  }
  return ok();
}

Status add(const Plugin& plugin, Catalog& catalog, std::vector<RoutePolicyContract>& policies,
           std::vector<ObjectiveSpec>& objectives) {
  RETURN_IF_ERROR(check_name("itself", plugin.name));
  RETURN_IF_ERROR(check_names("an actor", plugin.actors, catalog.actors));
  RETURN_IF_ERROR(check_names("an environment", plugin.environments, catalog.environments));
  RETURN_IF_ERROR(check_names("a reward", plugin.rewards, catalog.rewards));
  RETURN_IF_ERROR(check_names("a routing policy", plugin.route_policies, policies));
  RETURN_IF_ERROR(check_objectives(plugin.objectives, objectives));
  RETURN_IF_ERROR(check_actors(plugin.actors));
  for (const auto& each : plugin.environments)
    RETURN_IF_ERROR(check_options(each.name, each.options, {"name"}));
  for (const auto& each : plugin.rewards)
    RETURN_IF_ERROR(check_options(each.name, each.options, {"name"}));
  ASSIGN_OR_RETURN(auto messages, with_messages(plugin.actors, catalog));
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(catalog.actors, plugin.actors);
  catalog.messages = std::move(messages);
  append(catalog.environments, plugin.environments);
  append(catalog.rewards, plugin.rewards);
  append(policies, plugin.route_policies);
  append(objectives, plugin.objectives);
  return ok();
}

}  // namespace

std::vector<PluginFault> add_contents(std::span<const ListedPlugin> plugins, Catalog& catalog) {
  std::vector<PluginFault> faults;
  std::vector<RoutePolicyContract> policies = route_policies();
  std::vector<ObjectiveSpec> objectives;
  const size_t num_built_in = policies.size();
  for (const ListedPlugin& listed : plugins)
    if (Status added = add(*listed.plugin, catalog, policies, objectives); !added.ok())
      faults.push_back({listed.file, std::move(added).error()});
  if (!objectives.empty()) add_own_objectives(std::move(objectives), catalog);
  if (policies.size() == num_built_in) return faults;
  for (Contract& actor : catalog.actors)
    if (actor.name == "router") actor = Router::contract(policies);
  return faults;
}

}  // namespace primerl
