#include "actors/tinker/body.h"

#include <cmath>
#include <utility>

#include "actors/tinker/names.h"

namespace primerl::tinker {
namespace {

Error wrong_member(std::string_view key, const Json& value, std::string_view wanted) {
  return error(Code::kInvalid, "'{}' is {}, not {}", key, value.kind(), wanted);
}

Error missing_member(std::string_view key) {
  return error(Code::kInvalid, "the request has no '{}'", key);
}

}  // namespace

Result<Body> Body::read(std::string_view text) {
  ASSIGN_OR_RETURN(Json json, parse_json(text, "the body"));
  if (!json.is_object()) return error(Code::kInvalid, "the body is {}, not an object", json.kind());
  return Body(std::move(json));
}

const Json* Body::find(std::string_view key) const {
  const Json* const found = json_.find(key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

Result<std::optional<int64_t>> Body::integer(std::string_view key, int64_t least,
                                             int64_t most) const {
  const Json* const found = find(key);
  if (found == nullptr) return std::optional<int64_t>();
  if (!found->is_integer()) return wrong_member(key, *found, "an integer");
  const int64_t value = found->as_int();
  if (value < least || value > most)
    return error(Code::kInvalid, "'{}' is {}, not from {} to {}", key, value, least, most);
  return std::optional(value);
}

Result<int64_t> Body::needed_integer(std::string_view key, int64_t least, int64_t most) const {
  ASSIGN_OR_RETURN(const auto value, integer(key, least, most));
  if (!value) return missing_member(key);
  return *value;
}

Result<double> Body::number(std::string_view key, double otherwise) const {
  const Json* const found = find(key);
  if (found == nullptr) return otherwise;
  if (!found->is_number()) return wrong_member(key, *found, "a number");
  const double value = found->as_double();
  if (!std::isfinite(value)) return error(Code::kInvalid, "'{}' is not finite", key);
  return value;
}

Result<bool> Body::boolean(std::string_view key, bool otherwise) const {
  const Json* const found = find(key);
  if (found == nullptr) return otherwise;
  if (!found->is_bool()) return wrong_member(key, *found, "true or false");
  return found->as_bool();
}

Result<std::string> Body::text(std::string_view key) const {
  const Json* const found = find(key);
  if (found == nullptr) return std::string();
  if (!found->is_string()) return wrong_member(key, *found, "a string");
  return found->as_string();
}

Result<std::string> Body::needed_name(std::string_view key) const {
  if (find(key) == nullptr) return missing_member(key);
  ASSIGN_OR_RETURN(std::string name, text(key));
  RETURN_IF_ERROR(check_name(key, name));
  return name;
}

Result<std::optional<Body>> Body::object(std::string_view key) const {
  const Json* const found = find(key);
  if (found == nullptr) return std::optional<Body>();
  if (!found->is_object()) return wrong_member(key, *found, "an object");
  return std::optional(Body(*found));
}

}  // namespace primerl::tinker
