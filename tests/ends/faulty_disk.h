/// A disk that runs out of space at a chosen call on a chosen file of a run.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "tests/ends/disk_state.h"

namespace primerl {

struct DiskFault {
  std::string files = "*";             // fnmatch() pattern below the folder
  uint64_t calls_before = 0;           // that match and succeed
  uint64_t refusals_max = UINT64_MAX;  // then there is space again
  uint32_t percent = 100;              // of the calls after the first are refused
  bool is_whole = false;               // then every file of the folder is refused
  uint64_t seed = 1;
};

/// One start of a run on it: give variables() to its program.
class FaultyDisk {
 public:
  /// The state lies at `file`, outside of `folder`.
  FaultyDisk(const std::filesystem::path& file, const std::filesystem::path& folder,
             const DiskFault& fault)
      : file_(file) {
    const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    EXPECT_EQ(::ftruncate(fd, sizeof(DiskState)), 0);
    void* at = ::mmap(nullptr, sizeof(DiskState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    EXPECT_NE(at, MAP_FAILED);
    state_ = new (at) DiskState();
    std::snprintf(state_->folder, sizeof state_->folder, "%s", folder.c_str());
    std::snprintf(state_->files, sizeof state_->files, "%s", fault.files.c_str());
    state_->calls_before = fault.calls_before;
    state_->seed = fault.seed;
    state_->percent = fault.percent;
    state_->is_whole = fault.is_whole ? 1 : 0;
    state_->refusals_max = fault.refusals_max;
  }
  ~FaultyDisk() { ::munmap(state_, sizeof(DiskState)); }
  FaultyDisk(const FaultyDisk&) = delete;
  FaultyDisk& operator=(const FaultyDisk&) = delete;

  std::vector<std::string> variables() const {
    return {"LD_PRELOAD=" PRIMERL_FULL_DISK, std::string(kDiskVariable) + "=" + file_.string()};
  }
  uint64_t num_calls() const { return state_->num_calls.load(); }
  uint64_t num_refused() const { return state_->num_refused.load(); }

 private:
  std::filesystem::path file_;
  DiskState* state_;
};

}  // namespace primerl
