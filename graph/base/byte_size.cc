#include "graph/base/byte_size.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace primerl {
namespace {

struct SizeUnit {
  std::string_view name;
  int64_t bytes;
};

/// The largest unit first.
constexpr std::array<SizeUnit, 10> kSizeUnits = {{{"TiB", int64_t{1} << 40},
                                                  {"TB", 1'000'000'000'000},
                                                  {"GiB", int64_t{1} << 30},
                                                  {"GB", 1'000'000'000},
                                                  {"MiB", int64_t{1} << 20},
                                                  {"MB", 1'000'000},
                                                  {"KiB", int64_t{1} << 10},
                                                  {"kB", 1'000},
                                                  {"KB", 1'000},
                                                  {"B", 1}}};
constexpr double kBytesEnd = 9223372036854775808.0;  // 2^63

Error size_too_large(std::string_view text) {
  return error(Code::kInvalid, "'{}' is more than {} bytes", text,
               std::numeric_limits<int64_t>::max());
}

/// The number with its unit, as bytes. A whole number is converted exactly.
Result<int64_t> counted_bytes(std::string_view number, int64_t unit, std::string_view text) {
  const char* const end = number.data() + number.size();
  int64_t whole = 0;
  const auto [rest, fault] = std::from_chars(number.data(), end, whole);
  if (fault == std::errc::result_out_of_range) return size_too_large(text);
  if (rest == end)
    return whole > std::numeric_limits<int64_t>::max() / unit
               ? Result<int64_t>(size_too_large(text))
               : Result<int64_t>(whole * unit);
  double fraction = 0;
  std::from_chars(number.data(), end, fraction, std::chars_format::fixed);
  const double bytes = fraction * static_cast<double>(unit);
  if (bytes >= kBytesEnd) return size_too_large(text);
  if (unit == 1) return error(Code::kInvalid, "'{}' is not a whole number of bytes", text);
  return std::llround(bytes);
}

}  // namespace

Result<int64_t> parse_bytes(std::string_view text) {
  const size_t number_end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string_view number = text.substr(0, number_end);
  const size_t num_points = static_cast<size_t>(std::count(number.begin(), number.end(), '.'));
  if (number.size() == num_points || num_points > 1)
    return error(Code::kInvalid, "'{}' does not begin with a number", text)
        .note("write a number and a unit, e.g. \"2GiB\", \"512MiB\" or \"1.5GB\"");
  const size_t unit_begin = std::min(text.find_first_not_of(' ', number_end), text.size());
  const std::string_view unit = text.substr(unit_begin);
  for (const auto& known : kSizeUnits)
    if (known.name == unit) return counted_bytes(number, known.bytes, text);
  return error(Code::kInvalid, "'{}' has no known unit of size", text)
      .note(
          "units are B, kB, MB, GB and TB (powers of 1000), KiB, MiB, GiB and TiB (powers of "
          "1024)");
}

std::string bytes_text(int64_t bytes) {
  if (bytes == 0) return "0B";
  for (const auto& unit : kSizeUnits)
    if (bytes % unit.bytes == 0) return fmt::format("{}{}", bytes / unit.bytes, unit.name);
  return fmt::format("{}B", bytes);
}

}  // namespace primerl
