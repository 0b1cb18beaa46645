#include "runtime/trace/record/segment_buffer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "graph/base/crc32c.h"
#include "graph/base/files.h"
#include "runtime/trace/frame_check.h"
#include "runtime/trace/packed_segment.h"
#include "runtime/trace/segment_files.h"

namespace primerl {
namespace {

constexpr size_t kPageBytes = 4096;

// Readers of a live buffer check a frame's length first; everything else is written before the
// length.
std::atomic_ref<uint32_t> length_at(std::byte* frame) {
  return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(frame));
}

// The first write to a page costs 0.5 us, so it is done here and not by the appending threads.
void touch_pages(std::byte* base, size_t size) {
  for (size_t at = 0; at < size; at += kPageBytes)
    std::atomic_ref<std::byte>(base[at]).store(std::byte{0}, std::memory_order_relaxed);
}

// kExhausted when space may become free later; kIo when trying again is useless.
Error disk_error(std::string_view doing, const std::filesystem::path& file, int reason) {
  Error fault = io_error(doing, file, reason);
  const bool may_pass =
      reason == ENOSPC || reason == EDQUOT || reason == EMFILE || reason == ENFILE;
  if (!may_pass) return fault;
  Error exhausted(Code::kExhausted, fault.message());
  for (const auto& note : fault.notes()) static_cast<void>(std::move(exhausted).note(note));
  return exhausted;
}

}  // namespace

Status SegmentBuffer::map_file(const std::filesystem::path& file) {
  file_ = unfinished_path(file);
  fd_ = ::open(file_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd_ < 0) return disk_error("creating", file, errno);
  // This process has the lock until it closes the file or dies; `trace recover` checks it.
  ::flock(fd_, LOCK_EX | LOCK_NB);
  const int fault = ::posix_fallocate(fd_, 0, static_cast<off_t>(capacity_));
  if (fault != 0) {
    release(true);
    return disk_error("allocating", file, fault);
  }
  void* address = ::mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (address == MAP_FAILED) {
    const int reason = errno;
    release(true);
    return disk_error("mapping", file, reason);
  }
  base_ = static_cast<std::byte*>(address);
  touch_pages(base_, capacity_);
  return ok();
}

Status SegmentBuffer::map_memory() {
  is_live_.store(false);
  if (base_ != nullptr) {
    std::memset(base_, 0, capacity_);
    return ok();
  }
  void* address =
      ::mmap(nullptr, capacity_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED)
    return error(Code::kExhausted, "no memory for a trace ring: {}", std::strerror(errno));
  base_ = static_cast<std::byte*>(address);
  touch_pages(base_, capacity_);
  return ok();
}

Status SegmentBuffer::publish(const std::filesystem::path& file) {
  if (::rename(file_.c_str(), file.c_str()) != 0) return disk_error("creating", file, errno);
  file_ = file;
  return ok();
}

Result<CatalogPart> catalog_part(const std::string& json) {
  if (json.size() > kCatalogBytesMax)
    return error(Code::kInvalid, "a trace catalog of {} bytes; at most {}", json.size(),
                 kCatalogBytesMax);
  const bool is_packed = json.size() > kInlineBytesMax;
  CatalogPart part{is_packed ? pack_text(json) : json, is_packed ? kPackedCatalog : uint8_t{0}};
  if (part.bytes.size() + sizeof(TraceFrameHeader) > kFrameBytesMax)
    return error(Code::kInvalid, "a trace catalog of {} bytes when packed; at most {}",
                 part.bytes.size(), kFrameBytesMax - sizeof(TraceFrameHeader));
  return part;
}

