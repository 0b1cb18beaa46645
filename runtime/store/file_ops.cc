#include "runtime/store/file_ops.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

namespace primerl {
namespace {

/// Closes on every way out.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

class SystemFiles final : public FileOps {
 public:
  Status make_folder(const std::filesystem::path& folder) override {
    std::error_code fault;
    std::filesystem::create_directories(folder, fault);
    if (fault) return io_error("creating folder", folder, fault.value());
    return ok();
  }

  Status write_file(const std::filesystem::path& file, std::string_view bytes) override {
    Descriptor out(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (out.get() < 0) return io_error("writing", file, errno);
    while (!bytes.empty()) {
      const ssize_t written = ::write(out.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return io_error("writing", file, errno);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return ok();
  }

  Status sync(const std::filesystem::path& path) override {
    Descriptor opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (opened.get() < 0) return io_error("syncing", path, errno);
    // Some file systems cannot sync a folder and say so with EINVAL; there is nothing to wait for.
    if (::fsync(opened.get()) != 0 && errno != EINVAL) return io_error("syncing", path, errno);
    return ok();
  }

  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return io_error("renaming to", to, errno);
    return ok();
  }

  Status remove_all(const std::filesystem::path& path) override {
    std::error_code fault;
    std::filesystem::remove_all(path, fault);
    if (fault) return io_error("removing", path, fault.value());
    return ok();
  }
};

}  // namespace

FileOps& system_files() {
  static SystemFiles files;
  return files;
}

Error io_error(std::string_view doing, const std::filesystem::path& path, int error_number) {
  Error fault = error(Code::kIo, "{} '{}': {}", doing, path.string(), std::strerror(error_number));
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG)
    return std::move(fault).note("free some space, or choose another folder with --out DIR");
  if (error_number == EACCES || error_number == EROFS || error_number == EPERM)
    return std::move(fault).note("choose a folder you may write to with --out DIR");
  return fault;
}

Status replace_file(FileOps& files, const std::filesystem::path& file, std::string_view bytes) {
  const std::filesystem::path beside = file.string() + ".tmp";
  RETURN_IF_ERROR(files.write_file(beside, bytes));
  RETURN_IF_ERROR(files.sync(beside));
  return files.rename(beside, file);
}

Result<std::string> read_text_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return io_error("reading", file, errno == 0 ? ENOENT : errno);
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) return io_error("reading", file, EIO);
  return std::move(text).str();
}

}  // namespace primerl
