/// Sizes in bytes as people write them: "2GiB", "512 MiB", "1.5GB". Plain functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl {

/// Parses a number and a unit: B; kB, MB, GB, TB (powers of 1000); KiB, MiB, GiB, TiB (powers of
/// 1024). A fraction is rounded to whole bytes. A number without a unit is an error. Errors list
/// the units.
Result<int64_t> parse_bytes(std::string_view text);
/// The shortest exact form, with the largest unit that divides `bytes`: "8GiB", "1500MB", "17B".
/// `bytes` >= 0.
std::string bytes_text(int64_t bytes);

}  // namespace primerl