void SegmentBuffer::begin(SegmentHeader header, const CatalogPart& catalog) {
  std::memcpy(header.magic, kSegmentMagic, sizeof(kSegmentMagic));
  header.format_version = kTraceFormatVersion;
  header.header_bytes = sizeof(SegmentHeader);
  header.crc = crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(SegmentHeader, crc)));
  header_ = header;
  seed_ = header.seed;
  set_used(0);
  walked_ = num_deliveries_ = 0;
  std::memcpy(base_, &header, sizeof(header));
  TraceFrameHeader head{.length = 0,
                        .crc = 0,
                        .kind = static_cast<uint8_t>(TraceFrameKind::kCatalog),
                        .flags = catalog.flags,
                        .count = 0,
                        .group = UINT32_MAX};
  write(sizeof(header), std::as_writable_bytes(std::span(&head, 1)),
        std::as_bytes(std::span(catalog.bytes)));
  first_free_ = sizeof(header) + aligned_to_frames(sizeof(head) + catalog.bytes.size());
}

void SegmentBuffer::open() {
  tail_.store(first_free_, std::memory_order_release);
  is_live_.store(true, std::memory_order_release);
}

std::span<const std::byte> SegmentBuffer::live_bytes() const {
  if (!is_live_.load(std::memory_order_acquire)) return {};
  // No end: the buffer is full, and the thread that passed the end has not set used() yet. So all
  // of it is returned.
  return {base_, reserved_to().value_or(capacity_)};
}

std::optional<uint64_t> SegmentBuffer::reserved_to() const {
  const uint64_t tail = tail_.load(std::memory_order_acquire);
  if (tail <= capacity_) return tail;
  return used() > 0 ? std::optional(used()) : std::nullopt;
}

bool SegmentBuffer::is_finished_to(uint64_t end) const {
  for (uint64_t at = sizeof(SegmentHeader); at < end;) {
    const uint32_t length = length_at(base_ + at).load(std::memory_order_acquire);
    if (length == 0) return false;
    at += aligned_to_frames(length);
  }
  return true;
}

void SegmentBuffer::write(uint64_t at, std::span<std::byte> head, std::span<const std::byte> tail) {
  auto* header = reinterpret_cast<TraceFrameHeader*>(head.data());
  header->length = static_cast<uint32_t>(head.size() + tail.size());
  header->crc = crc32c(head.subspan(kFrameCrcBegin), crc_start(seed_, at));
  if (!tail.empty()) header->crc = crc32c(tail, header->crc);
  std::byte* to = base_ + at;
  constexpr size_t kLengthBytes = sizeof(TraceFrameHeader::length);
  std::memcpy(to + kLengthBytes, head.data() + kLengthBytes, head.size() - kLengthBytes);
  if (!tail.empty()) std::memcpy(to + head.size(), tail.data(), tail.size());
  length_at(to).store(header->length, std::memory_order_release);
}

bool SegmentBuffer::is_written_to(uint64_t end) {
  if (walked_ == 0) walked_ = sizeof(SegmentHeader);
  end = std::min(end, capacity_);
  while (walked_ < end) {
    std::byte* frame = base_ + walked_;
    const uint32_t length = length_at(frame).load(std::memory_order_acquire);
    if (length == 0) return false;
    const auto kind = std::to_integer<uint8_t>(frame[offsetof(TraceFrameHeader, kind)]);
    if (kind == static_cast<uint8_t>(TraceFrameKind::kDelivery)) ++num_deliveries_;
    walked_ += aligned_to_frames(length);
  }
  return true;
}

Status SegmentBuffer::sync() const {
  if (fd_ >= 0 && ::fdatasync(fd_) != 0) return io_error("syncing", file_, errno);
  return ok();
}

Status SegmentBuffer::seal_file() {
  ::munmap(base_, capacity_);
  base_ = nullptr;
  const int cut = ::ftruncate(fd_, static_cast<off_t>(used()));
  const int reason = errno;
  release();
  if (cut != 0) return io_error("sealing", file_, reason);
  return ok();
}

void SegmentBuffer::release(bool removes) {
  if (base_ != nullptr) ::munmap(base_, capacity_);
  base_ = nullptr;
  if (removes && fd_ >= 0) ::unlink(file_.c_str());
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

}  // namespace primerl
