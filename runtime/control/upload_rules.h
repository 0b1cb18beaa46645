/// The rules for a tenant's file that comes over HTTP (docs/design/hosted.md).
///
/// The file may have values of a tenant, an environment and rewards that are code of this program
/// or services of the graph, and nothing that runs a program or names a file: neither `command`,
/// `python`, `plugins`, `address` nor `include`, and no path. Every key must be known exactly, so
/// no misspelt key passes as another one. The usual check of a tenant's file comes after these
/// rules.
///
/// check_upload() is pure. The other functions write and remove one folder; they follow no link.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "graph/base/result.h"
#include "graph/catalog.h"
#include "runtime/control/control_fault.h"

namespace primerl {

inline constexpr size_t kUploadBytesMax = size_t{256} << 10;

/// Why the text must not be used; no value: it may be checked as a tenant's file. `catalog`: that
/// of the run, with its plugins.
std::optional<ControlFault> check_upload(std::string_view text, const Catalog& catalog);

/// Writes `RUN/uploads/<16 digits>/tenant.toml`, only for the owner, and returns its path.
/// kInvalid: `RUN/uploads` is not a folder, for example a link.
Result<std::filesystem::path> write_upload(const std::filesystem::path& run_folder,
                                           std::string_view text);
/// Removes the file and its folder. The tenant's table has all its values, so nothing reads the
/// file later.
void remove_upload(const std::filesystem::path& file);

/// Removes uploads of an earlier start that was killed.
void remove_old_uploads(const std::filesystem::path& run_folder);

}  // namespace primerl
