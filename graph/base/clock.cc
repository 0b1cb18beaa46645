#include "graph/base/clock.h"

#include <array>
#include <charconv>
#include <cmath>
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

struct Unit {
  std::string_view name;
  int64_t nanoseconds;
};

constexpr std::array<Unit, 6> kUnits = {{{"h", 3'600'000'000'000},
                                         {"m", 60'000'000'000},
                                         {"s", 1'000'000'000},
                                         {"ms", 1'000'000},
                                         {"us", 1'000},
                                         {"ns", 1}}};

}  // namespace

Result<Duration> parse_duration(std::string_view text) {
  double number = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  auto [rest, fault] = std::from_chars(begin, end, number);
  if (fault != std::errc() || !std::isfinite(number))
    return error(Code::kInvalid, "'{}' is not a duration", text)
        .note("write a number and a unit, e.g. \"250ms\", \"30s\", \"5m\" or \"2h\"");
  while (rest != end && *rest == ' ') ++rest;
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  for (const auto& known : kUnits) {
    if (known.name != unit) continue;
    const double total = number * static_cast<double>(known.nanoseconds);
    if (std::abs(total) >= 9.2e18)
      return error(Code::kInvalid, "'{}' is longer than 292 years", text);
    return Duration::nanoseconds(std::llround(total));
  }
  return error(Code::kInvalid, "'{}' has no known unit of time", text)
      .note("units are ns, us, ms, s, m and h, e.g. \"30s\"");
}

std::string to_string(Duration duration) {
  const int64_t total = duration.to_nanoseconds();
  if (duration == Duration::forever()) return "forever";
  if (total == 0) return "0s";
  for (const auto& unit : kUnits)
    if (total % unit.nanoseconds == 0)
      return fmt::format("{}{}", total / unit.nanoseconds, unit.name);
  return fmt::format("{}ns", total);
}

std::string folder_time(double wall) { return utc(wall, "%Y%m%d-%H%M%S"); }
std::string iso_time(double wall) { return utc(wall, "%Y-%m-%dT%H:%M:%SZ"); }

}  // namespace primerl
