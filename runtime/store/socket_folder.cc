#include "runtime/store/socket_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <optional>

#include "graph/base/files.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

fs::path default_root() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const fs::path above = runtime != nullptr && *runtime == '/' ? runtime : "/tmp";
  return above / fmt::format("primerl-{}", ::geteuid());
}

/// Makes the root, or makes sure that nobody else made it or can look into it.
Status make_root(const fs::path& root) {
  if (::mkdir(root.c_str(), 0700) != 0 && errno != EEXIST) return io_error("making", root, errno);
  struct stat facts {};
  if (::lstat(root.c_str(), &facts) != 0) return io_error("reading", root, errno);
  if (S_ISDIR(facts.st_mode) && facts.st_uid == ::geteuid() && (facts.st_mode & 077) == 0)
    return ok();
  return error(Code::kInvalid, "'{}' is no folder that this user alone can enter", root.string())
      .note("sockets of runs live there; remove it, or set XDG_RUNTIME_DIR to another folder");
}

/// A lock that the system releases when its holder ends; none when another process has it.
Result<std::optional<int>> take_lock(const fs::path& file, bool waits) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return io_error("writing", file, errno);
  int locked = 0;
  do locked = ::flock(fd, waits ? LOCK_EX : LOCK_EX | LOCK_NB);
  while (locked != 0 && errno == EINTR);
  if (locked == 0) return std::optional(fd);
  const int why = errno;
  ::close(fd);
  if (why == EWOULDBLOCK) return std::optional<int>();
  return io_error("locking", file, why);
}

/// With the root's lock held, so that no folder is half made.
std::vector<fs::path> remove_dead(const fs::path& root) {
  std::vector<fs::path> removed;
  std::error_code fault;
  for (const auto& entry : fs::directory_iterator(root, fault)) {
    if (entry.is_symlink(fault) || !entry.is_directory(fault)) continue;
    const auto lock = take_lock(entry.path() / "lock", false);
    if (!lock.ok() || !*lock) continue;
    fs::remove_all(entry.path(), fault);
    ::close(**lock);
    if (!fault) removed.push_back(entry.path());
  }
  return removed;
}

}  // namespace

Result<std::unique_ptr<SocketFolder>> SocketFolder::create(const fs::path& given,
                                                           const std::string& name) {
  const fs::path root = fs::absolute(given.empty() ? default_root() : given);
  RETURN_IF_ERROR(make_root(root));
  ASSIGN_OR_RETURN(const auto root_lock, take_lock(root / "lock", true));
  auto leftovers = remove_dead(root);
  const fs::path folder = root / name;
  const auto made = [&]() -> Result<int> {
    if (::mkdir(folder.c_str(), 0700) != 0) {
      if (errno != EEXIST) return io_error("making", folder, errno);
      return error(Code::kExists, "'{}' belongs to a run that lives", folder.string());
    }
    ASSIGN_OR_RETURN(const auto lock, take_lock(folder / "lock", false));
    CHECK(lock.has_value(), "a folder that was just made is locked");
    return *lock;
  }();
  ::close(*root_lock);
  if (!made.ok()) return made.error();
  return std::unique_ptr<SocketFolder>(new SocketFolder(folder, *made, std::move(leftovers)));
}

SocketFolder::~SocketFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  ::close(lock_);
}

}  // namespace primerl
