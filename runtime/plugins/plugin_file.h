/// Reads from a plugin's file how it was built, without running any of its code.
///
/// The file may be anything: every offset and size in it is checked. Stateless, any thread.
#pragma once

#include <filesystem>
#include <string>

#include "actors/plugin_build.h"
#include "graph/base/result.h"

namespace primerl {

inline constexpr uint64_t kPluginBytesMax = uint64_t{1} << 30;
inline constexpr size_t kPluginBuildsMax = 4096;  // sources of one plugin that include plugin.h

/// kInvalid when the file is not a shared library for this kind of machine, or not a plugin, or
/// when its sources were built in different ways. kNotFound or kIo when it cannot be read.
Result<PluginBuild> read_plugin_build(const std::filesystem::path& file);

/// kInvalid names the first difference between the two, and both values.
Status check_plugin_build(const PluginBuild& plugin, const PluginBuild& program = this_build());

/// "primerl-graph 0.1.0 (1a2b3c4d5e6f7a8b), g++ 12, libstdc++ 12, fmt 9.1.0".
std::string to_string(const PluginBuild& build);

}  // namespace primerl
