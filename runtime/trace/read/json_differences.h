/// The places where two JSON values differ, as text. Pure.
#pragma once

#include <string>
#include <vector>

#include "graph/base/json.h"

namespace primerl {

/// `a` and `b` are the two values (null: this one has no such member). For lists of different sizes
/// they are "3 items" and "4".
struct JsonDifference {
  std::string path, a, b;  // "members[0].reward", "0.25", "0.75"
};

/// At most `max` places where the values differ, or where only one has a value. Texts longer than
/// `bytes_max` are cut.
std::vector<JsonDifference> json_differences(const Json& a, const Json& b, size_t max,
                                             size_t bytes_max = SIZE_MAX);

/// JSON cut to about `bytes_max` for one line.
std::string short_json(const Json& json, size_t bytes_max);

}  // namespace primerl
