#include "runtime/control/upload_folders.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "graph/base/descriptor.h"
#include "graph/base/files.h"
#include "graph/spec.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTenantFile = "tenant.toml";
constexpr std::string_view kNewFile = ".new";  // no name of a data file
constexpr std::string_view kDataFolder = "tenant_data";
constexpr size_t kDigits = 16;
constexpr size_t kDataNameBytesMax = 100;
constexpr std::array<std::string_view, 4> kDataSuffixes = {".jsonl", ".csv", ".json", ".txt"};

std::string random_digits() {
  std::array<unsigned char, kDigits / 2> drawn{};
  CHECK(::getrandom(drawn.data(), drawn.size(), 0) == static_cast<ssize_t>(drawn.size()),
        "the system gives no random bytes");
  std::string digits;
  for (const unsigned char byte : drawn) digits += fmt::format("{:02x}", byte);
  return digits;
}

Status write_bytes(int file, std::string_view text, const fs::path& path) {
  while (!text.empty()) {
    const ssize_t done = ::write(file, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return io_error("writing", path, errno);
    text.remove_prefix(static_cast<size_t>(done));
  }
  return ok();
}

/// A folder by its descriptor. All names in it are relative to that, so a link that is put there
/// later is not followed.
struct OpenFolder {
  Descriptor descriptor;
  fs::path path;
};

/// Opens the folder `name` in `parent`, and makes it before if it is not there.
Result<OpenFolder> open_folder(int parent, const fs::path& parent_path, const std::string& name) {
  fs::path path = parent_path / name;
  if (::mkdirat(parent, name.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return io_error("creating", path, errno);
  Descriptor opened(
      ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (opened.get() < 0)
    return error(Code::kInvalid, "'{}' is not a folder of this run", path.string())
        .note("remove it; a link there would let uploads be written elsewhere");
  return OpenFolder{std::move(opened), std::move(path)};
}

/// `names` are folders from the run folder on.
Result<OpenFolder> open_folders(const fs::path& run_folder, const std::vector<std::string>& names) {
  OpenFolder open{Descriptor(AT_FDCWD), run_folder};
  int parent = AT_FDCWD;
  fs::path path = run_folder;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = i == 0 ? (run_folder / names[0]).string() : names[i];
    ASSIGN_OR_RETURN(OpenFolder next, open_folder(parent, i == 0 ? fs::path() : path, name));
    path = next.path;
    open = std::move(next);
    parent = open.descriptor.get();
  }
  return open;
}

/// Writes a file that is not there.
Status write_file(const OpenFolder& folder, std::string_view name, std::string_view text) {
  const fs::path path = folder.path / name;
  const Descriptor file(::openat(folder.descriptor.get(), std::string(name).c_str(),
                                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                 S_IRUSR | S_IWUSR));
  if (file.get() < 0) return io_error("creating", path, errno);
  return write_bytes(file.get(), text, path);
}

fs::path waiting_folder(const fs::path& run_folder) { return run_folder / "uploads" / "files"; }

/// Bytes of all files below the folder; links count as nothing.
size_t bytes_below(const fs::path& folder) {
  size_t bytes = 0;
  std::error_code fault;
  for (auto each = fs::recursive_directory_iterator(folder, fault);
       !fault && each != fs::recursive_directory_iterator(); each.increment(fault))
    if (each->symlink_status(fault).type() == fs::file_type::regular)
      bytes += each->file_size(fault);
  return bytes;
}

ControlFault disk_fault(const Error& error) {
  return {500, error.message(), "run", "a run folder that can be written", "see the message"};
}

/// Which limit the file would exceed.
std::optional<ControlFault> limit_fault(const fs::path& run_folder, const std::string& tenant,
                                        const std::string& name, size_t num_bytes) {
  const auto too_large = [](std::string what, size_t most) {
    return ControlFault{413, std::move(what), "body", fmt::format("at most {} bytes", most),
                        "send less, or remove files: DELETE /v1/uploads/TENANT"};
  };
  if (num_bytes > kDataFileBytesMax)
    return too_large(fmt::format("the file has {} bytes", num_bytes), kDataFileBytesMax);
  const fs::path own = waiting_folder(run_folder) / tenant;
  std::error_code fault;
  const bool replaces = fs::symlink_status(own / name, fault).type() == fs::file_type::regular;
  const size_t replaced = replaces ? fs::file_size(own / name, fault) : 0;
  const size_t of_tenant = bytes_below(own) - replaced + num_bytes;
  if (of_tenant > kDataTenantBytesMax)
    return too_large(fmt::format("the files of '{}' would have {} bytes", tenant, of_tenant),
                     kDataTenantBytesMax);
  const size_t of_all = bytes_below(waiting_folder(run_folder)) +
                        bytes_below(tenant_data_folder(run_folder)) - replaced + num_bytes;
  if (of_all > kDataBytesMax)
    return too_large(fmt::format("the files of all tenants would have {} bytes", of_all),
                     kDataBytesMax);
  const auto full = [](std::string what, size_t most) {
    return ControlFault{409, std::move(what), "path", fmt::format("at most {}", most),
                        "add the tenant, or remove files: DELETE /v1/uploads/TENANT"};
  };
  if (!replaces && waiting_data(run_folder, tenant).size() >= kDataFilesMax)
    return full(fmt::format("'{}' has {} files already", tenant, kDataFilesMax), kDataFilesMax);
  if (fs::exists(own, fault)) return std::nullopt;
  const auto num_tenants =
      std::distance(fs::directory_iterator(waiting_folder(run_folder), fault), {});
  if (!fault && std::cmp_greater_equal(num_tenants, kDataTenantsMax))
    return full(fmt::format("files wait for {} tenants already", num_tenants), kDataTenantsMax);
  return std::nullopt;
}

}  // namespace

Result<fs::path> write_upload(const fs::path& run_folder, std::string_view text) {
  const std::string digits = random_digits();
  ASSIGN_OR_RETURN(const OpenFolder own, open_folders(run_folder, {"uploads", digits}));
  fs::path path = own.path / kTenantFile;
  if (const Status written = write_file(own, kTenantFile, text); !written.ok()) {
    remove_upload(path);
    return written.error();
  }
  return path;
}

void remove_upload(const fs::path& file) {
  std::error_code ignored;  // it only uses space, and the next start removes it
  fs::remove(file, ignored);
  fs::remove(file.parent_path(), ignored);
}

void remove_old_uploads(const fs::path& run_folder) {
  std::error_code ignored;
  const fs::path uploads = run_folder / "uploads";
  // remove_all() of a link removes the link alone.
  fs::remove_all(uploads, ignored);
}

bool is_data_name(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  if (name.empty() || name.size() > kDataNameBytesMax || !is_letter(name.front())) return false;
  return std::ranges::all_of(
             name, [&](char c) { return is_letter(c) || c == '_' || c == '-' || c == '.'; }) &&
         std::ranges::any_of(kDataSuffixes,
                             [name](std::string_view suffix) { return name.ends_with(suffix); });
}

std::optional<ControlFault> store_data(const fs::path& run_folder, const std::string& tenant,
                                       const std::string& name, std::string_view bytes) {
  if (!is_lower_snake(tenant) || !is_data_name(name))
    return ControlFault{400, "the path has no name of a tenant and of a data file", "path",
                        "/v1/uploads/TENANT/FILE; FILE has letters, digits, '_', '-' and '.', "
                        "begins with a letter or digit, and ends with .jsonl, .csv, .json or .txt",
                        "rename the file"};
  if (auto fault = limit_fault(run_folder, tenant, name, bytes.size())) return fault;
  const auto own = open_folders(run_folder, {"uploads", "files", tenant});
  if (!own.ok()) return disk_fault(own.error());
  const int folder = own->descriptor.get();
  (void)::unlinkat(folder, std::string(kNewFile).c_str(), 0);  // of a write that failed
  if (const Status written = write_file(*own, kNewFile, bytes); !written.ok()) {
    (void)::unlinkat(folder, std::string(kNewFile).c_str(), 0);
    return disk_fault(written.error());
  }
  if (::renameat(folder, std::string(kNewFile).c_str(), folder, name.c_str()) != 0)
    return disk_fault(io_error("renaming", own->path / name, errno));
  return std::nullopt;
}

std::vector<std::string> waiting_data(const fs::path& run_folder, const std::string& tenant) {
  std::vector<std::string> names;
  if (!is_lower_snake(tenant)) return names;
  std::error_code fault;
  const fs::path own = waiting_folder(run_folder) / tenant;
  if (fs::symlink_status(own, fault).type() != fs::file_type::directory) return names;
  for (auto each = fs::directory_iterator(own, fault); !fault && each != fs::directory_iterator();
       each.increment(fault)) {
    const std::string name = each->path().filename().string();
    if (is_data_name(name) && each->symlink_status(fault).type() == fs::file_type::regular)
      names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

bool discard_data(const fs::path& run_folder, const std::string& tenant) {
  std::error_code fault;
  return is_lower_snake(tenant) && fs::remove_all(waiting_folder(run_folder) / tenant, fault) > 0 &&
         !fault;
}

fs::path tenant_data_folder(const fs::path& run_folder) { return run_folder / kDataFolder; }

Result<fs::path> claim_data(const fs::path& run_folder, const std::string& tenant,
                            std::string_view text) {
  CHECK(is_lower_snake(tenant), "files of a tenant without a name");
  ASSIGN_OR_RETURN(const OpenFolder from, open_folders(run_folder, {"uploads", "files"}));
  ASSIGN_OR_RETURN(const OpenFolder all, open_folders(run_folder, {std::string(kDataFolder)}));
  const std::string digits = random_digits();
  if (::renameat(from.descriptor.get(), tenant.c_str(), all.descriptor.get(), digits.c_str()) != 0)
    return io_error("renaming", from.path / tenant, errno);
  fs::path path = all.path / digits / kTenantFile;
  const auto written = [&]() -> Status {
    ASSIGN_OR_RETURN(const OpenFolder own, open_folder(all.descriptor.get(), all.path, digits));
    return write_file(own, kTenantFile, text);
  }();
  if (written.ok()) return path;
  return_data(run_folder, path, tenant);
  return written.error();
}

void return_data(const fs::path& run_folder, const fs::path& file, const std::string& tenant) {
  std::error_code fault;
  fs::remove(file, fault);
  fs::rename(file.parent_path(), waiting_folder(run_folder) / tenant, fault);
  if (fault) fs::remove_all(file.parent_path(), fault);
}

fs::path data_folder_of_table(const fs::path& run_folder, std::string_view table) {
  // Paths in a table are absolute, and `run_folder` may not be.
  const std::string start = fmt::format("/{}/", kDataFolder);
  // Another text of the table, such as a description, may have these words too.
  for (size_t at = 0; (at = table.find(start, at)) != std::string_view::npos; at += start.size()) {
    const std::string_view digits = table.substr(at + start.size(), kDigits);
    const bool are_digits = std::ranges::all_of(
        digits, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
    if (digits.size() != kDigits || !are_digits) continue;
    // Digits are random: a folder of another run is not in this one.
    fs::path folder = tenant_data_folder(run_folder) / digits;
    std::error_code fault;
    if (fs::symlink_status(folder, fault).type() == fs::file_type::directory) return folder;
  }
  return {};
}

}  // namespace primerl
