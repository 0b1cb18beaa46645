#include "runtime/trace/ring_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/store/file_ops.h"
#include "runtime/trace/segment_files.h"

namespace primerl {
namespace {

constexpr size_t kNameBytesMax = 64;  // of a number and endings

/// Digits of a number; returns how many.
size_t put_digits(uint64_t number, char* to) noexcept {
  char reversed[20];
  size_t count = 0;
  do {
    reversed[count++] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number > 0);
  for (size_t i = 0; i < count; ++i) to[i] = reversed[count - 1 - i];
  return count;
}

bool write_all(int file, const void* bytes, size_t size) noexcept {
  const char* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t done = ::write(file, at, size);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done;
    size -= static_cast<size_t>(done);
  }
  return true;
}

/// `prefix` + `number` + `ending`, ended by a zero, into memory that is there already.
const char* put_path(std::string& path, const std::string& prefix, uint64_t number,
                     const char* ending) noexcept {
  char* to = path.data();
  std::memcpy(to, prefix.data(), prefix.size());
  to += prefix.size();
  if (number > 0) to += put_digits(number, to);
  std::memcpy(to, ending, std::strlen(ending) + 1);
  return path.data();
}

bool write_new_file(const char* file_name, std::span<const std::byte> bytes) noexcept {
  const int file = ::open(file_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return false;
  const bool is_whole = write_all(file, bytes.data(), bytes.size()) && ::fsync(file) == 0;
  ::close(file);
  if (!is_whole) ::unlink(file_name);
  return is_whole;
}

}  // namespace

RingFiles::RingFiles(std::filesystem::path folder, std::string process, uint32_t epoch,
                     const std::vector<std::unique_ptr<SegmentBuffer>>& buffers)
    : folder_(std::move(folder)),
      process_(std::move(process)),
      epoch_(epoch),
      folder_text_(folder_.string()),
      prefix_((folder_ / fmt::format("{}.{}.", process_, epoch_)).string()),
      path_(prefix_.size() + kNameBytesMax, '\0'),
      other_path_(path_) {
  for (const auto& buffer : buffers) buffers_.push_back(buffer.get());
}

Status RingFiles::write(std::span<SegmentBuffer* const> kept) const {
  RETURN_IF_ERROR(system_files().make_folder(folder_));
  if (::chmod(folder_.c_str(), 0700) != 0) return io_error("restricting", folder_, errno);
  if (!kept.empty() && kept.front()->header().number > 1)
    RETURN_IF_ERROR(
        set_retired_through(folder_, process_, epoch_, kept.front()->header().number - 1));
  for (const SegmentBuffer* buffer : kept) {
    const auto bytes = buffer->bytes();
    RETURN_IF_ERROR(replace_file(system_files(),
                                 segment_path(folder_, process_, epoch_, buffer->header().number),
                                 {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  }
  return ok();
}

void RingFiles::write_in_handler() noexcept {
  if (is_written_.exchange(true)) return;
  ::mkdir(folder_text_.c_str(), 0700);
  // What others open from now on is left out: one behind it could be missing.
  uint64_t newest = 0;
  for (const SegmentBuffer* buffer : buffers_)
    if (!buffer->live_bytes().empty()) newest = std::max(newest, buffer->header().number);
  uint64_t first = UINT64_MAX;
  for (const SegmentBuffer* buffer : buffers_) {
    const uint64_t number = buffer->header().number;
    if (number > newest) continue;
    if (write_file_in_handler(*buffer, number)) first = std::min(first, number);
  }
  if (first != UINT64_MAX && first > 1) write_retired_in_handler(first - 1);
}

/// False when nothing lies in the buffer, or something else by the time it was written: the others
/// record on and begin the oldest one anew.
bool RingFiles::write_file_in_handler(const SegmentBuffer& buffer, uint64_t number) noexcept {
  const char* beside = put_path(path_, prefix_, number, ".ptr.tmp");
  const auto bytes = buffer.live_bytes();
  if (bytes.empty() || !write_new_file(beside, bytes)) return false;
  if (buffer.live_bytes().empty() || buffer.header().number != number) {
    ::unlink(beside);
    return false;
  }
  return ::rename(beside, put_path(other_path_, prefix_, number, ".ptr")) == 0;
}

void RingFiles::write_retired_in_handler(uint64_t last) noexcept {
  char text[24];
  size_t size = put_digits(last, text);
  text[size++] = '\n';
  const char* beside = put_path(path_, prefix_, 0, "retired.tmp");
  if (write_new_file(beside, std::as_bytes(std::span(text, size))))
    ::rename(beside, put_path(other_path_, prefix_, 0, "retired"));
}

}  // namespace primerl
