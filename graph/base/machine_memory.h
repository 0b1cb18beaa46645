/// The memory that this process may use: that of the machine, or of its control groups where they
/// allow less; and whether a process was killed for want of it. Any thread; reads /proc and
/// /sys/fs/cgroup at each call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace primerl {

struct MemoryLimit {
  double bytes = 0;    // 0: the system does not say
  std::string source;  // "RAM of this machine", "/sys/fs/cgroup/job/memory.max"

  /// "4 GiB (/sys/fs/cgroup/job/memory.max)".
  std::string text() const;
};

/// The smallest of the RAM and the limits of this process's control group and its ancestors, of
/// cgroup v2 (memory.max) and v1 (memory.limit_in_bytes). `root`: where /proc and /sys are looked
/// for, for tests.
MemoryLimit memory_limit(const std::filesystem::path& root = "/");

/// Processes that the kernel has killed for want of memory, in the control group of this process
/// or, where that has no count, on this machine; none where neither is known. Two readings around
/// the death of a child tell whether it was one of them.
std::optional<uint64_t> num_killed_for_memory(const std::filesystem::path& root = "/");

/// Why a child that SIGKILL ended has probably died for want of memory; "": it has not, as far as
/// the system says. `killed_before` is num_killed_for_memory() from before, `peak_bytes` its
/// largest resident memory.
std::string why_killed_for_memory(std::optional<uint64_t> killed_before,
                                  std::optional<uint64_t> killed_now, double peak_bytes,
                                  const MemoryLimit& limit);

}  // namespace primerl
