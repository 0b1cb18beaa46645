/// KvEventFile: the events of one engine's prefix cache as lines of a file in the run folder
/// (docs/formats/run-folder.md). Created with the first events; used by the engine's thread only.
///
/// It has at most `bytes_max` bytes, including those of earlier starts of the run. The first events
/// that do not fit are dropped, and all later ones too, so the file is complete up to its end. The
/// same happens after an error of the disk, because an event must not stop an engine.
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
  std::string medium;                // where the blocks are: "cpu", "cuda:0"
  std::vector<std::string> tenants;  // names, by slot
};

class KvEventFile {
 public:
  explicit KvEventFile(KvEventFileSetup setup) : setup_(std::move(setup)) {}

  /// Writes one line, stamped with `time` (seconds since 1970); nothing without events.
  void write(const KvEvents& taken, double time);
  uint64_t num_written() const { return num_written_; }
  /// Events that are not in the file: the engine's buffer or the file was full.
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
