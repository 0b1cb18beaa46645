#include "runtime/store/line_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "graph/base/files.h"

namespace primerl {
namespace {

/// Size in bytes up to and including the last newline.
Result<int64_t> size_of_whole_lines(int fd, const std::filesystem::path& file) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0) return io_error("reading", file, errno);
  char block[4096];
  int64_t end = facts.st_size;
  while (end > 0) {
    const int64_t begin =
        end > static_cast<int64_t>(sizeof block) ? end - int64_t{sizeof block} : 0;
    const ssize_t got = ::pread(fd, block, static_cast<size_t>(end - begin), begin);
    if (got != end - begin) return io_error("reading", file, got < 0 ? errno : EIO);
    for (ssize_t i = got; i > 0; --i)
      if (block[i - 1] == '\n') return begin + i;
    end = begin;
  }
  return int64_t{0};
}

}  // namespace

Result<uint64_t> complete_line_bytes(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return io_error("opening", file, errno);
  auto size = size_of_whole_lines(fd, file);
  ::close(fd);
  if (!size.ok()) return std::move(size).error();
  return static_cast<uint64_t>(*size);
}

Result<std::unique_ptr<LineFile>> LineFile::open(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (fd < 0) return io_error("opening", file, errno);
  auto size = size_of_whole_lines(fd, file);
  if (!size.ok()) {
    ::close(fd);
    return std::move(size).error();
  }
  std::unique_ptr<LineFile> lines(new LineFile(file, fd, *size));
  if (::ftruncate(fd, *size) != 0) return io_error("cutting the torn last line of", file, errno);
  return lines;
}

LineFile::LineFile(std::filesystem::path file, int fd, int64_t size)
    : file_(std::move(file)), fd_(fd), size_(size) {}

LineFile::~LineFile() { ::close(fd_); }

Status LineFile::append(std::string_view line) {
  if (fault_) return *fault_;
  CHECK(line.find('\n') == std::string_view::npos, "a line holds a newline");
  if (line.size() >= kLineBytesMax)
    return error(Code::kExhausted, "a line of {} bytes for '{}': at most {} are kept", line.size(),
                 file_.string(), kLineBytesMax - 1);
  buffer_.assign(line);
  buffer_ += '\n';
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const ssize_t written = ::write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      fault_ = io_error("appending to", file_, errno);
      // Removes the partial line, which readers cannot parse. If even that fails, the next open
      // removes it.
      if (::ftruncate(fd_, size_) != 0) return *fault_;
      return *fault_;
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  size_ += static_cast<int64_t>(buffer_.size());
  return ok();
}

}  // namespace primerl
