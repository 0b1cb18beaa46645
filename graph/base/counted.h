/// Counts in messages: "1 step", "2 steps".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace primerl {

/// The number and the noun in its right form. Without `plural` that is the noun with an "s".
std::string counted(uint64_t count, std::string_view noun, std::string_view plural = {});

}  // namespace primerl
