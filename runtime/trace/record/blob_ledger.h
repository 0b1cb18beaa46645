/// BlobLedger: which blobs of the content store the segments of one process refer to, so that a
/// blob is removed with the last segment that refers to it.
///
/// Beside a blob there is a mark for each process that refers to it,
/// `<hash>.<process>.<incarnation>`, a hard link to the same file: the process that removes its
/// mark and finds no other removes the blob. Removing, and storing with marking, happen under a
/// lock (flock) of the trace's folder, because several processes share it. On file systems without
/// hard links, blobs are kept.
///
/// Exact within the process: a blob counts as referred to from store() until the segment that holds
/// its frame is retired. One whose frame was lost is kept.
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
  /// Counts the blobs of a full segment; returns the bytes of those that no earlier segment refers
  /// to.
  uint64_t count(uint64_t number, std::span<const std::byte> segment);
  uint64_t count_file(uint64_t number, const std::filesystem::path& segment);
  /// The segment was removed.
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
