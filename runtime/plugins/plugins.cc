#include "runtime/plugins/plugins.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>

#include "graph/base/crc32c.h"
#include "graph/base/files.h"
#include "runtime/plugins/plugin_contents.h"
#include "runtime/plugins/plugin_file.h"

namespace primerl {
namespace {

struct Loaded {
  Plugin plugin;
  uint32_t checksum = 0;  // CRC-32C of the file
};

/// What this process has loaded so far, by canonical path.
struct Library {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<const Loaded>> loaded;
};

Library& library() {
  // Never destroyed: actors made by a plugin may outlive what is static.
  static auto* all = new Library();
  return *all;
}

Result<std::unique_ptr<const Loaded>> load(const std::string& file) {
  ASSIGN_OR_RETURN(const PluginBuild build, read_plugin_build(file));
  RETURN_IF_ERROR(check_plugin_build(build));
  auto loaded = std::make_unique<Loaded>();
  ASSIGN_OR_RETURN(const MappedFile mapped, map_file(file));
  loaded->checksum = crc32c(mapped.bytes);
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return error(Code::kInvalid, "it cannot be loaded: {}", ::dlerror());
  const auto describe = reinterpret_cast<void (*)(Plugin&)>(::dlsym(handle, "primerl_plugin"));
  if (describe == nullptr)
    return error(Code::kInvalid, "it does not define primerl_plugin()")
        .note("extern \"C\" void primerl_plugin(primerl::Plugin& plugin)");
  try {
    describe(loaded->plugin);
  } catch (const std::exception& exception) {
    return error(Code::kInvalid, "an exception left its primerl_plugin(): {}", exception.what());
  } catch (...) {
    return error(Code::kInvalid, "an exception left its primerl_plugin()");
  }
  return std::unique_ptr<const Loaded>(std::move(loaded));
}

Result<const Loaded*> find_or_load(const std::string& file) {
  std::error_code fault;
  const std::string identity = std::filesystem::weakly_canonical(file, fault).string();
  const std::lock_guard lock(library().mutex);
  auto& known = library().loaded[identity];
  if (known == nullptr) {
    ASSIGN_OR_RETURN(known, load(file));
  }
  return known.get();
}

}  // namespace

std::vector<PluginFault> add_plugins(const std::vector<std::string>& files, Catalog& catalog) {
  std::vector<PluginFault> faults;
  std::vector<ListedPlugin> plugins;
  for (size_t i = 0; i < files.size(); ++i) {
    auto found = find_or_load(files[i]);
    if (!found.ok()) {
      faults.push_back({i, std::move(found).error()});
      continue;
    }
    const Plugin& plugin = (*found)->plugin;
    const bool is_known =
        std::any_of(catalog.plugins.begin(), catalog.plugins.end(),
                    [&](const PluginIdentity& other) { return other.name == plugin.name; });
    if (is_known) {
      faults.push_back({i, error(Code::kInvalid, "there is another plugin '{}'", plugin.name)});
      continue;
    }
    plugins.push_back({i, &plugin});
    catalog.plugins.push_back({plugin.name, plugin.version, files[i], (*found)->checksum});
  }
  for (PluginFault& fault : add_contents(plugins, catalog)) faults.push_back(std::move(fault));
  std::sort(faults.begin(), faults.end(),
            [](const PluginFault& a, const PluginFault& b) { return a.file < b.file; });
  return faults;
}

}  // namespace primerl
