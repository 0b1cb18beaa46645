#include "graph/base/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

namespace primerl {
namespace {

/// The reason comes from errno.
Error failed(std::string_view doing, const std::filesystem::path& path) {
  return io_error(doing, path, errno);
}

Error not_regular(const std::filesystem::path& file, mode_t mode) {
  const std::string_view what = S_ISDIR(mode)    ? "a folder"
                                : S_ISFIFO(mode) ? "a pipe"
                                : S_ISSOCK(mode) ? "a socket"
                                                 : "a device";
  return error(Code::kInvalid, "'{}' is {}, not a regular file", file.string(), what);
}

constexpr size_t kPieceBytes = size_t{1} << 20;    // read or written at a time
constexpr size_t kSyncedBytes = size_t{32} << 20;  // written through the cache between two syncs
constexpr size_t kBlockBytes = 4096;  // offsets, sizes and addresses beside the page cache are
                                      // multiples of it

thread_local CountedBytes* counted_here = nullptr;  // of this thread

/// False: nothing changed, because the file system cannot, or because it was so before.
bool set_bypass(const Descriptor& opened, bool bypasses) {
  const int flags = ::fcntl(opened.get(), F_GETFL);
  const int wanted = bypasses ? flags | O_DIRECT : flags & ~O_DIRECT;
  return flags >= 0 && wanted != flags && ::fcntl(opened.get(), F_SETFL, wanted) == 0;
}

/// Memory for one piece, at an address that is valid beside the page cache.
class PieceBuffer {
 public:
  std::byte* data() {
    void* begin = bytes_.data();
    size_t size = bytes_.size();
    return static_cast<std::byte*>(std::align(kBlockBytes, kPieceBytes, begin, size));
  }

 private:
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kPieceBytes + kBlockBytes);
};

Status write_all(const Descriptor& opened, std::span<const std::byte> bytes,
                 const std::filesystem::path& file) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(opened.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    // The device has larger blocks, or an earlier write ended inside of one.
    if (written < 0 && errno == EINVAL && set_bypass(opened, false)) continue;
    if (written < 0) return failed("writing", file);
    count_bytes(static_cast<uint64_t>(written));
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return ok();
}

/// Copies the parts to pieces of whole blocks. The rest of the last block is written through the
/// cache.
Status write_pieces(const Descriptor& out, std::span<const std::span<const std::byte>> parts,
                    const std::filesystem::path& file) {
  PieceBuffer buffer;
  std::byte* const piece = buffer.data();
  size_t filled = 0;
  for (auto part : parts) {
    while (!part.empty()) {
      const size_t count = std::min(part.size(), kPieceBytes - filled);
      std::copy_n(part.begin(), count, piece + filled);
      part = part.subspan(count);
      filled += count;
      if (filled < kPieceBytes) continue;
      RETURN_IF_ERROR(write_all(out, {piece, filled}, file));
      filled = 0;
    }
  }
  const size_t blocks = filled / kBlockBytes * kBlockBytes;
  RETURN_IF_ERROR(write_all(out, {piece, blocks}, file));
  set_bypass(out, false);
  return write_all(out, {piece + blocks, filled - blocks}, file);
}

/// Writes pieces through the cache, which never has more than kSyncedBytes of them.
Status write_synced_pieces(const Descriptor& out, std::span<const std::span<const std::byte>> parts,
                           const std::filesystem::path& file) {
  size_t unsynced = 0;
  for (auto part : parts) {
    while (!part.empty()) {
      const size_t count = std::min(part.size(), kPieceBytes);
      RETURN_IF_ERROR(write_all(out, part.first(count), file));
      part = part.subspan(count);
      unsynced += count;
      if (unsynced < kSyncedBytes) continue;
      if (::fdatasync(out.get()) != 0) return failed("syncing", file);
      (void)::posix_fadvise(out.get(), 0, 0, POSIX_FADV_DONTNEED);  // only a hint
      unsynced = 0;
    }
  }
  return ok();
}

Result<MappedFile> mapped(const Descriptor& opened, size_t size,
                          const std::filesystem::path& file) {
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, opened.get(), 0);
  if (address == MAP_FAILED) return failed("mapping", file);
  std::shared_ptr<const void> owner(
      address, [size](const void* mapping) { ::munmap(const_cast<void*>(mapping), size); });
  return MappedFile{std::move(owner), {static_cast<const std::byte*>(address), size}};
}

