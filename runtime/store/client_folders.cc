#include "runtime/store/client_folders.h"

#include <vector>

namespace primerl {
namespace {

namespace fs = std::filesystem;

}  // namespace

fs::path ClientFolders::filling(std::string_view path) const { return folder_ / ".filling" / path; }

Result<fs::path> ClientFolders::begin(std::string_view path) {
  const fs::path made = filling(path);
  RETURN_IF_ERROR(files_.remove_all(made));
  RETURN_IF_ERROR(files_.make_folder(made));
  return made;
}

Status ClientFolders::sync_tree(const fs::path& folder) {
  std::error_code fault;
  std::vector<fs::path> folders = {folder};
  for (fs::recursive_directory_iterator each(folder, fault), end; !fault && each != end;
       each.increment(fault)) {
    if (each->is_directory())
      folders.push_back(each->path());
    else
      RETURN_IF_ERROR(files_.sync(each->path()));
  }
  if (fault) return io_error("reading", folder, fault.value());
  for (const fs::path& one : folders) RETURN_IF_ERROR(files_.sync(one));
  return ok();
}

Status ClientFolders::commit(std::string_view path, bool weights_only) {
  const fs::path filled = filling(path), to = folder_ / path;
  const fs::path from = weights_only ? filled / "weights" : filled;
  RETURN_IF_ERROR(sync_tree(from));
  RETURN_IF_ERROR(files_.make_folder(to.parent_path()));
  std::error_code fault;
  // Exchanged, so that the name is there at every moment.
  RETURN_IF_ERROR(fs::exists(to, fault) ? files_.exchange(from, to) : files_.rename(from, to));
  RETURN_IF_ERROR(files_.sync(to.parent_path()));
  return files_.remove_all(filled);
}

Status ClientFolders::remove(std::string_view path) {
  const fs::path from = folder_ / path, gone = filling(path);
  std::error_code fault;
  if (!fs::exists(from, fault)) return ok();
  // Renamed first: what is left of it after a crash has no complete name.
  RETURN_IF_ERROR(files_.make_folder(gone.parent_path()));
  RETURN_IF_ERROR(files_.remove_all(gone));
  RETURN_IF_ERROR(files_.rename(from, gone));
  return files_.remove_all(gone);
}

}  // namespace primerl
