/// DiskState: a simulated full disk. A test and the programs that it starts map one file with it;
/// tests/ends/full_disk.cc is preloaded into the programs and refuses calls as it says.
#pragma once

#include <atomic>
#include <cstdint>

namespace primerl {

/// The file that is mapped.
inline constexpr char kDiskVariable[] = "PRIMERL_TEST_DISK";

/// Plain bytes, shared by all processes. Each counter counts the calls of every process.
struct DiskState {
  char folder[400];       // only calls on files below it count
  char files[80];         // fnmatch() pattern of their paths below the folder
  uint64_t calls_before;  // so many calls that match succeed, then the disk is full
  uint64_t seed;          // of which calls are refused, and of how much a write still takes
  uint32_t percent;       // of the calls after the first are refused: a file may have room
  uint32_t is_whole;      // once full, every file below the folder is refused
  std::atomic<uint64_t> refusals_max;  // then there is free space again
  std::atomic<uint64_t> num_calls, num_refused;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace primerl