/// Not every file system can create a file without a name. There the name is removed at once.
Result<Descriptor> open_unnamed(const std::filesystem::path& folder) {
  Descriptor unnamed(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (unnamed.get() >= 0) return unnamed;
  if (errno != EOPNOTSUPP && errno != EISDIR) return failed("creating a file in", folder);
  std::string name = (folder / ".unnamed-XXXXXX").string();
  Descriptor named(::mkostemp(name.data(), O_CLOEXEC));
  if (named.get() < 0) return failed("creating a file in", folder);
  if (::unlink(name.c_str()) != 0) return failed("removing", name);
  return named;
}

class SystemFiles final : public FileOps {
 public:
  Status make_folder(const std::filesystem::path& folder) override {
    std::error_code fault;
    std::filesystem::create_directories(folder, fault);
    if (fault) return io_error("creating folder", folder, fault.value());
    return ok();
  }

  Status write_file(const std::filesystem::path& file, std::string_view bytes) override {
    const Descriptor out(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (out.get() < 0) return failed("writing", file);
    return write_all(out, std::as_bytes(std::span(bytes)), file);
  }

  Status sync(const std::filesystem::path& path) override {
    const Descriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (opened.get() < 0) return failed("syncing", path);
    // Some file systems cannot sync a folder and return EINVAL; then there is nothing to wait for.
    if (::fsync(opened.get()) != 0 && errno != EINVAL) return failed("syncing", path);
    return ok();
  }

  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return failed("renaming to", to);
    return ok();
  }

  Status exchange(const std::filesystem::path& one, const std::filesystem::path& other) override {
    if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) != 0)
      return failed("exchanging", other);
    return ok();
  }

  Status remove_all(const std::filesystem::path& path) override {
    std::error_code fault;
    std::filesystem::remove_all(path, fault);
    if (fault) return io_error("removing", path, fault.value());
    return ok();
  }
};

}  // namespace

CountedBytes::CountedBytes(std::atomic<uint64_t>& count, std::function<void()> after_piece)
    : count_(count), after_piece_(std::move(after_piece)) {
  CHECK(counted_here == nullptr, "the bytes of this thread are counted already");
  counted_here = this;
}

CountedBytes::~CountedBytes() { counted_here = nullptr; }

void CountedBytes::add(uint64_t bytes) {
  count_ += bytes;
  if (after_piece_ != nullptr) after_piece_();
}

void count_bytes(uint64_t bytes) {
  if (counted_here != nullptr) counted_here->add(bytes);
}

FileOps& system_files() {
  static SystemFiles files;
  return files;
}

Error io_error(std::string_view doing, const std::filesystem::path& path, int error_number) {
  Error fault = error(error_number == ENOENT ? Code::kNotFound : Code::kIo, "{} '{}': {}", doing,
                      path.string(), std::strerror(error_number));
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG)
    return std::move(fault).note("free some space, or choose another folder with --out DIR");
  if (error_number == EACCES || error_number == EROFS || error_number == EPERM)
    return std::move(fault).note("choose a folder you may write to with --out DIR");
  return fault;
}

Status replace_file(FileOps& files, const std::filesystem::path& file, std::string_view bytes) {
  const std::filesystem::path beside = file.string() + ".tmp";
  RETURN_IF_ERROR(files.write_file(beside, bytes));
  RETURN_IF_ERROR(files.sync(beside));
  return files.rename(beside, file);
}

