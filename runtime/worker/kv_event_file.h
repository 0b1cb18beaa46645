/// KvEventFile: the events of one engine's prefix cache as lines of a file of the run folder
/// (docs/formats/run-folder.md). Made with the first events; one thread, the engine's.
///
/// It holds at most `bytes_max` bytes, those of earlier starts of the run included: what would not
/// fit is dropped, and all that follows, so the file is the truth up to its end. So it is after an
/// error of the disk: no event may stop an engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "kernels/engine/kv_events.h"
#include "runtime/store/line_file.h"

namespace primerl {

struct KvEventFileSetup {
  std::filesystem::path file;
  int64_t bytes_max = 0;
  std::string medium;                // what the blocks lie in: "cpu", "cuda:0"
  std::vector<std::string> tenants;  // names, by slot
};

class KvEventFile {
 public:
  explicit KvEventFile(KvEventFileSetup setup) : setup_(std::move(setup)) {}

  /// One line, written at `time` (seconds since 1970); nothing without events.
  void write(const KvEvents& taken, double time);
  uint64_t num_written() const { return num_written_; }
  /// Events that are not in the file: the engine had no room for them, or the file had none.
  uint64_t num_dropped() const { return num_dropped_by_engine_ + num_dropped_; }

 private:
  std::string line_of(const KvEvents& taken, double time) const;
  Status open();

  const KvEventFileSetup setup_;
  std::unique_ptr<LineFile> lines_;  // null: not opened yet, or full
  int64_t num_bytes_ = 0;
  bool has_ended_ = false;
  uint64_t num_written_ = 0;
  uint64_t num_dropped_ = 0, num_dropped_by_engine_ = 0;
};

}  // namespace primerl
