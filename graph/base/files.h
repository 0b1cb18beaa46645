/// Files: read whole, mapped, written so that they survive a power cut. FileOps is the part that a
/// commit is made of; the tests' one stops at the n-th operation, as a crash would.
///
/// Stateless, any thread. Every error names the path and the system's reason.
#pragma once

#include <cstddef>
#include <filesystem>
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
  /// Creates (for its owner alone, 0600) or empties the file and writes all of `bytes`; not yet
  /// synced.
  virtual Status write_file(const std::filesystem::path& file, std::string_view bytes) = 0;
  /// Returns when file or folder, as it is now, survives a power cut.
  virtual Status sync(const std::filesystem::path& path) = 0;
  virtual Status rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  /// Each of two folders gets the other's name; at no moment is one of the names missing.
  virtual Status exchange(const std::filesystem::path& one, const std::filesystem::path& other) = 0;
  virtual Status remove_all(const std::filesystem::path& path) = 0;
};

/// The operating system's.
FileOps& system_files();

/// Writes beside `file`, syncs and renames: a reader sees the old text or the new, never half.
Status replace_file(FileOps& files, const std::filesystem::path& file, std::string_view bytes);

/// Creates (readable for all) or replaces `file` with the parts, one after the other, and syncs it
/// to the disk.
Status write_file_synced(const std::filesystem::path& file,
                         std::span<const std::span<const std::byte>> parts);

/// Opens a file for reading, `more_flags` as of open(2). A folder, pipe, device or socket is
/// refused by name and never waited for: who would write to it may never come. Every file that a
/// person names is opened here, but for graph files, which may come from a pipe.
Result<Descriptor> open_regular_file(const std::filesystem::path& file, int more_flags = 0);

/// The whole file; kNotFound when it is not there, kExhausted when it is larger than `bytes_max`.
inline constexpr size_t kTextBytesMax = size_t{1} << 30;
Result<std::string> read_text_file(const std::filesystem::path& file,
                                   size_t bytes_max = kTextBytesMax);

/// Bytes of a file; unmapped when the last `owner` dies.
struct MappedFile {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};
/// For reading. The file must not be cut while it is mapped.
Result<MappedFile> map_file(const std::filesystem::path& file);

/// "writing 'x': No space left on device", with a note for the faults a person can act on.
Error io_error(std::string_view doing, const std::filesystem::path& path, int error_number);

}  // namespace primerl
