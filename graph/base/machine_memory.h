/// The memory that this process may use: the RAM of the machine, or less if its control groups have
/// a limit; and whether a process was killed because memory was short. Any thread; reads /proc and
/// /sys/fs/cgroup at each call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace primerl {

struct MemoryLimit {
  double bytes = 0;    // 0: unknown
  std::string source;  // "RAM of this machine", "/sys/fs/cgroup/job/memory.max"

  /// For example "4 GiB (/sys/fs/cgroup/job/memory.max)".
  std::string text() const;
};

/// The smallest of the RAM and the limits of this process's control group and its ancestors, in
/// cgroup v2 (memory.max) and v1 (memory.limit_in_bytes). `root` is the folder of /proc and /sys,
/// for tests.
MemoryLimit memory_limit(const std::filesystem::path& root = "/");

/// How many processes the kernel has killed because memory was short: in the control group of this
/// process or, if that has no count, on this machine. None if neither is known. If the number rises
/// while a child dies, the child may have been killed for that reason.
std::optional<uint64_t> num_killed_for_memory(const std::filesystem::path& root = "/");

/// Why a child that ended by SIGKILL was probably killed because memory was short; "" if the system
/// does not indicate that. `killed_before` is num_killed_for_memory() from before, `peak_bytes` the
/// child's largest resident memory.
std::string why_killed_for_memory(std::optional<uint64_t> killed_before,
                                  std::optional<uint64_t> killed_now, double peak_bytes,
                                  const MemoryLimit& limit);

}  // namespace primerl
