/// Adds the contents of plugins to a catalog, or reports what is wrong with them. Pure, any thread.
#pragma once

#include <span>
#include <vector>

#include "actors/plugin.h"
#include "graph/catalog.h"

namespace primerl {

/// A loaded plugin, and its position in the graph's list.
struct ListedPlugin {
  size_t file = 0;
  const Plugin* plugin = nullptr;
};

/// A plugin with a fault (no name, a name that is already used, an incomplete contract) is not
/// added.
std::vector<PluginFault> add_contents(std::span<const ListedPlugin> plugins, Catalog& catalog);

}  // namespace primerl
