/// FileOps: the few file system operations a checkpoint is committed with. One implementation is
/// the operating system; the tests' one stops at the n-th operation, as a crash would.
///
/// Stateless, any thread. Every error names the path and the system's reason.
#pragma once

#include <filesystem>
#include <string_view>

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
  virtual Status remove_all(const std::filesystem::path& path) = 0;
};

/// The operating system's.
FileOps& system_files();

/// Writes beside `file`, syncs and renames: a reader sees the old text or the new, never half.
Status replace_file(FileOps& files, const std::filesystem::path& file, std::string_view bytes);

/// The whole file; an error names it.
Result<std::string> read_text_file(const std::filesystem::path& file);

/// "writing 'x': No space left on device", with a note for the faults a person can act on.
Error io_error(std::string_view doing, const std::filesystem::path& path, int error_number);

}  // namespace primerl
