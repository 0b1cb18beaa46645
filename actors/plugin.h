/// Plugin: what your shared library adds to a graph that lists it in `[graph] plugins`.
///
///   extern "C" void primerl_plugin(primerl::Plugin& plugin) {
///     plugin.name = "word_games";
///     plugin.version = "1.0";
///     plugin.actors = {LengthFilter::contract()};
///     plugin.rewards = {reward_contract("brevity", ...)};
///   }
///
/// The program calls this function once, while it reads the graph, on the thread that reads it. The
/// function must not start threads or touch files. Message types are found through the ports of the
/// actors. No name in a plugin may be a name of the program or of another plugin. A plugin stays
/// loaded until the program ends.
#pragma once

#include <string>
#include <vector>

#include "actors/env/environment.h"
#include "actors/env/reward.h"
#include "actors/plugin_build.h"
#include "actors/router/policies/policy.h"
#include "graph/contract.h"
#include "kernels/train/loss.h"

namespace primerl {

struct Plugin {
  std::string name;     // lower_snake
  std::string version;  // of the plugin, any text; it is written into the record
  std::vector<Contract> actors;
  std::vector<EnvironmentContract> environments;
  std::vector<RewardContract> rewards;
  std::vector<RoutePolicyContract> route_policies;
  std::vector<ObjectiveSpec> objectives;
};

/// The program reads this section before it loads the file.
[[gnu::section(".primerl_plugin"), gnu::used,
  gnu::retain]] alignas(kPluginBuildBytes) static constexpr PluginBuild kPluginBuild = this_build();

}  // namespace primerl

/// Every plugin must define it.
extern "C" [[gnu::visibility("default")]] void primerl_plugin(primerl::Plugin& plugin);
