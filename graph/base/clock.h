/// Time as values: `Duration` and `Time`, in nanoseconds. No function here reads a clock: actors
/// call `services().now()`, and only the executors own a real or a virtual clock.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// A span of time. The constructors name their unit.
class Duration {
 public:
  constexpr Duration() = default;
  static constexpr Duration nanoseconds(int64_t n) { return Duration(n); }
  static constexpr Duration microseconds(int64_t n) { return Duration(n * 1'000); }
  static constexpr Duration milliseconds(int64_t n) { return Duration(n * 1'000'000); }
  static constexpr Duration seconds(int64_t n) { return Duration(n * 1'000'000'000); }
  /// A value out of range becomes the nearest end of the range; NaN becomes 0.
  static constexpr Duration from_seconds(double n) {
    constexpr double kLimit = 9223372036854775808.0;  // 2^63
    const double total = n * 1e9;
    if (!(total < kLimit)) return Duration(total >= kLimit ? INT64_MAX : 0);
    return Duration(total > -kLimit ? static_cast<int64_t>(total) : INT64_MIN);
  }
  static constexpr Duration forever() { return Duration(INT64_MAX); }

  constexpr int64_t to_nanoseconds() const { return nanoseconds_; }
  constexpr int64_t to_milliseconds() const { return nanoseconds_ / 1'000'000; }
  constexpr double to_seconds() const { return static_cast<double>(nanoseconds_) * 1e-9; }

  friend constexpr auto operator<=>(Duration, Duration) = default;
  friend constexpr Duration operator+(Duration a, Duration b) {
    return Duration(a.nanoseconds_ + b.nanoseconds_);
  }
  friend constexpr Duration operator-(Duration a, Duration b) {
    return Duration(a.nanoseconds_ - b.nanoseconds_);
  }
  friend constexpr Duration operator*(Duration a, int64_t n) {
    return Duration(a.nanoseconds_ * n);
  }
  constexpr Duration& operator+=(Duration b) {
    nanoseconds_ += b.nanoseconds_;
    return *this;
  }

 private:
  constexpr explicit Duration(int64_t n) : nanoseconds_(n) {}
  int64_t nanoseconds_ = 0;
};

/// Parses "250ms", "30 s", "5m", "2h", "10us". A number without a unit is an error that lists the
/// units.
Result<Duration> parse_duration(std::string_view text);
/// The shortest exact form: "250ms", "30s".
std::string to_string(Duration duration);

/// A point in time, counted from the start of the run (virtual executor) or of the machine's steady
/// clock.
class Time {
 public:
  constexpr Time() = default;
  static constexpr Time from_nanoseconds(int64_t n) { return Time(n); }
  constexpr int64_t to_nanoseconds() const { return nanoseconds_; }
  friend constexpr auto operator<=>(Time, Time) = default;
  friend constexpr Time operator+(Time t, Duration d) {
    return Time(t.nanoseconds_ + d.to_nanoseconds());
  }
  friend constexpr Duration operator-(Time a, Time b) {
    return Duration::nanoseconds(a.nanoseconds_ - b.nanoseconds_);
  }

 private:
  constexpr explicit Time(int64_t n) : nanoseconds_(n) {}
  int64_t nanoseconds_ = 0;
};

/// The time `wall`, in seconds since 1970, in UTC: "20261121-062445" for names of folders,
/// "2026-11-21T06:24:45Z" for text.
std::string folder_time(double wall);
std::string iso_time(double wall);

}  // namespace primerl
