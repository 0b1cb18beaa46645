#include "runtime/store/followed_lines.h"

namespace primerl {
namespace {

constexpr size_t kShownMax = 200;  // characters of a line in an error

std::string shown(std::string_view line) {
  if (line.size() <= kShownMax) return std::string(line);
  return std::string(line.substr(0, kShownMax)) + "...";
}

}  // namespace

Result<std::unique_ptr<FollowedLines>> FollowedLines::open(const std::filesystem::path& file,
                                                           uint64_t bytes_before) {
  std::error_code none;
  const auto size = std::filesystem::file_size(file, none);
  if (none && bytes_before == 0) return std::unique_ptr<FollowedLines>(new FollowedLines(file, 0));
  if (none || size < bytes_before)
    return error(Code::kCorrupt, "'{}' has {} bytes, it had {} when the recorded start began",
                 file.string(), none ? 0 : size, bytes_before);
  return std::unique_ptr<FollowedLines>(new FollowedLines(file, bytes_before));
}

FollowedLines::FollowedLines(std::filesystem::path file, uint64_t taken)
    : file_(std::move(file)), stream_(file_, std::ios::binary), taken_(taken) {
  stream_.seekg(static_cast<std::streamoff>(taken_));
}

Result<bool> FollowedLines::take(std::string_view line) {
  if (is_over_) return false;
  std::string there;
  if (!std::getline(stream_, there) || stream_.eof()) {
    RETURN_IF_ERROR(cut());  // an incomplete last line
    return false;
  }
  if (there != line)
    return error(Code::kCorrupt, "line {} of this start in '{}' is otherwise than recorded",
                 num_taken_ + 1, file_.string())
        .note("there: " + shown(there))
        .note("now: " + shown(line));
  taken_ += there.size() + 1;
  ++num_taken_;
  return true;
}

Status FollowedLines::cut() {
  if (std::exchange(is_over_, true)) return ok();
  stream_.close();
  std::error_code fault;
  const auto size = std::filesystem::file_size(file_, fault);
  if (fault || size == taken_) return ok();
  std::filesystem::resize_file(file_, taken_, fault);
  if (fault)
    return error(Code::kUnavailable, "'{}' cannot be cut to {} bytes: {}", file_.string(), taken_,
                 fault.message());
  return ok();
}

}  // namespace primerl
