/// Reads the fields of one JSON object and remembers which were read. A field that was not read is
/// an error, because it may change the arithmetic. Errors name the field.
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
  /// `json`, an object, must stay valid while the reader exists.
  explicit ConfigReader(const Json& json) : json_(json) {}

  /// The value, or null if the field is absent or null.
  const Json* find(std::string_view key);

  // Each of these leaves `value` unchanged if the field is absent.
  Status read_flag(std::string_view key, bool& value);
  Status read_text(std::string_view key, std::string& value);
  /// A whole number, at least `least`.
  Status read_count(std::string_view key, int32_t& value, int32_t least = 1);
  /// The same, but the field is required.
  Status need_count(std::string_view key, int32_t& value);
  /// A finite number above 0.
  Status read_positive(std::string_view key, double& value);

  /// Fields that must be absent or have exactly this value: other values are not supported here.
  Status must_be(std::string_view key, const Json& value);
  /// Fields that do not change what the model computes.
  void ignore(std::initializer_list<std::string_view> keys);

  /// An error that lists the fields that are neither read nor ignored. Null and empty fields are
  /// allowed.
  Status finish() const;

 private:
  const Json& json_;
  std::vector<std::string> known_;
};

}  // namespace primerl
