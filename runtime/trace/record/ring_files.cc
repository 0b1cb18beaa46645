#include "runtime/trace/record/ring_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "graph/base/files.h"
#include "graph/base/real_clock.h"
#include "runtime/trace/segment_files.h"

namespace primerl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kNameBytesMax = 64;  // for a number and suffixes
constexpr auto kTryLockAgain = std::chrono::microseconds(50);

/// The current end of each buffer, after all frames before it are finished. If the receipt of a
/// message is in one of them, the message was sent in an earlier frame, which was finished earlier.
Result<std::vector<uint64_t>> ends_of(std::span<SegmentBuffer* const> kept, Duration wait_max) {
  const auto deadline = Clock::now() + std::chrono::nanoseconds(wait_max.to_nanoseconds());
  const auto wait_until = [&](const SegmentBuffer& buffer, const auto& is_so) -> Status {
    while (!is_so()) {
      // A thread was preempted while it copied.
      if (Clock::now() > deadline)
        return error(Code::kDeadline, "a frame of segment {} was not finished for {}",
                     buffer.header().number, to_string(wait_max));
      std::this_thread::sleep_for(kTryLockAgain);
    }
    return ok();
  };
  std::vector<uint64_t> ends;
  // Newest first: then everything before its current end is already reserved in the older ones.
  for (size_t i = kept.size(); i-- > 0;) {
    std::optional<uint64_t> end;
    RETURN_IF_ERROR(
        wait_until(*kept[i], [&] { return (end = kept[i]->reserved_to()).has_value(); }));
    ends.insert(ends.begin(), *end);
  }
  for (size_t i = 0; i < kept.size(); ++i)
    RETURN_IF_ERROR(wait_until(*kept[i], [&] { return kept[i]->is_finished_to(ends[i]); }));
  return ends;
}

/// Writes the digits of a number; returns how many.
size_t put_digits(uint64_t number, char* to) noexcept {
  char reversed[20];
  size_t count = 0;
  do {
    reversed[count++] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number > 0);
  for (size_t i = 0; i < count; ++i) to[i] = reversed[count - 1 - i];
  return count;
}

bool write_all(int file, const void* bytes, size_t size) noexcept {
  const char* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t done = ::write(file, at, size);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done;
    size -= static_cast<size_t>(done);
  }
  return true;
}

/// Writes `prefix` + `number` + `ending`, zero-terminated, into memory that is already allocated.
const char* put_path(std::string& path, const std::string& prefix, uint64_t number,
                     const char* ending) noexcept {
  char* to = path.data();
  std::memcpy(to, prefix.data(), prefix.size());
  to += prefix.size();
  if (number > 0) to += put_digits(number, to);
  std::memcpy(to, ending, std::strlen(ending) + 1);
  return path.data();
}

bool write_new_file(const char* file_name, std::span<const std::byte> bytes) noexcept {
  const int file = ::open(file_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return false;
  const bool is_whole = write_all(file, bytes.data(), bytes.size()) && ::fsync(file) == 0;
  ::close(file);
  if (!is_whole) ::unlink(file_name);
  return is_whole;
}

}  // namespace

std::vector<SegmentBuffer*> newest_without_gap(std::vector<SegmentBuffer*> buffers) {
  std::ranges::sort(buffers, {}, [](const auto* buffer) { return buffer->header().number; });
  size_t first = buffers.size();
  while (first > 0 && (first == buffers.size() ||
                       buffers[first - 1]->header().number + 1 == buffers[first]->header().number))
    --first;
  buffers.erase(buffers.begin(), buffers.begin() + static_cast<ptrdiff_t>(first));
  return buffers;
}

RingFiles::RingFiles(std::filesystem::path folder, std::string process, uint32_t incarnation,
                     const std::vector<std::unique_ptr<SegmentBuffer>>& buffers, BlobLedger& blobs)
    : folder_(std::move(folder)),
      process_(std::move(process)),
      incarnation_(incarnation),
      blobs_(blobs),
      folder_text_(folder_.string()),
      prefix_((folder_ / fmt::format("{}.{}.", process_, incarnation_)).string()),
      path_(prefix_.size() + kNameBytesMax, '\0'),
      other_path_(path_) {
  for (const auto& buffer : buffers) buffers_.push_back(buffer.get());
}

Status RingFiles::mark(const Json& facts) const {
  return replace_file(system_files(), snapshot_path(folder_, process_, incarnation_),
                      facts.dump() + "\n");
}

