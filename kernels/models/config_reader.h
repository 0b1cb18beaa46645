/// Reads the fields of one JSON object and remembers which were read. A field that was not read may
/// change the arithmetic: unknown() lists those that are not off. Errors name the field.
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
  /// Fields that must be absent, false, 0 or empty.
  Status must_be_off(std::string_view key);
  /// Whether the field is there and null.
  bool is_null(std::string_view key) const;
  /// Fields that do not change what the model computes.
  void ignore(std::initializer_list<std::string_view> keys);

  /// The fields that are neither read nor ignored nor off, quoted, in the order of the file. Off
  /// are null, false, empty arrays and objects. Names with a leading underscore are not listed:
  /// tools keep notes in them, and no model reads them.
  std::vector<std::string> unknown() const;

 private:
  const Json& json_;
  std::vector<std::string> known_;
};

}  // namespace primerl
