/// Adds what plugins bring to a catalog, or says what is wrong with it. Pure, any thread.
#pragma once

#include <span>
#include <vector>

#include "actors/plugin.h"
#include "graph/catalog.h"

namespace primerl {

/// A plugin as it was loaded, and where it stands in the list of the graph.
struct ListedPlugin {
  size_t file = 0;
  const Plugin* plugin = nullptr;
};

/// A fault of a plugin (no name, a name that is taken, a contract that lacks a part) leaves that
/// plugin out.
std::vector<PluginFault> add_contents(std::span<const ListedPlugin> plugins, Catalog& catalog);

}  // namespace primerl
