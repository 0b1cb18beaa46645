#include "kernels/models/config_reader.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace primerl {
namespace {

bool changes_nothing(const Json& value) {
  return value.is_null() || value == Json(false) ||
         (value.is_array() && value.as_array().empty()) ||
         (value.is_object() && value.as_object().empty());
}

}  // namespace

const Json* ConfigReader::find(std::string_view key) {
  known_.emplace_back(key);
  const Json* value = json_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

Status ConfigReader::read_flag(std::string_view key, bool& value) {
  if (find(key) == nullptr) return ok();
  ASSIGN_OR_RETURN(value, json_.get_bool(key));
  return ok();
}

Status ConfigReader::read_text(std::string_view key, std::string& value) {
  if (find(key) == nullptr) return ok();
  ASSIGN_OR_RETURN(value, json_.get_string(key));
  return ok();
}

Status ConfigReader::read_count(std::string_view key, int32_t& value, int32_t least) {
  if (find(key) == nullptr) return ok();
  ASSIGN_OR_RETURN(const int64_t given, json_.get_int(key));
  constexpr int32_t most = std::numeric_limits<int32_t>::max();
  if (given < least || given > most)
    return error(Code::kInvalid, "'{}' is {}", key, given)
        .note(fmt::format("it is a whole number from {} to {}", least, most));
  value = static_cast<int32_t>(given);
  return ok();
}

Status ConfigReader::need_count(std::string_view key, int32_t& value) {
  if (find(key) == nullptr) return json_.get_int(key).error();
  return read_count(key, value);
}

Status ConfigReader::read_positive(std::string_view key, double& value) {
  if (find(key) == nullptr) return ok();
  ASSIGN_OR_RETURN(const double given, json_.get_double(key));
  if (!std::isfinite(given) || given <= 0)
    return error(Code::kInvalid, "'{}' is {}", key, given).note("it is a number above 0");
  value = given;
  return ok();
}

Status ConfigReader::must_be(std::string_view key, const Json& value) {
  const Json* given = find(key);
  if (given == nullptr || *given == value) return ok();
  // 0 and 0.0 are equal.
  if (given->is_number() && value.is_number() && given->as_double() == value.as_double())
    return ok();
  return error(Code::kInvalid, "'{}' is {}; only {} is supported", key, given->dump(),
               value.dump());
}

Status ConfigReader::must_be_off(std::string_view key) {
  const Json* given = find(key);
  if (given == nullptr || changes_nothing(*given) ||
      (given->is_number() && given->as_double() == 0))
    return ok();
  return error(Code::kInvalid, "'{}' is {}, which is not supported", key, given->dump())
      .note("it changes what the model computes");
}

bool ConfigReader::is_null(std::string_view key) const {
  const Json* value = json_.find(key);
  return value != nullptr && value->is_null();
}

void ConfigReader::ignore(std::initializer_list<std::string_view> keys) {
  for (const auto key : keys) known_.emplace_back(key);
}

std::vector<std::string> ConfigReader::unknown() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json_.as_object())
    if (!key.starts_with('_') && !changes_nothing(value) &&
        std::find(known_.begin(), known_.end(), key) == known_.end())
      keys.push_back(fmt::format("'{}'", key));
  return keys;
}

}  // namespace primerl
