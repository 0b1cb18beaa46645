#include "runtime/transport/shm_blobs.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace primerl {
namespace {

constexpr uint64_t kMagic = 0x3162'6f6c'626c'6d70;  // "pmlblob1"
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kStepBytes = uint64_t{16} << 20;  // memory is allocated in such steps

// A slot's word: its use counter in the upper half, its state in the lower half.
constexpr uint64_t kFree = 0, kSent = 1, kTaken = 2, kLetGo = 3;

uint64_t word_of(uint32_t turn, uint64_t state) { return uint64_t{turn} << 32 | state; }

constexpr uint64_t aligned(uint64_t size, uint64_t to) { return (size + to - 1) / to * to; }

Error system_error(Code code, std::string_view doing) {
  return error(code, "cannot {} memory for Blobs: {}", doing, std::strerror(errno));
}

/// Without memory a later page fault would kill the process, so ok means that the pages exist.
Status reserve_pages(int descriptor, uint64_t begin, uint64_t size) {
  int refused = 0;
  do {
    refused = ::posix_fallocate(descriptor, static_cast<off_t>(begin), static_cast<off_t>(size));
  } while (refused == EINTR);
  if (refused == 0) return ok();
  errno = refused;
  return system_error(refused == ENOSPC || refused == ENOMEM ? Code::kExhausted : Code::kIo,
                      "reserve")
      .note(fmt::format("it needs {} bytes", size));
}

}  // namespace

/// The first pages of a pool. The reader may write here, but never into the data.
struct ShmBlobPool::Page {
  uint64_t magic;
  uint64_t nonce;
  uint64_t num_bytes;
  std::array<std::atomic<uint64_t>, kShmBlobsMax> slots;

  static constexpr uint64_t size() { return aligned(sizeof(Page), kPageBytes); }
};

Result<std::unique_ptr<ShmBlobPool>> ShmBlobPool::make(uint64_t num_bytes) {
  if (num_bytes == 0 || num_bytes > (uint64_t{1} << 46))
    return error(Code::kInvalid, "a pool of {} bytes cannot hold Blobs", num_bytes);
  uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) return system_error(Code::kIo, "name");
  const int descriptor = ::memfd_create("primerl-blobs", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return system_error(Code::kIo, "make");
  std::unique_ptr<ShmBlobPool> pool(
      new ShmBlobPool(descriptor, nonce, aligned(num_bytes, kPageBytes)));
  const uint64_t size = Page::size() + pool->num_bytes_;
  if (::ftruncate(descriptor, static_cast<off_t>(size)) != 0)
    return system_error(Code::kIo, "size");
  RETURN_IF_ERROR(reserve_pages(descriptor, 0, Page::size()));
  // Seals, so that neither end can remove pages while the other uses them.
  if (::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_error(Code::kIo, "seal");
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) return system_error(Code::kIo, "map");
  pool->memory_ = static_cast<std::byte*>(address);
  pool->page().num_bytes = pool->num_bytes_;
  pool->page().nonce = nonce;
  pool->page().magic = kMagic;
  for (uint32_t slot = kShmBlobsMax; slot-- > 0;) pool->free_slots_.push_back(slot);
  return pool;
}

Status ShmBlobPool::back(uint64_t end) {
  if (end <= backed_) return ok();
  const uint64_t wanted = std::min(aligned(end, kStepBytes), num_bytes_);
  RETURN_IF_ERROR(reserve_pages(descriptor_, Page::size() + backed_, wanted - backed_));
  backed_ = wanted;
  return ok();
}

void ShmBlobPool::give_back() {
  const uint64_t end = used_.empty() ? 0 : used_.rbegin()->first + used_.rbegin()->second.size;
  const uint64_t kept = aligned(end, kStepBytes) + kSpareBytes;
  // Not after every Blob, because released memory must be cleared when it is allocated again.
  if (backed_ < kept + kSpareBytes) return;
  if (::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(Page::size() + kept), static_cast<off_t>(backed_ - kept)) == 0)
    backed_ = kept;
}

uint64_t ShmBlobPool::num_backed_bytes() const {
  const std::lock_guard lock(mutex_);
  return backed_;
}

ShmBlobPool::~ShmBlobPool() {
  if (memory_ != nullptr) ::munmap(memory_, Page::size() + num_bytes_);
  ::close(descriptor_);
}

ShmBlobAddress ShmBlobPool::address() const { return {::getpid(), descriptor_, nonce_}; }

Result<ShmBlobPool::Room> ShmBlobPool::reserve(uint64_t size) {
  const std::lock_guard lock(mutex_);
  collect();
  const uint64_t needed = aligned(std::max<uint64_t>(size, 1), kAlignment);
  uint64_t begin = 0;
  for (const auto& [offset, piece] : used_) {
    if (offset - begin >= needed) break;
    begin = offset + piece.size;
  }
  if (free_slots_.empty() || size > num_bytes_ || num_bytes_ - begin < needed)
    return error(Code::kExhausted, "the pool has no room for a Blob of {} bytes: {} of {} are used",
                 size, num_used_, num_bytes_);
  RETURN_IF_ERROR(back(begin + needed));
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  auto& word = page().slots[slot];
  const auto turn = static_cast<uint32_t>(word.load(std::memory_order_relaxed) >> 32) + 1;
  used_[begin] = {needed, slot, turn};
  num_used_ += needed;
  // The reference reaches the reader through the connection, which orders it after the writes to
  // the data.
  word.store(word_of(turn, kSent), std::memory_order_release);
  return Room{{slot, turn, begin, size}, {memory_ + Page::size() + begin, size}};
}

