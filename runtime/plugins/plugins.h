/// Plugins: shared libraries of `[graph] plugins`, checked, loaded and added to a catalog.
///
/// A file is checked before it is loaded (plugin_file.h). From then on its code runs in this
/// process. It is never unloaded, so a file that changed meanwhile is not read again. A lock makes
/// it safe from any thread.
#pragma once

#include <string>
#include <vector>

#include "graph/catalog.h"

namespace primerl {

/// Catalog::add_plugins. A file that is listed twice is a fault.
std::vector<PluginFault> add_plugins(const std::vector<std::string>& files, Catalog& catalog);

}  // namespace primerl
