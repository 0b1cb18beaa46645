#include "tests/tidy/layers.h"

#include <algorithm>

#include <fmt/format.h>

namespace primerl::tidy {
namespace {

// Threads, locks, clocks, chance and the outside world: an actor gets them through services.
const std::vector<std::string> kBehindServices = {
    "thread",  "mutex",      "shared_mutex", "condition_variable",
    "future",  "stop_token", "chrono",       "random",
    "ctime",   "time.h",     "fstream",      "unistd.h",
    "sys/",    "netinet/",   "pthread.h",    "signal.h",
    "csignal", "semaphore",  "latch",        "sys/time.h",
    "barrier", "dlfcn.h"};

const Layer* layer_of(const std::string& path) {
  const Layer* best = nullptr;
  for (const auto& layer : layers())
    if (path.starts_with(layer.folder) &&
        (best == nullptr || layer.folder.size() > best->folder.size()))
      best = &layer;
  return best;
}

bool is_standard(const std::string& header) {
  // C++ headers have no ending; C and POSIX ones are plain names or live under sys/.
  static const std::vector<std::string> posix = {
      "sys/",      "netinet/", "arpa/",     "dirent.h",    "dlfcn.h",  "errno.h",  "fcntl.h",
      "glob.h",    "poll.h",   "pthread.h", "pwd.h",       "sched.h",  "signal.h", "spawn.h",
      "termios.h", "time.h",   "unistd.h",  "immintrin.h", "stdlib.h", "stdio.h",  "string.h",
      "limits.h",  "linux/",   "elf.h",     "langinfo.h",  "locale.h", "malloc.h", "stdint.h"};
  return header.find_first_of("./") == std::string::npos || starts_with_any(header, posix);
}

std::string third_party_fault(const SourceFile& file, const Include& include) {
  for (const auto& fence : fences()) {
    if (!starts_with_any(include.target, fence.headers)) continue;
    const bool allowed =
        std::any_of(fence.allowed_in.begin(), fence.allowed_in.end(),
                    [&](const std::string& pattern) { return matches(pattern, file.path); });
    if (allowed) return {};
    return fmt::format("{} may be named only in {}", fence.party,
                       fmt::join(fence.allowed_in, ", "));
  }
  return fmt::format(
      "<{}> is neither the standard's nor a listed third party's: add a fence here and a line to "
      "THIRD_PARTY.md",
      include.target);
}

/// Folders of the runtime and of kernels/text are named one by one: trace/ does not stand for
/// trace/read/.
bool may_include(const Layer& layer, const std::string& target) {
  if (!target.starts_with("runtime/") && !target.starts_with("kernels/text/"))
    return starts_with_any(target, layer.may_include);
  const Layer* const found = layer_of(target);
  return std::any_of(layer.may_include.begin(), layer.may_include.end(),
                     [&](const std::string& each) {
                       return each == "kernels/" ? target.starts_with(each)
                                                 : found != nullptr && each == found->folder;
                     });
}

std::string fault_of(const SourceFile& file, const Layer& layer, const Include& include) {
  if (include.quoted) {
    const bool is_hidden = std::find(layer.never_ours.begin(), layer.never_ours.end(),
                                     include.target) != layer.never_ours.end();
    if (!is_hidden && may_include(layer, include.target)) return {};
    return fmt::format("{} may include {}, not \"{}\"", layer.folder,
                       fmt::join(layer.may_include, ", "), include.target);
  }
  if (!is_standard(include.target)) return third_party_fault(file, include);
  for (const auto& header : layer.never_standard)
    if (include.target == header || (header.ends_with('/') && include.target.starts_with(header)))
      return fmt::format("{} never includes <{}>: services() gives what it hides", layer.folder,
                         include.target);
  return {};
}

// What actors get through services(), too.
const std::vector<std::string> kOurClocks = {"graph/base/real_clock.h", "graph/base/descriptor.h"};

// What a room of the runtime may include beside graph/ and other rooms of the runtime.
const std::vector<std::string> kNothing = {};
const std::vector<std::string> kKernels = {"kernels/"};
const std::vector<std::string> kActors = {"actors/"};
const std::vector<std::string> kKernelsAndActors = {"kernels/", "actors/"};

/// A room of the runtime: itself, graph/, the rooms below it.
Layer room(const std::string& name, const std::vector<std::string>& below,
           const std::vector<std::string>& more) {
  Layer layer{"runtime/" + name + "/", {"graph/", "runtime/" + name + "/"}, {}, {}};
  for (const auto& each : below) layer.may_include.push_back("runtime/" + each + "/");
  layer.may_include.insert(layer.may_include.end(), more.begin(), more.end());
  return layer;
}

/// A folder of kernels/: itself, graph/base/, the folders below it.
Layer kernel_folder(const std::string& name, const std::vector<std::string>& below) {
  Layer layer{"kernels/" + name + "/", {"graph/base/", "kernels/" + name + "/"}, {}, {}};
  for (const auto& each : below) layer.may_include.push_back("kernels/" + each + "/");
  return layer;
}

}  // namespace

const std::vector<Layer>& layers() {
  static const std::vector<Layer> table = {
      {"graph/base/", {"graph/base/"}, {}, {}},
      {"graph/", {"graph/"}, {"mutex", "condition_variable", "future"}, {}},
      kernel_folder("ops", {}),
      kernel_folder("text", {}),
      kernel_folder("text/chat", {"text"}),
      kernel_folder("weights", {}),
      kernel_folder("cuda/ops", {"ops"}),
      kernel_folder("models", {"weights"}),
      kernel_folder("engine", {"models", "text", "weights"}),
      kernel_folder("train", {"engine", "models", "weights"}),
      kernel_folder("common", {"engine", "models", "ops", "train", "weights"}),
      kernel_folder("scripted", {"engine", "text", "train", "weights"}),
      kernel_folder("sizing", {"engine", "models", "train"}),
      kernel_folder("cpu/weights", {"common", "engine", "models", "ops", "sizing", "weights"}),
      kernel_folder("cuda/aten", {"common", "cuda/ops", "engine"}),
      kernel_folder("cuda/device", {"common", "cuda/ops"}),
      kernel_folder("cpu/stages", {"common", "cpu/weights", "engine", "models", "ops"}),
      kernel_folder("cuda/layers", {"cuda/device", "cuda/ops", "models"}),
      kernel_folder("cpu/engine",
                    {"common", "cpu/stages", "cpu/weights", "engine", "sizing", "weights"}),
      kernel_folder("cpu/learner",
                    {"common", "cpu/stages", "cpu/weights", "models", "ops", "sizing", "train"}),
      kernel_folder("cuda/memory", {"common", "cuda/device", "cuda/layers", "models", "weights"}),
      kernel_folder("cuda/engine", {"common", "cuda/device", "cuda/layers", "cuda/memory",
                                    "cuda/ops", "engine", "models", "ops", "weights"}),
      kernel_folder("cuda/learner", {"common", "cuda/device", "cuda/layers", "cuda/memory",
                                     "cuda/ops", "engine", "models", "ops", "train", "weights"}),
      kernel_folder("devices", {"common", "cpu/engine", "cpu/learner", "cuda/device", "cuda/engine",
                                "cuda/learner", "cuda/memory", "cuda/ops", "engine", "models",
                                "sizing", "text", "train", "weights"}),
      {"actors/",
       {"actors/", "graph/", "kernels/engine/", "kernels/train/", "kernels/weights/",
        "kernels/text/", "kernels/text/chat/"},
       kBehindServices,
       kOurClocks},
      room("log", {}, kNothing),
      room("store", {}, kNothing),
      room("program", {}, kNothing),
      room("wire", {}, kNothing),
      room("transport", {"wire"}, kNothing),
      room("exec", {"wire"}, kNothing),
      room("trace", {"exec", "wire"}, kNothing),
      room("trace/record", {"trace", "exec", "wire"}, kNothing),
      room("trace/read", {"trace", "exec", "wire"}, kNothing),
      room("query", {"trace", "trace/read", "trace/record"}, kNothing),
      room("monitor", {"exec", "store", "wire"}, kNothing),
      room("plugins", {}, kActors),
      room("outside", {}, kNothing),
      room("outside/verifiers", {"outside"}, kNothing),
      room("backends", {"exec", "outside", "outside/verifiers", "plugins", "program"},
           kKernelsAndActors),
      room("replay",
           {"backends", "exec", "program", "store", "trace", "trace/read", "trace/record", "wire"},
           kKernels),
      room("rehearsal", {"backends", "exec", "outside"}, kKernelsAndActors),
      room("control",
           {"exec", "log", "monitor", "outside", "program", "replay", "store", "transport", "wire"},
           kActors),
      room("worker",
           {"backends", "exec", "log", "program", "replay", "store", "trace", "trace/record",
            "transport", "wire"},
           kKernelsAndActors),
      room("cli",
           {"backends", "control", "monitor", "program", "query", "rehearsal", "store",
            "trace/read", "trace/record", "transport"},
           kKernelsAndActors),
      room("bin", {"cli", "worker"}, kNothing),
  };
  return table;
}

const std::vector<Fence>& fences() {
  static const std::vector<Fence> table = {
      {"fmt", {"fmt/"}, {"*"}},
      {"nlohmann-json", {"nlohmann/"}, {"graph/base/json.cc"}},
      {"toml++", {"toml++/", "toml.hpp"}, {"graph/config/toml_source.cc"}},
      {"CAF", {"caf/"}, {"runtime/exec/caf_*.cc"}},
      {"msgpack", {"msgpack"}, {"runtime/wire/*", "runtime/outside/verifiers/msgpack_json.cc"}},
      {"spdlog", {"spdlog/"}, {"runtime/log/*"}},
      {"Boost.Beast", {"boost/"}, {"runtime/monitor/http_*.cc", "runtime/outside/http_reader.cc"}},
      {"CLI11", {"CLI/"}, {"runtime/program/command_line.cc"}},
      {"PCRE2", {"pcre2"}, {"kernels/text/pattern.cc", "kernels/text/text_search.cc"}},
      {"utf8proc", {"utf8proc"}, {"kernels/text/unicode.cc"}},
      {"zstd", {"zstd.h"}, {"runtime/trace/packed_segment.cc"}},
      {"ZeroMQ", {"zmq"}, {"runtime/transport/zmq_*", "runtime/outside/verifiers/zmq_client.cc"}},
      {"OpenSSL", {"openssl/"}, {"graph/base/sha256.cc", "runtime/outside/tls.cc"}},
      {"CUDA",
       {"cuda", "mma.h"},
       {"kernels/cuda/ops/*", "kernels/cuda/device/device.cc",
        "kernels/cuda/memory/mapped_memory.cc"}},
      {"libtorch",
       {"torch/", "ATen/", "c10/"},
       {"kernels/common/*", "kernels/cpu/*", "kernels/cuda/*"}},
  };
  return table;
}

std::vector<std::string> layer_faults(const SourceFile& file) {
  std::vector<std::string> faults;
  const Layer* layer = layer_of(file.path);
  if (layer == nullptr) return faults;
  for (const auto& include : includes_of(file)) {
    const std::string fault = fault_of(file, *layer, include);
    if (!fault.empty()) faults.push_back(fmt::format("{}:{}: {}", file.path, include.line, fault));
  }
  return faults;
}

}  // namespace primerl::tidy
