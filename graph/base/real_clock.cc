#include "graph/base/real_clock.h"

#include <algorithm>
#include <ctime>

namespace primerl {
namespace {

std::string utc(double wall, const char* format) {
  const auto seconds = static_cast<std::time_t>(wall);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[64];
  return std::string(text, std::strftime(text, sizeof text, format, &parts));
}

}  // namespace

Time steady_now() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return Time::from_nanoseconds(
      std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

std::chrono::steady_clock::time_point deadline_after(Duration timeout) {
  const Duration limited = std::min(timeout, Duration::seconds(24 * 3600));
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(limited.to_nanoseconds());
}

double wall_seconds() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

std::string folder_time(double wall) { return utc(wall, "%Y%m%d-%H%M%S"); }
std::string iso_time(double wall) { return utc(wall, "%Y-%m-%dT%H:%M:%SZ"); }

}  // namespace primerl
