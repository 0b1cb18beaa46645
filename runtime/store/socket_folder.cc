#include "runtime/store/socket_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "graph/base/files.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSocketPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;

fs::path root_in(const fs::path& above) { return above / fmt::format("primerl-{}", ::geteuid()); }

/// Makes the root, or checks that an existing one was made by this user and that other users cannot
/// read it.
Status make_root(const fs::path& root) {
  if (::mkdir(root.c_str(), 0700) != 0 && errno != EEXIST) return io_error("making", root, errno);
  struct stat facts {};
  if (::lstat(root.c_str(), &facts) != 0) return io_error("reading", root, errno);
  if (S_ISDIR(facts.st_mode) && facts.st_uid == ::geteuid() && (facts.st_mode & 077) == 0)
    return ok();
  return error(Code::kInvalid, "'{}' is no folder that this user alone can enter", root.string())
      .note("sockets of runs live there; remove it, or set XDG_RUNTIME_DIR to another folder");
}

/// Checks that a private root can be made there, and that its sockets' names are not too long for
/// the system.
Status check_above(const fs::path& above, size_t below_root_bytes) {
  struct stat facts {};
  if (::stat(above.c_str(), &facts) != 0)
    return error(errno == ENOENT ? Code::kNotFound : Code::kIo, "{}",
                 errno == ENOENT ? "it is missing" : std::strerror(errno));
  if (!S_ISDIR(facts.st_mode)) return error(Code::kInvalid, "it is no folder");
  const size_t bytes = root_in(above).native().size() + 1 + below_root_bytes;
  if (bytes > kSocketPathBytesMax)
    return error(Code::kInvalid,
                 "it is too long: sockets in it would have names of {} bytes, and "
                 "{} is the most",
                 bytes, kSocketPathBytesMax);
  if (const Status made = make_root(root_in(above)); !made.ok())
    return error(made.error().code(), "{}", made.error().message());
  return ok();
}

/// A lock that the system releases when its holder ends; none when another process holds it.
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

/// Call with the root's lock held, so that no folder is half made.
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
                                                           const std::string& name,
                                                           size_t below_bytes) {
  if (!given.empty()) return create_in(fs::absolute(given), name);
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const bool is_set = runtime != nullptr && *runtime == '/';
  const fs::path wanted = is_set ? runtime : "/tmp";
  const Status usable = check_above(wanted, name.size() + 1 + below_bytes);
  if (usable.ok()) return create_in(root_in(wanted), name);
  // The folder that runs without XDG_RUNTIME_DIR use, so that the next run removes the remains of a
  // crash.
  fs::path root = root_in("/tmp"), own_root;
  if (!is_set || !make_root(root).ok()) {
    std::string text = "/tmp/primerl-XXXXXX";
    if (::mkdtemp(text.data()) == nullptr) return io_error("making", text, errno);
    root = own_root = text;
  }
  ASSIGN_OR_RETURN(auto folder, create_in(root, name));
  folder->own_root_ = own_root;
  folder->reason_for_other_root_ = fmt::format(
      "sockets are in '{}' and not in {} '{}': {}", folder->path().string(),
      is_set ? "XDG_RUNTIME_DIR" : "the folder", wanted.string(), usable.error().message());
  return folder;
}

Result<std::unique_ptr<SocketFolder>> SocketFolder::create_in(const fs::path& root,
                                                              const std::string& name) {
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
  if (!own_root_.empty()) fs::remove_all(own_root_, ignored);
  ::close(lock_);
}

}  // namespace primerl
