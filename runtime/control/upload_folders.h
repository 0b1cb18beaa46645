/// The files that come to a served run over HTTP: tenants' files, and the data files that they name
/// (docs/design/hosted.md).
///
///   POST of a tenant's file    -> uploads/<16 digits>/tenant.toml, removed after its check
///   PUT  of a data file        -> uploads/files/<tenant>/<name>, until the tenant is added
///   POST of the tenant's file  -> tenant_data/<16 digits>/<name>, as long as the record needs it
///
/// A name is one word without a folder, and every folder is opened without following a link. All
/// files are only for the owner. Plain functions; one thread at a time.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/result.h"
#include "runtime/control/control_fault.h"

namespace primerl {

/// Limits of data files.
inline constexpr size_t kDataFileBytesMax = size_t{16} << 20;
inline constexpr size_t kDataTenantBytesMax = size_t{64} << 20;  // of one tenant that is not added
inline constexpr size_t kDataFilesMax = 16;                      // of one such tenant
inline constexpr size_t kDataBytesMax = size_t{1} << 30;         // of all tenants of the run
inline constexpr size_t kDataTenantsMax = 64;                    // that are not added

/// Writes `RUN/uploads/<16 digits>/tenant.toml`, only for the owner, and returns its path.
/// kInvalid: `RUN/uploads` is not a folder, for example a link.
Result<std::filesystem::path> write_upload(const std::filesystem::path& run_folder,
                                           std::string_view text);
/// Removes the tenant's file, and its folder if nothing else is in it. The tenant's table has all
/// its values, so nothing reads the file later.
void remove_upload(const std::filesystem::path& file);

/// Removes uploads of an earlier start, also data files of tenants that were not added.
void remove_old_uploads(const std::filesystem::path& run_folder);

/// Whether a data file may have this name: letters, digits, '_', '-' and '.', beginning with a
/// letter or digit, with a suffix of a data file, at most 100 bytes.
bool is_data_name(std::string_view name);

/// Stores a data file of a tenant that is not added yet; one of the same name is replaced. The
/// fault says which name or limit was wrong: 400, 413, or 500 where the disk fails.
std::optional<ControlFault> store_data(const std::filesystem::path& run_folder,
                                       const std::string& tenant, const std::string& name,
                                       std::string_view bytes);
/// The names of the tenant's files that wait for it, sorted.
std::vector<std::string> waiting_data(const std::filesystem::path& run_folder,
                                      const std::string& tenant);
/// Removes the files that wait for the tenant. False: there is none.
bool discard_data(const std::filesystem::path& run_folder, const std::string& tenant);

/// The folder of the files of tenants that were added.
std::filesystem::path tenant_data_folder(const std::filesystem::path& run_folder);
/// Moves the files that wait for the tenant into a folder of their own there, with the tenant's
/// file, whose path is returned: names of data files are relative to it.
Result<std::filesystem::path> claim_data(const std::filesystem::path& run_folder,
                                         const std::string& tenant, std::string_view text);
/// The tenant of claim_data() was not added: its files wait again, unless newer ones do.
void return_data(const std::filesystem::path& run_folder, const std::filesystem::path& file,
                 const std::string& tenant);
/// The folder of claim_data() that the table of a tenant names; empty: it has none.
std::filesystem::path data_folder_of_table(const std::filesystem::path& run_folder,
                                           std::string_view table);

}  // namespace primerl
