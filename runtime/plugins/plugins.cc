#include "runtime/plugins/plugins.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
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

constexpr int kExitOfAPlugin = 2;  // the same as for a refused graph

struct Loaded {
  Plugin plugin;
  uint32_t checksum = 0;  // CRC-32C of the file
};

/// The plugins that this process has loaded so far, by canonical path.
struct Library {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<const Loaded>> loaded;
};

Library& library() {
  // Never destroyed, because actors made by a plugin may be destroyed after static objects.
  static auto* all = new Library();
  return *all;
}

/// The file that is being loaded; null otherwise.
std::atomic<const char*> loading{nullptr};

/// A plugin that calls exit() would end `check` with success.
void report_exit() {
  const char* const file = loading;
  if (file == nullptr) return;
  ::dprintf(STDERR_FILENO, "error: plugin '%s' ended the program while it was loaded\n", file);
  ::_exit(kExitOfAPlugin);
}

Status check_path(const std::string& file) {
  if (file.empty()) return error(Code::kInvalid, "its file has no name");
  // The loader replaces $ORIGIN and similar names, so it would load another file than the checked
  // one.
  if (file.find('$') != std::string::npos || file.find('\0') != std::string::npos)
    return error(Code::kInvalid, "its path has a '$' or a zero byte in it");
  return ok();
}

/// Runs code of the plugin for the first time.
Status describe(const std::string& file, Plugin& plugin) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return error(Code::kInvalid, "it cannot be loaded: {}", ::dlerror());
  const auto entry = reinterpret_cast<void (*)(Plugin&)>(::dlsym(handle, "primerl_plugin"));
  if (entry == nullptr)
    return error(Code::kInvalid, "it does not define primerl_plugin()")
        .note("extern \"C\" void primerl_plugin(primerl::Plugin& plugin)");
  try {
    entry(plugin);
  } catch (const std::exception& exception) {
    return error(Code::kInvalid, "an exception left its primerl_plugin(): {}", exception.what());
  } catch (...) {
    return error(Code::kInvalid, "an exception left its primerl_plugin()");
  }
  return ok();
}

Result<std::unique_ptr<const Loaded>> load(const std::string& file) {
  ASSIGN_OR_RETURN(const PluginBuild build, read_plugin_build(file));
  RETURN_IF_ERROR(check_plugin_build(build));
  auto loaded = std::make_unique<Loaded>();
  ASSIGN_OR_RETURN(const MappedFile mapped, map_file(file));
  loaded->checksum = crc32c(mapped.bytes);
  [[maybe_unused]] static const int registered = std::atexit(report_exit);
  loading = file.c_str();
  auto described = describe(file, loaded->plugin);
  loading = nullptr;
  RETURN_IF_ERROR(described);
  return std::unique_ptr<const Loaded>(std::move(loaded));
}

Result<const Loaded*> find_or_load(const std::string& file) {
  RETURN_IF_ERROR(check_path(file));
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