Result<RingSnapshot> RingFiles::write(std::span<SegmentBuffer* const> kept, bool is_snapshot,
                                      Duration wait_max, const OnWritten& on_written) {
  RETURN_IF_ERROR(make_trace_folder(folder_));
  Json facts = Json::object().set("begun_ns", steady_now().to_nanoseconds());
  // Marked before the first segment is written, so that the files are never mistaken for the end of
  // a run.
  if (is_snapshot) RETURN_IF_ERROR(mark(facts));
  is_writing_.store(true);
  auto written = write_segments(kept, wait_max, on_written);
  if (!is_snapshot && written.ok()) {
    std::error_code ignored;
    std::filesystem::remove(snapshot_path(folder_, process_, incarnation_), ignored);
  }
  is_writing_.store(false);
  if (!is_snapshot) return written;
  facts.set("ended_ns", steady_now().to_nanoseconds());
  if (!written.ok()) {
    RETURN_IF_ERROR(mark(facts.set("error", written.error().text())));
    return written;
  }
  facts.set("first_segment", written->first_segment).set("last_segment", written->last_segment);
  RETURN_IF_ERROR(mark(facts.set("bytes", written->num_bytes)));
  return written;
}

Result<RingSnapshot> RingFiles::write_segments(std::span<SegmentBuffer* const> kept,
                                               Duration wait_max, const OnWritten& on_written) {
  if (kept.empty()) return RingSnapshot();
  ASSIGN_OR_RETURN(const auto ends, ends_of(kept, wait_max));
  RingSnapshot snapshot;
  snapshot.first_segment = kept.front()->header().number;
  if (snapshot.first_segment > 1)
    RETURN_IF_ERROR(
        set_retired_through(folder_, process_, incarnation_, snapshot.first_segment - 1));
  for (size_t i = 0; i < kept.size(); ++i) {
    const uint64_t number = kept[i]->header().number;
    const auto bytes = kept[i]->live_bytes().first(ends[i]);
    RETURN_IF_ERROR(replace_file(system_files(),
                                 segment_path(folder_, process_, incarnation_, number),
                                 {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    {
      const std::lock_guard lock(mutex_);
      on_disk_.insert(number);
      oldest_on_disk_.store(*on_disk_.begin());
    }
    on_written(number);
    snapshot.last_segment = number;
    snapshot.num_bytes += bytes.size();
  }
  remove_before(snapshot.first_segment);
  return snapshot;
}

/// Removes the segments of an older snapshot.
void RingFiles::remove_before(uint64_t first) {
  std::vector<uint64_t> older;
  {
    const std::lock_guard lock(mutex_);
    const auto end = on_disk_.lower_bound(first);
    older.assign(on_disk_.begin(), end);
    on_disk_.erase(on_disk_.begin(), end);
    oldest_on_disk_.store(*on_disk_.begin());
  }
  for (const uint64_t number : older) {
    remove_segment(folder_, process_, incarnation_, number);
    blobs_.retire(number);  // the ring overwrote it earlier
  }
}

void RingFiles::forget(uint64_t number) {
  {
    const std::lock_guard lock(mutex_);
    if (on_disk_.contains(number)) return;  // it stays until a later snapshot replaces it
  }
  blobs_.retire(number);
}

void RingFiles::write_in_handler() noexcept {
  if (is_written_.exchange(true)) return;
  ::mkdir(folder_text_.c_str(), 0700);
  // Ignores buffers that are opened from now on, because a buffer before them could be missing.
  uint64_t newest = 0;
  for (const SegmentBuffer* buffer : buffers_)
    if (!buffer->live_bytes().empty()) newest = std::max(newest, buffer->header().number);
  uint64_t first = UINT64_MAX;
  for (const SegmentBuffer* buffer : buffers_) {
    const uint64_t number = buffer->header().number;
    if (number > newest) continue;
    if (write_file_in_handler(*buffer, number)) first = std::min(first, number);
  }
  if (first == UINT64_MAX) return;
  if (first > 1) write_retired_in_handler(first - 1);
  for (uint64_t older = oldest_on_disk_.load(); older < first; ++older)
    ::unlink(put_path(path_, prefix_, older, ".ptr"));
  // Another thread may be writing a snapshot and may still rename older segments over these: keep
  // the mark.
  if (!is_writing_.load()) ::unlink(put_path(path_, prefix_, 0, "dump"));
}

/// False when the buffer is empty, or was reused before it was written: other threads continue to
/// record and reuse the oldest buffer.
bool RingFiles::write_file_in_handler(const SegmentBuffer& buffer, uint64_t number) noexcept {
  const char* beside = put_path(path_, prefix_, number, ".ptr.tmp");
  const auto bytes = buffer.live_bytes();
  if (bytes.empty() || !write_new_file(beside, bytes)) return false;
  if (buffer.live_bytes().empty() || buffer.header().number != number) {
    ::unlink(beside);
    return false;
  }
  return ::rename(beside, put_path(other_path_, prefix_, number, ".ptr")) == 0;
}

void RingFiles::write_retired_in_handler(uint64_t last) noexcept {
  char text[24];
  size_t size = put_digits(last, text);
  text[size++] = '\n';
  const char* beside = put_path(path_, prefix_, 0, "retired.tmp");
  if (write_new_file(beside, std::as_bytes(std::span(text, size))))
    ::rename(beside, put_path(other_path_, prefix_, 0, "retired"));
}

}  // namespace primerl
