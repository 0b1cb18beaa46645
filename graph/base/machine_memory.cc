#include "graph/base/machine_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "graph/base/memory_part.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kGroupDepthMax = 64;  // of nested control groups
constexpr double kNearLimit = 0.8;     // a peak above this part of the limit counts as near it

/// A control group with a memory controller.
struct MemoryGroup {
  fs::path folder;   // of this process
  fs::path mounted;  // its topmost ancestor that can be seen
  bool is_version_2 = false;
};

std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

std::optional<uint64_t> number_of(std::string_view text) {
  uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  return number;
}

/// The number that follows `key` on a line of the file.
std::optional<uint64_t> number_after(const fs::path& file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string name, value; stream >> name >> value;)
    if (name == key) return number_of(value);
  return std::nullopt;
}

bool has_word(std::string_view list, std::string_view word) {
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    if (list.substr(at, end - at) == word) return true;
    at = end + 1;
  }
  return false;
}

/// The path of the v1 memory controller, or of v2, in /proc/self/cgroup.
std::optional<std::string> group_path(const fs::path& root, bool is_version_2) {
  std::ifstream stream(root / "proc/self/cgroup");
  for (std::string line; std::getline(stream, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    const bool is_wanted = is_version_2 ? line.starts_with("0:") && controllers.empty()
                                        : has_word(controllers, "memory");
    if (is_wanted) return line.substr(second + 1);
  }
  return std::nullopt;
}

/// A mounted hierarchy of control groups, from one line of /proc/self/mountinfo.
struct GroupMount {
  std::string top;    // the control group that is mounted
  std::string where;  // the folder
};

std::optional<GroupMount> group_mount(const fs::path& root, bool is_version_2) {
  std::ifstream stream(root / "proc/self/mountinfo");
  for (std::string line; std::getline(stream, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream front(line.substr(0, dash)), back(line.substr(dash + 3));
    std::string id, parent, device, type, source, options;
    GroupMount mount;
    front >> id >> parent >> device >> mount.top >> mount.where;
    back >> type >> source >> options;
    const bool is_wanted =
        is_version_2 ? type == "cgroup2" : type == "cgroup" && has_word(options, "memory");
    if (is_wanted) return mount;
  }
  return std::nullopt;
}

/// The control group below `root`. In a container the path may name a group that the mount does not
/// show; then the mounted group is used.
std::optional<MemoryGroup> memory_group(const fs::path& root, bool is_version_2) {
  const auto path = group_path(root, is_version_2);
  const auto mount = group_mount(root, is_version_2);
  if (!path || !mount) return std::nullopt;
  const fs::path mounted = root / fs::path(mount->where).relative_path();
  fs::path below = fs::path(*path).lexically_relative(mount->top);
  if (below.empty() || below.begin()->string() == "..") below = ".";
  fs::path folder = (mounted / below).lexically_normal();
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) folder = mounted;
  return MemoryGroup{folder, mounted, is_version_2};
}

void take_smaller(MemoryLimit& limit, std::optional<uint64_t> bytes, const std::string& source) {
  if (!bytes) return;
  const auto value = static_cast<double>(*bytes);
  if (limit.bytes == 0 || value < limit.bytes) limit = {value, source};
}

/// The path as people write it, without a test's root.
std::string shown(const fs::path& file, const fs::path& root) {
  return "/" + file.lexically_relative(root).string();
}

void take_group(MemoryLimit& limit, const MemoryGroup& group, const fs::path& root) {
  const char* const name = group.is_version_2 ? "memory.max" : "memory.limit_in_bytes";
  fs::path folder = group.folder;
  for (size_t depth = 0; depth < kGroupDepthMax; ++depth) {
    const fs::path file = folder / name;
    take_smaller(limit, number_of(first_line(file)), shown(file, root));  // "max": no limit
    if (folder == group.mounted || folder == folder.parent_path()) break;
    folder = folder.parent_path();
  }
  if (group.is_version_2) return;
  // This limit includes ancestors that are not mounted.
  const fs::path file = group.folder / "memory.stat";
  take_smaller(limit, number_after(file, "hierarchical_memory_limit"),
               shown(file, root) + " hierarchical_memory_limit");
}

}  // namespace

std::string MemoryLimit::text() const { return fmt::format("{} ({})", memory_text(bytes), source); }

MemoryLimit memory_limit(const fs::path& root) {
  MemoryLimit limit;
  if (const auto kilobytes = number_after(root / "proc/meminfo", "MemTotal:"))
    limit = {1024.0 * static_cast<double>(*kilobytes), "RAM of this machine"};
  for (const bool is_version_2 : {false, true})
    if (const auto group = memory_group(root, is_version_2)) take_group(limit, *group, root);
  return limit;
}

std::optional<uint64_t> num_killed_for_memory(const fs::path& root) {
  for (const bool is_version_2 : {false, true}) {
    const auto group = memory_group(root, is_version_2);
    if (!group) continue;
    const char* const file = is_version_2 ? "memory.events" : "memory.oom_control";
    if (const auto count = number_after(group->folder / file, "oom_kill")) return count;
  }
  return number_after(root / "proc/vmstat", "oom_kill");
}

std::string why_killed_for_memory(std::optional<uint64_t> killed_before,
                                  std::optional<uint64_t> killed_now, double peak_bytes,
                                  const MemoryLimit& limit) {
  const bool is_known = killed_before && killed_now;
  if (is_known && *killed_now == *killed_before) return {};
  const bool is_near = limit.bytes > 0 && peak_bytes > kNearLimit * limit.bytes;
  if (!is_known && !is_near) return {};
  return fmt::format("{}for lack of memory: its resident memory was {} at most, the limit is {}",
                     is_known ? "" : "probably ", memory_text(peak_bytes), limit.text());
}

}  // namespace primerl
