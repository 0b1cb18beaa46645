#include "runtime/worker/writer_pace.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

namespace primerl {
namespace {

constexpr int64_t kPauseTimes = 3;  // a pause is so many times the piece
constexpr Duration kPauseMax = Duration::milliseconds(500);

}  // namespace

Duration WriterPace::pause_after(Duration lasted, Duration waited, bool is_computing) {
  if (!is_computing || waited * 2 <= lasted) return {};
  const Duration pause = std::min({lasted * kPauseTimes, kPauseMax, kPausesMax - sum_});
  sum_ = sum_ + pause;
  return pause;
}

CoreWaits::CoreWaits() : file_(::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}

std::optional<Duration> CoreWaits::read() const {
  // "CPU WAITED SLICES", nanoseconds.
  std::array<char, 96> buffer{};
  if (file_.get() < 0) return std::nullopt;
  const ssize_t count = ::pread(file_.get(), buffer.data(), buffer.size(), 0);
  if (count <= 0) return std::nullopt;
  const std::string_view text(buffer.data(), static_cast<size_t>(count));
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  int64_t waited = 0;
  const auto read = std::from_chars(text.data() + space + 1, text.data() + text.size(), waited);
  if (read.ec != std::errc()) return std::nullopt;
  return Duration::nanoseconds(waited);
}

}  // namespace primerl
