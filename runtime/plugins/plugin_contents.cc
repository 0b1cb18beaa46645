#include "runtime/plugins/plugin_contents.h"

#include <algorithm>
#include <set>

#include "actors/router/router.h"
#include "graph/spec.h"

namespace primerl {
namespace {

Status check_name(std::string_view kind, const std::string& name) {
  if (is_lower_snake(name)) return ok();
  return error(Code::kInvalid, "it names {} '{}'", kind, name)
      .note("names are lower_snake: a-z, 0-9 and _, a letter first");
}

/// `mine` are new names of a kind, `known` those that graphs may use already.
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

Status check_options(std::string_view owner, const OptionSet& options) {
  std::set<std::string> names;
  for (const OptionField& field : options.fields)
    if (!is_lower_snake(field.name) || !names.insert(field.name).second)
      return error(Code::kInvalid, "the option '{}' of '{}' is there twice or no lower_snake name",
                   field.name, owner);
  return ok();
}

template <class Port>
Status check_ports(const Contract& actor, std::string_view kind, const std::vector<Port>& ports) {
  std::set<std::string> names;
  for (const Port& port : ports)
    if (!is_lower_snake(port.name) || !names.insert(port.name).second || port.type == nullptr)
      return error(Code::kInvalid,
                   "the {} '{}' of actor '{}' is there twice or no lower_snake name", kind,
                   port.name, actor.name);
  return ok();
}

/// The catalog's message types, and those of the ports that it does not have yet.
Result<std::vector<const MessageType*>> with_messages(const std::vector<Contract>& actors,
                                                      const Catalog& catalog) {
  std::vector<const MessageType*> known = catalog.messages;
  const auto add = [&](const MessageType* type) -> Status {
    for (const MessageType* other : known) {
      if (other == type) return ok();
      if (other->name == type->name)
        return error(Code::kInvalid, "it has a message '{}' of its own, and there is one already",
                     type->name)
            .note("include the header of that one, or give yours another kName");
    }
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
    RETURN_IF_ERROR(check_options(actor.name, actor.options));
    RETURN_IF_ERROR(check_ports(actor, "input", actor.inputs));
    RETURN_IF_ERROR(check_ports(actor, "output", actor.outputs));
  }
  return ok();
}

Status add(const Plugin& plugin, Catalog& catalog, std::vector<RoutePolicyContract>& policies) {
  RETURN_IF_ERROR(check_name("itself", plugin.name));
  RETURN_IF_ERROR(check_names("an actor", plugin.actors, catalog.actors));
  RETURN_IF_ERROR(check_names("an environment", plugin.environments, catalog.environments));
  RETURN_IF_ERROR(check_names("a reward", plugin.rewards, catalog.rewards));
  RETURN_IF_ERROR(check_names("a routing policy", plugin.route_policies, policies));
  RETURN_IF_ERROR(check_actors(plugin.actors));
  for (const auto& each : plugin.environments)
    RETURN_IF_ERROR(check_options(each.name, each.options));
  for (const auto& each : plugin.rewards) RETURN_IF_ERROR(check_options(each.name, each.options));
  ASSIGN_OR_RETURN(auto messages, with_messages(plugin.actors, catalog));
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(catalog.actors, plugin.actors);
  catalog.messages = std::move(messages);
  append(catalog.environments, plugin.environments);
  append(catalog.rewards, plugin.rewards);
  append(policies, plugin.route_policies);
  return ok();
}

}  // namespace

std::vector<PluginFault> add_contents(std::span<const ListedPlugin> plugins, Catalog& catalog) {
  std::vector<PluginFault> faults;
  std::vector<RoutePolicyContract> policies = route_policies();
  const size_t num_built_in = policies.size();
  for (const ListedPlugin& listed : plugins)
    if (Status added = add(*listed.plugin, catalog, policies); !added.ok())
      faults.push_back({listed.file, std::move(added).error()});
  if (policies.size() == num_built_in) return faults;
  for (Contract& actor : catalog.actors)
    if (actor.name == "router") actor = Router::contract(policies);
  return faults;
}

}  // namespace primerl
