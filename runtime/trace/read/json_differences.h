/// Where two JSON values differ, in words. Pure.
#pragma once

#include <string>
#include <vector>

#include "graph/base/json.h"

namespace primerl {

/// Two texts: a value and the other one (null where there is no such member), or "3 items" and "4"
/// of lists of different sizes.
struct JsonDifference {
  std::string path, a, b;  // "members[0].reward", "0.25", "0.75"
};

/// At most `max` of the values that differ, or that only one of the two has. Of longer texts than
/// `bytes_max` the begin.
std::vector<JsonDifference> json_differences(const Json& a, const Json& b, size_t max,
                                             size_t bytes_max = SIZE_MAX);

/// JSON cut to about `bytes_max` for one line.
std::string short_json(const Json& json, size_t bytes_max);

}  // namespace primerl
