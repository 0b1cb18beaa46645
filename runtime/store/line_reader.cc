#include "runtime/store/line_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "graph/base/files.h"
#include "runtime/store/line_file.h"

namespace primerl {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{1} << 18;

}  // namespace

Result<LineReader> LineReader::open(const std::filesystem::path& file, Order order) {
  Descriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return io_error("opening", file, errno);
  ASSIGN_OR_RETURN(const uint64_t size, complete_line_bytes(file));
  return LineReader(file, std::move(fd), order, size);
}

LineReader::LineReader(std::filesystem::path file, Descriptor fd, Order order, uint64_t size)
    : file_(std::move(file)), fd_(std::move(fd)), order_(order), end_(size) {}

Result<bool> LineReader::next(std::string& line) {
  while (!take_line(line)) {
    if (begin_ == end_) return false;
    if (buffer_.size() - taken_ > LineFile::kLineBytesMax)
      return error(Code::kCorrupt, "'{}' has a line of more than {} bytes", file_.string(),
                   LineFile::kLineBytesMax);
    RETURN_IF_ERROR(read_block());
  }
  return true;
}

Status LineReader::read_block() {
  const bool is_forward = order_ == Order::kOldestFirst;
  const uint64_t size = std::min(kBlockBytes, end_ - begin_);
  std::string block(size, '\0');
  const uint64_t from = is_forward ? begin_ : end_ - size;
  for (uint64_t got = 0; got < size;) {
    const ssize_t part =
        ::pread(fd_.get(), block.data() + got, size - got, static_cast<off_t>(from + got));
    if (part < 0 && errno == EINTR) continue;
    // A resumed run removes lines that it will write again.
    if (part == 0) return error(Code::kUnavailable, "'{}' was cut meanwhile", file_.string());
    if (part < 0) return io_error("reading", file_, errno);
    got += static_cast<uint64_t>(part);
  }
  if (is_forward) {
    buffer_.erase(0, taken_);
    taken_ = 0;
    buffer_ += block;
    begin_ += size;
  } else {
    buffer_.insert(0, block);
    end_ -= size;
  }
  return ok();
}

bool LineReader::take_line(std::string& line) {
  if (order_ == Order::kOldestFirst) {
    const size_t newline = buffer_.find('\n', taken_);
    if (newline == std::string::npos) return false;
    line.assign(buffer_, taken_, newline - taken_);
    taken_ = newline + 1;
    return true;
  }
  if (buffer_.empty()) return false;
  // The last byte is the newline of the line to return.
  const size_t newline =
      buffer_.size() < 2 ? std::string::npos : buffer_.rfind('\n', buffer_.size() - 2);
  if (newline == std::string::npos && end_ > 0) return false;
  const size_t begin = newline == std::string::npos ? 0 : newline + 1;
  line.assign(buffer_, begin, buffer_.size() - 1 - begin);
  buffer_.resize(begin);
  return true;
}

}  // namespace primerl
