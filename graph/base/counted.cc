#include "graph/base/counted.h"

#include <fmt/format.h>

namespace primerl {

std::string counted(uint64_t count, std::string_view noun, std::string_view plural) {
  if (count == 1) return fmt::format("1 {}", noun);
  return plural.empty() ? fmt::format("{} {}s", count, noun) : fmt::format("{} {}", count, plural);
}

}  // namespace primerl
