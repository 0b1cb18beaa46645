/// Files as the weights room needs them: mapped, read whole within a limit, written and synced.
/// Every error names the file and what the operating system said.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "graph/base/result.h"

namespace primerl {

/// Bytes of a file; unmapped when the last `owner` dies.
struct MappedFile {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

Result<MappedFile> map_file(const std::filesystem::path& file);

/// The whole text; a file larger than `bytes_max` is an error.
Result<std::string> read_text_file(const std::filesystem::path& file, size_t bytes_max);

/// Creates or replaces `file` with the parts, one after the other, and syncs it to the disk.
Status write_file_synced(const std::filesystem::path& file,
                         std::span<const std::span<const std::byte>> parts);

/// Makes the names in `folder` durable.
Status sync_folder(const std::filesystem::path& folder);

}  // namespace primerl
