#include "runtime/transport/keys.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>

#include "graph/base/file_lock.h"
#include "graph/base/files.h"

namespace primerl {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;

Error io_error(std::string_view what, const std::filesystem::path& file) {
  return error(Code::kIo, "{} '{}': {}", what, file.string(), strerror(errno));
}

Status write_all(const Descriptor& file, std::string_view text, const std::filesystem::path& path) {
  while (!text.empty()) {
    const auto written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return io_error("writing", path);
    text.remove_prefix(static_cast<size_t>(written));
  }
  if (::fsync(file.get()) != 0) return io_error("writing", path);
  return ok();
}

Result<std::string> read_all(const Descriptor& file, const std::filesystem::path& path) {
  std::string text;
  std::array<char, 4096> part;
  while (true) {
    const auto count = ::read(file.get(), part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return io_error("reading", path);
    if (count == 0) break;
    text.append(part.data(), static_cast<size_t>(count));
    if (text.size() > kFileBytesMax)
      return error(Code::kInvalid, "'{}' is too long for a file of keys", path.string());
  }
  explicit_bzero(part.data(), part.size());
  return text;
}

/// `name = "value"`.
Result<std::string> value_of(const std::string& text, std::string_view name,
                             const std::filesystem::path& file) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string begin = fmt::format("{} = \"", name);
    if (!line.starts_with(begin) || !line.ends_with('"')) continue;
    std::string value = line.substr(begin.size(), line.size() - begin.size() - 1);
    if (is_public_key(value)) return value;
    explicit_bzero(value.data(), value.size());
  }
  return error(Code::kInvalid, "'{}' has no '{} = \"...\"' of {} characters", file.string(), name,
               kKeyTextBytes)
      .note("make one with `primerl-graph keys new`");
}

bool has_entry(const std::vector<AllowedName>& entries, const AllowedName& entry) {
  return std::any_of(entries.begin(), entries.end(), [&](const AllowedName& each) {
    return each.public_key == entry.public_key && each.process == entry.process;
  });
}

/// Whether a text is a valid word of a line: not empty, and without separators.
bool is_word(const std::string& text) {
  return !text.empty() && text.find_first_of(" \t\r\n,*") == std::string::npos;
}

Status check_entry(const AllowedName& entry) {
  if (!is_public_key(entry.public_key))
    return error(Code::kInvalid, "'{}' is no public key: it would have {} characters of Z85",
                 entry.public_key, kKeyTextBytes);
  if (!is_word(entry.process))
    return error(Code::kInvalid, "'{}' is no name of a process", entry.process);
  for (const std::string& tenant : entry.tenants)
    if (!is_word(tenant)) return error(Code::kInvalid, "'{}' is no name of a tenant", tenant);
  return ok();
}

/// Writes a new file in the same folder and renames it to `path`. The new file has an unpredictable
/// name (O_EXCL, 0600), so no other user can have created it before.
Status replace(const std::filesystem::path& path, std::string_view text) {
  std::string beside = path.string() + ".XXXXXX";
  const auto write = [&]() -> Status {
    const Descriptor file{::mkostemp(beside.data(), O_CLOEXEC)};
    if (file.get() < 0) return io_error("making", beside);
    return write_all(file, text, beside);
  };
  Status written = write();
  if (written.ok() && ::rename(beside.c_str(), path.c_str()) != 0)
    written = io_error("replacing", path);
  if (!written.ok()) ::unlink(beside.c_str());
  return written;
}

/// The complete text of a list; an Error if another user could have written it.
Result<std::string> read_list(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const Descriptor file, open_regular_file(path));
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return io_error("reading", path);
  RETURN_IF_ERROR(check_allow_list({about.st_uid, about.st_mode & 07777u}, ::geteuid(), path));
  return read_all(file, path);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

