#include "runtime/trace/record/sealed_segments.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <string_view>

#include "graph/base/files.h"
#include "runtime/trace/packed_segment.h"
#include "runtime/trace/record/blob_ledger.h"
#include "runtime/trace/segment_bytes.h"
#include "runtime/trace/segment_files.h"

namespace primerl {
namespace {

constexpr int kNice = 10;

}  // namespace

Result<std::filesystem::path> pack_segment_file(const std::filesystem::path& file) {
  auto packed_file = file;
  packed_file.replace_extension(".ptrz");
  std::vector<std::byte> packed;
  {
    ASSIGN_OR_RETURN(const auto raw, Mapping::of_file(file));
    ASSIGN_OR_RETURN(packed, pack_segment(raw.bytes()));
  }
  const std::string_view text(reinterpret_cast<const char*>(packed.data()), packed.size());
  if (auto written = replace_file(system_files(), packed_file, text); !written.ok()) {
    std::error_code ignored;
    std::filesystem::remove(packed_file.string() + ".tmp", ignored);
    return std::move(written).error();
  }
  std::error_code fault;
  std::filesystem::remove(file, fault);
  if (fault) return io_error("removing", file, fault.value());
  return packed_file;
}

SealedSegments::SealedSegments(Options options)
    : options_(std::move(options)), thread_([this] { serve(); }) {}

SealedSegments::~SealedSegments() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  wake_.notify_all();
}

void SealedSegments::add(uint64_t number, uint64_t num_bytes) {
  {
    const std::lock_guard lock(mutex_);
    bytes_of_[number] = num_bytes;
    to_do_.push_back(number);
  }
  wake_.notify_all();
}

void SealedSegments::finish(Duration at_most) {
  std::unique_lock lock(mutex_);
  done_.wait_for(lock, std::chrono::nanoseconds(at_most.to_nanoseconds()),
                 [this] { return to_do_.empty() && !is_busy_; });
}

void SealedSegments::serve() {
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stops_ || !to_do_.empty(); });
    if (stops_) return;
    const uint64_t number = to_do_.front();
    to_do_.pop_front();
    is_busy_ = true;
    lock.unlock();
    if (is_kept(number)) count_blobs(number);
    retire();
    if (options_.packs) pack(number);
    lock.lock();
    is_busy_ = false;
    done_.notify_all();
  }
}

void SealedSegments::count_blobs(uint64_t number) {
  if (options_.blobs == nullptr || !counted_.insert(number).second) return;
  const auto file = segment_path(options_.folder, options_.process, options_.incarnation, number);
  const uint64_t num_bytes = options_.blobs->count_file(number, file);
  if (num_bytes == 0) return;
  const std::lock_guard lock(mutex_);
  blob_bytes_of_[number] = num_bytes;
}

void SealedSegments::retire() {
  const uint64_t keep_from = options_.keep_from ? options_.keep_from() : UINT64_MAX;
  while (true) {
    uint64_t oldest = 0;
    {
      const std::lock_guard lock(mutex_);
      uint64_t sum = 0;
      for (const auto& [number, num_bytes] : bytes_of_) sum += num_bytes;
      for (const auto& [number, num_bytes] : blob_bytes_of_) sum += num_bytes;
      if (sum <= options_.bytes_max) return;
      oldest = bytes_of_.begin()->first;
    }
    if (oldest >= keep_from) return;
    count_blobs(oldest);  // it may be retired before its blobs were counted
    // The mark comes first, because a segment that is removed without a mark counts as missing.
    if (!set_retired_through(options_.folder, options_.process, options_.incarnation, oldest).ok())
      return;
    remove_segment(options_.folder, options_.process, options_.incarnation, oldest);
    if (options_.blobs != nullptr) options_.blobs->retire(oldest);
    counted_.erase(oldest);
    const std::lock_guard lock(mutex_);
    bytes_of_.erase(oldest);
    blob_bytes_of_.erase(oldest);
  }
}

bool SealedSegments::is_kept(uint64_t number) {
  const std::lock_guard lock(mutex_);
  return bytes_of_.contains(number);
}

void SealedSegments::pack(uint64_t number) {
  if (!is_kept(number)) return;
  const auto packed = pack_segment_file(
      segment_path(options_.folder, options_.process, options_.incarnation, number));
  if (!packed.ok()) return;
  std::error_code fault;
  const auto size = std::filesystem::file_size(*packed, fault);
  const std::lock_guard lock(mutex_);
  if (!fault && bytes_of_.contains(number)) bytes_of_[number] = size;
}

}  // namespace primerl
