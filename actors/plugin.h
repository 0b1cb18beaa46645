/// Plugin: what a shared library of one's own adds to a graph that lists it in `[graph] plugins`.
///
///   extern "C" void primerl_plugin(primerl::Plugin& plugin) {
///     plugin.name = "word_games";
///     plugin.version = "1.0";
///     plugin.actors = {LengthFilter::contract()};
///     plugin.rewards = {reward_contract("brevity", ...)};
///   }
///
/// The program calls that function once, as it reads the graph, on the thread that reads it; it
/// must not start threads or touch files. Messages are found by the ports of the actors. What a
/// plugin brings may not have a name that the program or another plugin has. It stays loaded until
/// the program ends.
#pragma once

#include <string>
#include <vector>

#include "actors/env/environment.h"
#include "actors/env/reward.h"
#include "actors/plugin_build.h"
#include "actors/router/policies/policy.h"
#include "graph/contract.h"

namespace primerl {

struct Plugin {
  std::string name;     // lower_snake
  std::string version;  // of the plugin: any text; a record names it
  std::vector<Contract> actors;
  std::vector<EnvironmentContract> environments;
  std::vector<RewardContract> rewards;
  std::vector<RoutePolicyContract> route_policies;
};

/// The program looks for this section before it loads the file.
[[gnu::section(".primerl_plugin"), gnu::used,
  gnu::retain]] alignas(kPluginBuildBytes) static constexpr PluginBuild kPluginBuild = this_build();

}  // namespace primerl

/// Every plugin defines it.
extern "C" [[gnu::visibility("default")]] void primerl_plugin(primerl::Plugin& plugin);
