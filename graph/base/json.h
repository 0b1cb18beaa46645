/// JSON values: model configs, tokenizers and manifests are read, metrics and `--json` output
/// written.
///
/// A plain value. Objects keep the order in which they were written, so output is stable. Parsing
/// is strict (RFC 8259), bounded (`JsonLimits`) and reports line and column. Integers that fit into
/// 64 bits stay exact.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;  // null
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<int64_t>(value)) {}
  Json(int64_t value) : value_(value) {}
  Json(uint32_t value) : value_(static_cast<int64_t>(value)) {}
  Json(uint64_t value) : value_(value) {}
  Json(double value) : value_(value) {}  // NaN and infinities are written as null
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }
  /// An array of numbers or strings.
  template <class T>
  static Json list(const std::vector<T>& values) {
    Array array;
    array.reserve(values.size());
    for (const auto& value : values) array.emplace_back(value);
    return Json(std::move(array));
  }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const {
    return std::holds_alternative<int64_t>(value_) || std::holds_alternative<uint64_t>(value_);
  }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  /// "null", "boolean", "number", ... for error texts.
  std::string_view kind() const;

  /// A value of another kind is a CHECK failure: call is_*() before, or use the typed getters
  /// below.
  bool as_bool() const;
  int64_t as_int() const;  // a double that is a whole number, too
  double as_double() const;
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;
  Array& as_array();
  Object& as_object();

  /// The member; null if it is missing or this is not an object.
  const Json* find(std::string_view key) const;
  /// Sets or replaces a member; null becomes an object. Returns *this so that calls can be chained.
  Json& set(std::string_view key, Json value);
  void push_back(Json value);

  /// Typed reads. The error names the key and the value that it has.
  Result<int64_t> get_int(std::string_view key) const;
  Result<double> get_double(std::string_view key) const;
  Result<std::string> get_string(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;

  /// One line if indent < 0, else several. Doubles have the shortest exact digits.
  std::string dump(int indent = -1) const;

  friend bool operator==(const Json&, const Json&) = default;

 private:
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  size_t bytes_max = size_t{256} << 20;
  int depth_max = 64;
  bool refuse_duplicate_keys = true;
};

/// `what` names the text in errors ("model/config.json").
Result<Json> parse_json(std::string_view text, std::string_view what,
                        const JsonLimits& limits = {});

}  // namespace primerl
