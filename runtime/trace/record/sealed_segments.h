/// SealedSegments: packs the full segments of a process, and retires the oldest ones while the
/// total size exceeds the limit. It uses one thread of low priority. A segment that cannot be
/// packed stays raw, which every reader supports.
///
/// Threads: all functions from any.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "graph/base/clock.h"
#include "graph/base/result.h"

namespace primerl {

/// Packs the raw segment `file` into a `.ptrz` file beside it, syncs that, then removes `file`.
Result<std::filesystem::path> pack_segment_file(const std::filesystem::path& file);

class BlobLedger;

class SealedSegments {
 public:
  struct Options {
    std::filesystem::path folder;
    std::string process;
    uint32_t incarnation = 1;
    uint64_t bytes_max = 0;
    bool packs = true;
    std::function<uint64_t()> keep_from;
    BlobLedger* blobs = nullptr;  // must stay valid while the object exists; removes blobs with
                                  // their segments
  };
  explicit SealedSegments(Options options);
  /// Segments that are not packed yet stay raw.
  ~SealedSegments();

  void add(uint64_t number, uint64_t num_bytes);
  /// Returns when all added segments are packed, or after `at_most`.
  void finish(Duration at_most);

 private:
  void serve();
  bool is_kept(uint64_t number);  // not retired
  void count_blobs(uint64_t number);
  void retire();
  void pack(uint64_t number);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  // Guarded by mutex_.
  std::map<uint64_t, uint64_t> bytes_of_;       // sealed segments, by number
  std::map<uint64_t, uint64_t> blob_bytes_of_;  // by segment: size of the blobs that no earlier
                                                // segment refers to
  std::deque<uint64_t> to_do_;
  bool is_busy_ = false;
  bool stops_ = false;
  std::set<uint64_t> counted_;  // used by the thread only: segments whose blobs were counted
  std::jthread thread_;
};

}  // namespace primerl
