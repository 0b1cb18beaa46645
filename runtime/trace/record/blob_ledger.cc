#include "runtime/trace/record/blob_ledger.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "graph/base/file_lock.h"
#include "graph/base/files.h"
#include "runtime/trace/frame_check.h"
#include "runtime/trace/segment_bytes.h"
#include "runtime/trace/segment_reader.h"

namespace primerl {
BlobLedger::BlobLedger(std::filesystem::path folder, const std::string& process,
                       uint32_t incarnation, bool syncs)
    : folder_(std::move(folder)),
      store_(folder_ / "blobs", syncs),
      mark_ending_(fmt::format(".{}.{}", process, incarnation)) {}

std::filesystem::path BlobLedger::mark_of(const ContentHash& hash) const {
  return store_.path_of(hash).string() + mark_ending_;
}

bool BlobLedger::is_empty() const {
  const std::lock_guard lock(mutex_);
  return marked_.empty();
}

Result<ContentHash> BlobLedger::store(std::span<const std::byte> bytes) {
  const ContentHash hash = sha256(bytes);
  {
    const std::lock_guard lock(mutex_);
    ++pending_[hash];
    if (marked_.contains(hash)) return hash;
  }
  RETURN_IF_ERROR(system_files().make_folder(folder_));
  const FileLock lock(folder_, FileLock::When::kFree);
  RETURN_IF_ERROR(store_.store(bytes));
  if (!lock.is_open()) return hash;
  const int linked = ::link(store_.path_of(hash).c_str(), mark_of(hash).c_str());
  if (linked != 0 && errno != EEXIST) return hash;
  const std::lock_guard guard(mutex_);
  marked_.insert(hash);
  return hash;
}

uint64_t BlobLedger::count_file(uint64_t number, const std::filesystem::path& segment) {
  if (is_empty()) return 0;
  const auto bytes = Mapping::of_file(segment);
  return bytes.ok() ? count(number, bytes->bytes()) : 0;
}

uint64_t BlobLedger::count(uint64_t number, std::span<const std::byte> segment) {
  if (is_empty()) return 0;
  auto reader = SegmentReader::parse(segment, "segment");
  if (!reader.ok()) return 0;  // its blobs are kept
  uint64_t num_new_bytes = 0;
  for (auto frame = (*reader)->next(0); frame;
       frame = (*reader)->next(SegmentReader::next_offset(*frame))) {
    if (frame->kind() != TraceFrameKind::kPayload) continue;
    const std::lock_guard lock(mutex_);
    visit_payload(frame->bytes, [&](const PayloadPart& part) {
      if (!part.is_stored) return;
      ContentHash hash;
      std::memcpy(hash.data(), part.bytes.data(), hash.size());
      if (const auto found = pending_.find(hash); found != pending_.end() && --found->second == 0)
        pending_.erase(found);
      if (names_[number].insert(hash).second && ++num_segments_[hash] == 1)
        num_new_bytes += part.num_bytes;
    });
  }
  return num_new_bytes;
}

void BlobLedger::retire(uint64_t number) {
  std::vector<ContentHash> unnamed;
  {
    const std::lock_guard lock(mutex_);
    const auto found = names_.find(number);
    if (found == names_.end()) return;
    for (const ContentHash& hash : found->second) {
      const auto segments = num_segments_.find(hash);
      if (--segments->second > 0) continue;
      num_segments_.erase(segments);
      unnamed.push_back(hash);
    }
    names_.erase(found);
  }
  for (const ContentHash& hash : unnamed) remove_unnamed(hash);
}

void BlobLedger::remove_unnamed(const ContentHash& hash) {
  const FileLock lock(folder_, FileLock::When::kFree);
  if (!lock.is_open()) return;
  {
    const std::lock_guard guard(mutex_);
    // It was stored again meanwhile.
    if (pending_.contains(hash) || num_segments_.contains(hash)) return;
    if (marked_.erase(hash) == 0) return;
  }
  ::unlink(mark_of(hash).c_str());
  const auto blob = store_.path_of(hash);
  struct stat facts {};
  if (::stat(blob.c_str(), &facts) == 0 && facts.st_nlink == 1) ::unlink(blob.c_str());
}

}  // namespace primerl
