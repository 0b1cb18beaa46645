/// Files: read whole, mapped, or written so that they survive a power cut. FileOps has the
/// operations of a commit; the FileOps of tests stops at the n-th operation, as a crash would.
///
/// Stateless, any thread. Every error has the path and the system's reason.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "graph/base/descriptor.h"
#include "graph/base/result.h"

namespace primerl {

class FileOps {
 public:
  virtual ~FileOps() = default;
  /// Creates the folder and its parents; an existing folder is fine.
  virtual Status make_folder(const std::filesystem::path& folder) = 0;
  /// Creates (mode 0600, only for the owner) or empties the file and writes all of `bytes`; not
  /// synced yet.
  virtual Status write_file(const std::filesystem::path& file, std::string_view bytes) = 0;
  /// Returns when the current file or folder survives a power cut.
  virtual Status sync(const std::filesystem::path& path) = 0;
  virtual Status rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Swaps the names of two files or folders; both names exist at every moment.
  virtual Status exchange(const std::filesystem::path& one, const std::filesystem::path& other) = 0;
  virtual Status remove_all(const std::filesystem::path& path) = 0;
};

/// The FileOps of the operating system.
FileOps& system_files();

/// Writes a temporary file beside `file`, syncs it and renames it: a reader sees the old text or
/// the new one, never a part.
Status replace_file(FileOps& files, const std::filesystem::path& file, std::string_view bytes);

/// Whether the content of a file goes through the page cache of the system. kBypass needs a quarter
/// of the CPU time to write a file, and leaves the pages of other files in the cache. It is for
/// files that are not read soon, such as checkpoints. Files of fewer than kBypassBytesMin bytes,
/// and file systems that cannot bypass it, use the cache. There a large file is synced every 32 MiB
/// and its pages are released, so that it neither fills the cache nor ends in one long sync.
enum class PageCache : uint8_t { kUse, kBypass };
inline constexpr size_t kBypassBytesMin = size_t{4} << 20;

/// While it exists, `count` grows by the bytes that its thread writes with write_file_synced() or
/// reads with read_in_pieces(). So another thread sees that a long write makes progress. After each
/// piece it calls `after_piece`, which may be empty. One per thread at a time.
class CountedBytes {
 public:
  explicit CountedBytes(std::atomic<uint64_t>& count, std::function<void()> after_piece = {});
  ~CountedBytes();
  CountedBytes(const CountedBytes&) = delete;
  CountedBytes& operator=(const CountedBytes&) = delete;
  void add(uint64_t bytes);

 private:
  std::atomic<uint64_t>& count_;
  const std::function<void()> after_piece_;
};
/// Adds to the count of this thread's CountedBytes, if there is one; for fakes of a disk.
void count_bytes(uint64_t bytes);

/// Creates (readable for all) or replaces `file` with the parts, one after the other, and syncs it.
Status write_file_synced(const std::filesystem::path& file,
                         std::span<const std::span<const std::byte>> parts,
                         PageCache cache = PageCache::kUse);

/// Calls `each` with the content of `file`, one piece of at most 1 MiB after the other. The file is
/// not mapped, because a mapped file would count as memory of the process.
Status read_in_pieces(const std::filesystem::path& file, PageCache cache,
                      const std::function<void(std::span<const std::byte> piece)>& each);

/// Opens a file for reading; `more_flags` as in open(2). A folder, pipe, device or socket is
/// refused at once: its writer may never come. Every file that a person names is opened here,
/// except graph files, which may come from a pipe.
Result<Descriptor> open_regular_file(const std::filesystem::path& file, int more_flags = 0);

/// The whole file; kNotFound if it does not exist, kExhausted if it is larger than `bytes_max`.
inline constexpr size_t kTextBytesMax = size_t{1} << 30;
Result<std::string> read_text_file(const std::filesystem::path& file,
                                   size_t bytes_max = kTextBytesMax);

/// Bytes of a file; unmapped when the last copy of `owner` is destroyed.
struct MappedFile {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};
/// For reading. The file must not be truncated while it is mapped.
Result<MappedFile> map_file(const std::filesystem::path& file);

/// Writes the parts, one after the other, to a file that no folder lists, and maps it. `folder`
/// only chooses the file system. The file ends with its last mapping, also when the process is
/// killed. Not synced. Without parts, or if all are empty, there is no file.
Result<MappedFile> write_unnamed_file(const std::filesystem::path& folder,
                                      std::span<const std::span<const std::byte>> parts);
/// Asks the system to read bytes of a MappedFile from the disk now. It does not wait for them.
void read_ahead(std::span<const std::byte> mapped);

/// "writing 'x': No space left on device", with a note for faults that a person can repair.
Error io_error(std::string_view doing, const std::filesystem::path& path, int error_number);

}  // namespace primerl
