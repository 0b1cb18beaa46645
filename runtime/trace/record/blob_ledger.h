/// BlobLedger: which blobs of the content store the segments of one process name, so that a blob
/// goes with the last segment that named it.
///
/// Beside a blob lies a mark for each process that names it, `<hash>.<process>.<incarnation>`, a
/// second name of the same file: who removes its mark and finds no other removes the blob. That,
/// and storing with marking, happens under a lock (flock) of the trace's folder, since several
/// processes share one. Where the disk knows no second names, blobs stay.
///
/// Exact within the process: a blob counts as named from store() on, until the segment that its
/// frame went to is retired. One whose frame was lost stays.
///
/// Threads: all functions from any.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "runtime/trace/content_store.h"

namespace primerl {

class BlobLedger {
 public:
  /// `folder`: of the trace. `syncs` as of ContentStore.
  BlobLedger(std::filesystem::path folder, const std::string& process, uint32_t incarnation,
             bool syncs);

  Result<ContentHash> store(std::span<const std::byte> bytes);
  /// Counts what a full segment names; returns the bytes of blobs that none before it named.
  uint64_t count(uint64_t number, std::span<const std::byte> segment);
  uint64_t count_file(uint64_t number, const std::filesystem::path& segment);
  /// The segment is gone.
  void retire(uint64_t number);

 private:
  bool is_empty() const;
  std::filesystem::path mark_of(const ContentHash& hash) const;
  void remove_unnamed(const ContentHash& hash);

  const std::filesystem::path folder_;
  const ContentStore store_;
  const std::string mark_ending_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::set<ContentHash> marked_;             // by this process
  std::map<ContentHash, uint64_t> pending_;  // stored, their frames not yet seen in a full segment
  std::map<ContentHash, uint64_t> num_segments_;
  std::map<uint64_t, std::set<ContentHash>> names_;  // by segment
};

}  // namespace primerl