Result<ShmBlobRef> ShmBlobPool::put(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const Room room, reserve(bytes.size()));
  if (!bytes.empty()) std::memcpy(room.bytes.data(), bytes.data(), bytes.size());
  return room.ref;
}

void ShmBlobPool::collect() {
  for (auto piece = used_.begin(); piece != used_.end();) {
    const auto here = piece++;
    const auto& [size, slot, turn] = here->second;
    if (page().slots[slot].load(std::memory_order_acquire) == word_of(turn, kLetGo))
      free_piece(here);
  }
  give_back();
}

void ShmBlobPool::free_piece(std::map<uint64_t, Piece>::iterator piece) {
  const auto [size, slot, turn] = piece->second;
  page().slots[slot].store(word_of(turn, kFree), std::memory_order_relaxed);
  free_slots_.push_back(slot);
  num_used_ -= size;
  used_.erase(piece);
}

void ShmBlobPool::cancel(const ShmBlobRef& ref) {
  const std::lock_guard lock(mutex_);
  const auto piece = used_.find(ref.offset);
  if (piece != used_.end() && piece->second.slot == ref.slot && piece->second.turn == ref.turn)
    free_piece(piece);
}

void ShmBlobPool::forget_reader() {
  const std::lock_guard lock(mutex_);
  while (!used_.empty()) free_piece(used_.begin());
}

uint64_t ShmBlobPool::num_used_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_used_;
}

/// The reader's view of the pool: writable slots, read-only data.
struct ShmBlobReader::Mapping {
  using Page = ShmBlobPool::Page;

  ~Mapping() {
    if (slots != nullptr) ::munmap(slots, Page::size());
    if (data != nullptr) ::munmap(const_cast<std::byte*>(data), num_bytes);
  }
  Page* slots = nullptr;
  const std::byte* data = nullptr;
  uint64_t num_bytes = 0;
};

Result<std::unique_ptr<ShmBlobReader>> ShmBlobReader::open(const ShmBlobAddress& address) {
  using Page = ShmBlobPool::Page;
  const std::string path = fmt::format("/proc/{}/fd/{}", address.pid, address.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return system_error(Code::kUnavailable, "open");
  const auto mapping = std::make_shared<Mapping>();
  struct stat facts = {};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);  // -1: a file without support for seals
  const bool is_sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
  const bool is_sized = ::fstat(descriptor, &facts) == 0 && facts.st_size > 0 &&
                        static_cast<uint64_t>(facts.st_size) > Page::size();
  Status mapped = is_sealed && is_sized
                      ? ok()
                      : Status(error(Code::kUnavailable, "'{}' is no pool of Blobs", path));
  if (mapped.ok()) {
    const uint64_t num_bytes = static_cast<uint64_t>(facts.st_size) - Page::size();
    void* slots = ::mmap(nullptr, Page::size(), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    void* data = ::mmap(nullptr, num_bytes, PROT_READ, MAP_SHARED, descriptor,
                        static_cast<off_t>(Page::size()));
    if (slots != MAP_FAILED) mapping->slots = static_cast<Page*>(slots);
    if (data != MAP_FAILED) mapping->data = static_cast<const std::byte*>(data);
    mapping->num_bytes = num_bytes;
    if (slots == MAP_FAILED || data == MAP_FAILED)
      mapped = system_error(Code::kUnavailable, "map");
    else if (mapping->slots->magic != kMagic || mapping->slots->nonce != address.nonce ||
             mapping->slots->num_bytes != num_bytes)
      mapped = error(Code::kUnavailable, "'{}' is another pool than the address says", path);
  }
  ::close(descriptor);
  if (!mapped.ok()) return mapped.error();
  return std::unique_ptr<ShmBlobReader>(new ShmBlobReader(mapping));
}

Result<Blob> ShmBlobReader::take(const ShmBlobRef& ref) const {
  const auto refused = [&ref](std::string_view why) {
    return error(Code::kCorrupt, "a reference to Blob {} of slot {} that cannot be one: {}",
                 ref.turn, ref.slot, why);
  };
  if (ref.slot >= kShmBlobsMax) return refused("no such slot");
  if (ref.size > mapping_->num_bytes || ref.offset > mapping_->num_bytes - ref.size ||
      ref.offset % kAlignment != 0)
    return refused("it lies outside of the pool");
  auto& word = mapping_->slots->slots[ref.slot];
  uint64_t expected = word_of(ref.turn, kSent);
  if (!word.compare_exchange_strong(expected, word_of(ref.turn, kTaken), std::memory_order_acq_rel))
    return refused("it was taken already, or never sent");
  std::shared_ptr<const void> owner(
      mapping_->data + ref.offset, [mapping = mapping_, ref](const void*) {
        uint64_t taken = word_of(ref.turn, kTaken);
        mapping->slots->slots[ref.slot].compare_exchange_strong(taken, word_of(ref.turn, kLetGo),
                                                                std::memory_order_acq_rel);
      });
  return Blob(std::move(owner), {mapping_->data + ref.offset, ref.size});
}

}  // namespace primerl