Result<std::vector<AllowedName>> entries_of(const std::string& text,
                                            const std::filesystem::path& path) {
  std::vector<AllowedName> entries;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line.starts_with("# ") || line == "#") continue;
    const auto words = split(line, ' ');
    if (words.size() != 3 || !is_public_key(words[0]))
      return error(Code::kInvalid, "{}:{}: expected a key, a process and its tenants, or '*'",
                   path.string(), number);
    AllowedName entry{words[0], words[1], {}};
    if (words[2] != "*") entry.tenants = split(words[2], ',');
    if (words[2] != "*" && entry.tenants.empty())
      return error(Code::kInvalid, "{}:{}: '{}' names no tenant; '*' means all", path.string(),
                   number, words[2]);
    if (has_entry(entries, entry))
      return error(Code::kInvalid, "{}:{}: '{}' is let in as '{}' twice", path.string(), number,
                   entry.public_key, entry.process);
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

SecretKey::~SecretKey() { explicit_bzero(z85_.data(), z85_.size()); }

Status write_key_file(const std::filesystem::path& path, const KeyPair& keys) {
  const Descriptor file{::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
  if (file.get() < 0 && errno == EEXIST)
    return error(Code::kExists, "'{}' exists; keys are never overwritten", path.string())
        .note("remove it yourself, or name another file");
  if (file.get() < 0) return io_error("making", path);
  std::string text =
      fmt::format("public = \"{}\"\nsecret = \"{}\"\n", keys.public_key, keys.secret_key.reveal());
  const Status written = write_all(file, text, path);
  explicit_bzero(text.data(), text.size());
  return written;
}

Result<KeyPair> read_key_file(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const Descriptor file, open_regular_file(path, O_NOFOLLOW));
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return io_error("reading", path);
  if ((about.st_mode & 077) != 0 || about.st_uid != ::geteuid())
    return error(Code::kInvalid, "'{}' has mode {:04o}: others than its owner can reach the key",
                 path.string(), about.st_mode & 07777)
        .note(fmt::format("chmod 0600 '{}', if no other user has read it", path.string()));
  ASSIGN_OR_RETURN(std::string text, read_all(file, path));
  auto public_key = value_of(text, "public", path);
  auto secret_key = value_of(text, "secret", path);
  explicit_bzero(text.data(), text.size());
  if (!public_key.ok()) return std::move(public_key).error();
  if (!secret_key.ok()) return std::move(secret_key).error();
  return KeyPair{std::move(public_key).value(), SecretKey(std::move(secret_key).value())};
}

Status check_allow_list(const FileOwner& file, uid_t reader, const std::filesystem::path& path) {
  if (file.user != reader && file.user != 0)
    return error(Code::kInvalid, "'{}' belongs to user {}, who could let keys in", path.string(),
                 file.user)
        .note(fmt::format("it must be yours (user {}) or root's", reader));
  if ((file.mode & 022) != 0)
    return error(Code::kInvalid, "'{}' has mode {:04o}: others than its owner can let keys in",
                 path.string(), file.mode)
        .note(fmt::format("chmod 0600 '{}'", path.string()));
  return ok();
}

Result<std::vector<AllowedName>> read_allow_list(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const std::string text, read_list(path));
  return entries_of(text, path);
}

Status append_to_allow_list(const std::filesystem::path& path, const AllowedName& entry) {
  RETURN_IF_ERROR(check_entry(entry));
  // One writer at a time, because it reads the list before it writes. A lock on the folder needs no
  // extra file and ends with its process.
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  const FileLock lock(folder, FileLock::When::kFree);
  if (!lock.is_held()) return io_error("locking", folder);
  std::string text;
  if (std::filesystem::exists(path)) {
    ASSIGN_OR_RETURN(text, read_list(path));
    ASSIGN_OR_RETURN(const auto entries, entries_of(text, path));
    if (has_entry(entries, entry))
      return error(Code::kExists, "'{}' already allows this key, as '{}'", path.string(),
                   entry.process);
    if (!text.ends_with('\n') && !text.empty()) text += '\n';
  }
  const std::string tenants =
      entry.tenants.empty() ? "*" : fmt::format("{}", fmt::join(entry.tenants, ","));
  return replace(path, text + fmt::format("{} {} {}\n", entry.public_key, entry.process, tenants));
}

}  // namespace primerl
