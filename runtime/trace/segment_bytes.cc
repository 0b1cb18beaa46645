#include "runtime/trace/segment_bytes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "graph/base/descriptor.h"
#include "graph/base/files.h"
#include "runtime/trace/frames.h"

namespace primerl {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kCopyBytes = size_t{64} << 10;

bool is_zero(std::span<const std::byte> bytes) {
  return bytes.empty() || (bytes[0] == std::byte{0} &&
                           std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

// Whether the file may still be truncated. A writer truncates a complete segment after its last
// frame. Once the last page has data, that removes less than a page.
bool may_be_cut(int fd, uint64_t size) {
  std::byte page[kPageBytes];
  const size_t wanted = std::min<uint64_t>(size, kPageBytes);
  const ssize_t got = ::pread(fd, page, wanted, static_cast<off_t>(size - wanted));
  return got < static_cast<ssize_t>(wanted) || is_zero({page, wanted});
}

}  // namespace

Mapping::~Mapping() {
  if (address_ != nullptr) ::munmap(address_, size_);
}

Result<Mapping> Mapping::of_zeros(size_t size) {
  if (size == 0) return Mapping();
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED)
    return error(Code::kExhausted, "no memory for {} bytes: {}", size, std::strerror(errno));
  return Mapping(address, size);
}

Result<Mapping> Mapping::of_file(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const Descriptor opened, open_regular_file(file));
  struct stat status {};
  if (::fstat(opened.get(), &status) != 0) return io_error("reading", file, errno);
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size > kSegmentBytesMax + kSegmentBytesMax / 8)
    return error(Code::kCorrupt, "'{}' has {} bytes; a segment has at most {}", file.string(), size,
                 kSegmentBytesMax);
  if (size == 0) return Mapping();
  if (!may_be_cut(opened.get(), size)) {
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, opened.get(), 0);
    if (address != MAP_FAILED) return Mapping(address, size);
  }
  ASSIGN_OR_RETURN(auto copy, of_zeros(size));
  std::vector<std::byte> block(std::min<uint64_t>(size, kCopyBytes));
  for (uint64_t at = 0; at < size;) {
    const ssize_t got = ::pread(opened.get(), block.data(), block.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("reading", file, errno);
    if (got == 0) break;  // truncated meanwhile: the missing part reads as zeros
    // Most of a segment that was prepared and not used yet is zeros, which need no memory.
    const std::span<const std::byte> read(block.data(), static_cast<size_t>(got));
    if (!is_zero(read)) std::memcpy(copy.bytes().data() + at, read.data(), read.size());
    at += read.size();
  }
  return copy;
}

Result<std::unique_ptr<SegmentBytes>> SegmentBytes::open(const std::filesystem::path& file) {
  auto bytes = std::make_unique<SegmentBytes>();
  ASSIGN_OR_RETURN(bytes->file_map_, Mapping::of_file(file));
  bytes->file_ = bytes->file_map_.bytes();
  RETURN_IF_ERROR(bytes->start());
  return bytes;
}

Result<std::unique_ptr<SegmentBytes>> SegmentBytes::borrow(std::span<const std::byte> borrowed) {
  auto bytes = std::make_unique<SegmentBytes>();
  bytes->file_ = borrowed;
  if (reinterpret_cast<uintptr_t>(borrowed.data()) % kFrameAlignment != 0) {
    ASSIGN_OR_RETURN(bytes->file_map_, Mapping::of_zeros(borrowed.size()));
    std::copy(borrowed.begin(), borrowed.end(), bytes->file_map_.bytes().begin());
    bytes->file_ = bytes->file_map_.bytes();
  }
  RETURN_IF_ERROR(bytes->start());
  return bytes;
}

Status SegmentBytes::start() {
  const bool is_packed = file_.size() >= sizeof(kPackedMagic) &&
                         std::memcmp(file_.data(), kPackedMagic, sizeof(kPackedMagic)) == 0;
  if (!is_packed) {
    raw_ = file_;
    return ok();
  }
  ASSIGN_OR_RETURN(table_, read_packed_table(file_));
  ASSIGN_OR_RETURN(raw_map_, Mapping::of_zeros(table_->header.raw_bytes));
  raw_ = raw_map_.bytes();
  states_ = std::vector<std::atomic<BlockState>>(table_->blocks.size());
  return ok();
}

bool SegmentBytes::ensure(uint64_t begin, uint64_t end) {
  if (!table_ || begin >= end) return true;
  bool all_ready = true;
  const uint64_t last = std::min<uint64_t>((end - 1) / kPackedBlockBytes, states_.size() - 1);
  for (uint64_t block = begin / kPackedBlockBytes; block <= last; ++block) {
    BlockState state = states_[block].load(std::memory_order_acquire);
    if (state == BlockState::kPacked) state = unpack(block);
    all_ready = all_ready && state == BlockState::kReady;
  }
  return all_ready;
}

SegmentBytes::BlockState SegmentBytes::unpack(size_t block) {
  const std::lock_guard lock(mutex_);
  const BlockState state = states_[block].load(std::memory_order_acquire);
  if (state != BlockState::kPacked) return state;
  const auto into =
      raw_map_.bytes().subspan(block * kPackedBlockBytes, table_->raw_bytes_of(block));
  const bool good = unpack_block(*table_, file_, block, into);
  if (!good) std::fill(into.begin(), into.end(), std::byte{0});
  states_[block].store(good ? BlockState::kReady : BlockState::kDamaged, std::memory_order_release);
  return good ? BlockState::kReady : BlockState::kDamaged;
}

uint64_t SegmentBytes::damaged_until(uint64_t offset) const {
  const uint64_t block = offset / kPackedBlockBytes;
  if (block >= states_.size()) return 0;
  if (states_[block].load(std::memory_order_acquire) != BlockState::kDamaged) return 0;
  return block * kPackedBlockBytes + table_->raw_bytes_of(block);
}

}  // namespace primerl
