/// Plugins: shared libraries of `[graph] plugins`, checked, loaded and added to a catalog.
///
/// A file is checked before it is loaded (plugin_file.h), its code runs in this process from then
/// on, and it is never unloaded: a file that was changed in the meantime is not read again. A lock
/// makes it safe from any thread.
#pragma once

#include <string>
#include <vector>

#include "graph/catalog.h"

namespace primerl {

/// Catalog::add_plugins. A file that is listed twice is a fault.
std::vector<PluginFault> add_plugins(const std::vector<std::string>& files, Catalog& catalog);

}  // namespace primerl