Status write_file_synced(const std::filesystem::path& file,
                         std::span<const std::span<const std::byte>> parts, PageCache cache) {
  Descriptor out(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (out.get() < 0) return failed("writing", file);
  size_t num_bytes = 0;
  for (const auto part : parts) num_bytes += part.size();
  if (cache == PageCache::kBypass && num_bytes >= kBypassBytesMin) {
    RETURN_IF_ERROR(set_bypass(out, true) ? write_pieces(out, parts, file)
                                          : write_synced_pieces(out, parts, file));
  } else {
    for (const auto part : parts) RETURN_IF_ERROR(write_all(out, part, file));
  }
  if (::fsync(out.get()) != 0) return failed("syncing", file);
  if (!out.close()) return failed("closing", file);
  return ok();
}

Status read_in_pieces(const std::filesystem::path& file, PageCache cache,
                      const std::function<void(std::span<const std::byte> piece)>& each) {
  ASSIGN_OR_RETURN(const Descriptor opened, open_regular_file(file));
  struct stat facts {};
  if (::fstat(opened.get(), &facts) != 0) return failed("reading", file);
  if (cache == PageCache::kBypass && static_cast<size_t>(facts.st_size) >= kBypassBytesMin)
    set_bypass(opened, true);
  PieceBuffer buffer;
  std::byte* const piece = buffer.data();
  while (true) {
    const ssize_t count = ::read(opened.get(), piece, kPieceBytes);
    if (count < 0 && errno == EINTR) continue;
    // The device has larger blocks, or the last read ended inside of one, at the end of the file.
    if (count < 0 && errno == EINVAL && set_bypass(opened, false)) continue;
    if (count < 0) return failed("reading", file);
    if (count == 0) return ok();
    count_bytes(static_cast<uint64_t>(count));
    each({piece, static_cast<size_t>(count)});
  }
}

Result<Descriptor> open_regular_file(const std::filesystem::path& file, int more_flags) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOCTTY;
  // Without O_NONBLOCK, open() of a pipe waits for a writer. For a regular file O_NONBLOCK changes
  // nothing.
  Descriptor opened(::open(file.c_str(), kFlags | O_NONBLOCK | more_flags));
  if (opened.get() < 0 && errno == ENXIO) return not_regular(file, S_IFSOCK);
  if (opened.get() < 0) return failed("reading", file);
  struct stat facts {};
  if (::fstat(opened.get(), &facts) != 0) return failed("reading", file);
  if (!S_ISREG(facts.st_mode)) return not_regular(file, facts.st_mode);
  return opened;
}

Result<std::string> read_text_file(const std::filesystem::path& file, size_t bytes_max) {
  ASSIGN_OR_RETURN(const Descriptor opened, open_regular_file(file));
  std::string text;
  // Files of /proc report size 0, so the loop reads until the end and ignores the size.
  for (constexpr size_t kPieceBytes = 64 << 10;;) {
    const size_t filled = text.size();
    text.resize(filled + kPieceBytes);
    const ssize_t got = ::read(opened.get(), text.data() + filled, kPieceBytes);
    text.resize(filled + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("reading", file);
    if (got == 0) return text;
    if (text.size() > bytes_max)
      return error(Code::kExhausted, "'{}' has more than the limit of {} bytes", file.string(),
                   bytes_max);
  }
}

Result<MappedFile> map_file(const std::filesystem::path& file) {
  ASSIGN_OR_RETURN(const Descriptor opened, open_regular_file(file));
  struct stat facts {};
  if (::fstat(opened.get(), &facts) != 0) return failed("reading", file);
  const auto size = static_cast<size_t>(facts.st_size);
  if (size == 0) return MappedFile();
  return mapped(opened, size, file);
}

Result<MappedFile> write_unnamed_file(const std::filesystem::path& folder,
                                      std::span<const std::span<const std::byte>> parts) {
  size_t num_bytes = 0;
  for (const auto part : parts) num_bytes += part.size();
  if (num_bytes == 0) return MappedFile();
  ASSIGN_OR_RETURN(const Descriptor out, open_unnamed(folder));
  for (const auto part : parts) RETURN_IF_ERROR(write_all(out, part, folder));
  return mapped(out, num_bytes, folder);
}

void read_ahead(std::span<const std::byte> mapped) {
  if (mapped.empty()) return;
  const auto address = reinterpret_cast<uintptr_t>(mapped.data());
  const uintptr_t begin = address / kBlockBytes * kBlockBytes;  // madvise() wants whole pages
  // It is only a hint: without it the pages are read when they are used.
  (void)::madvise(reinterpret_cast<void*>(begin), mapped.size() + (address - begin), MADV_WILLNEED);
}

}  // namespace primerl
