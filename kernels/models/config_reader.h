/// Reads the fields of one JSON object and remembers which: what nobody asked for is an error,
/// because it may change the arithmetic. Errors name the field.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"

namespace primerl {

class ConfigReader {
 public:
  /// `json`, an object, outlives the reader.
  explicit ConfigReader(const Json& json) : json_(json) {}

  /// The value, or null where it is absent or null.
  const Json* find(std::string_view key);

  // Each leaves `value` as it is where the field is absent.
  Status read_flag(std::string_view key, bool& value);
  Status read_text(std::string_view key, std::string& value);
  /// A whole number, at least `least`.
  Status read_count(std::string_view key, int32_t& value, int32_t least = 1);
  /// The same, but it must be there.
  Status need_count(std::string_view key, int32_t& value);
  /// A finite number above 0.
  Status read_positive(std::string_view key, double& value);

  /// Fields that must be absent or hold just this: other values ask for what nothing here does.
  Status must_be(std::string_view key, const Json& value);
  /// Fields that do not change what the model computes.
  void ignore(std::initializer_list<std::string_view> keys);

  /// An error that lists the fields that are neither read nor ignored. Null and empty ones are
  /// nobody's concern.
  Status finish() const;

 private:
  const Json& json_;
  std::vector<std::string> known_;
};

}  // namespace primerl
