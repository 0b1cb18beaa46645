#include "graph/base/memory_part.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

namespace primerl {

std::string memory_text(double bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 || bytes == static_cast<double>(static_cast<int64_t>(bytes))
             ? fmt::format("{} {}", static_cast<int64_t>(bytes), kUnits[unit])
             : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

}  // namespace primerl
