/// BlobLedger: knows which blobs of the content store the segments of one process refer to. It
/// removes a blob together with the last segment that refers to it.
///
/// For each process that refers to a blob there is a mark `<hash>.<process>.<incarnation>`, a hard
/// link to the blob's file. When a process removes its mark and finds no other mark, it removes the
/// blob. Both removing, and storing with marking, hold a lock (flock) on the trace's folder,
/// because several processes share it. On file systems without hard links, blobs are kept.
///
/// Exact within the process: a blob counts as referred to from store() until the segment that
/// contains its frame is retired. If its frame was lost, the blob is kept.
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
  /// `folder`: the trace's folder. `syncs` as for ContentStore.
  BlobLedger(std::filesystem::path folder, const std::string& process, uint32_t incarnation,
             bool syncs);

  Result<ContentHash> store(std::span<const std::byte> bytes);
  /// Counts the blobs of a full segment. Returns the total size of those that no earlier segment
  /// refers to.
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
  std::map<ContentHash, uint64_t> pending_;  // stored blobs whose frames were not yet seen in a
                                             // full segment
  std::map<ContentHash, uint64_t> num_segments_;
  std::map<uint64_t, std::set<ContentHash>> names_;  // by segment number
};

}  // namespace primerl
