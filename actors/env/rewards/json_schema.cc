#include "actors/env/rewards/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "actors/common/text.h"
#include "actors/env/reward_texts.h"
#include "graph/base/suggest.h"

namespace primerl {
namespace {

const std::vector<std::string> kTypes = {"object",  "array",   "string", "number",
                                         "integer", "boolean", "null"};
// "$ref" is refused: a schema that is not read would make every answer right.
constexpr std::array<std::string_view, 8> kIgnored = {
    "title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs"};
constexpr std::array<std::string_view, 4> kCounts = {"minItems", "maxItems", "minLength",
                                                     "maxLength"};
// The limits apply to schemas and answers: each level of a value needs one of the schema.
constexpr JsonLimits kLimits{.bytes_max = size_t{1} << 20, .depth_max = 32};

template <size_t kSize>
bool is_one_of(const std::array<std::string_view, kSize>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool has_type(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  return value.is_integer() ||
         (value.is_number() && std::floor(value.as_double()) == value.as_double());
}

Status check_types(const Json& type) {
  const auto check = [](const Json& name) -> Status {
    if (name.is_string() &&
        std::find(kTypes.begin(), kTypes.end(), name.as_string()) != kTypes.end())
      return ok();
    return error(Code::kInvalid, "'type' is {}", name.dump()).note("types: " + join_names(kTypes));
  };
  if (!type.is_array()) return check(type);
  for (const Json& each : type.as_array()) RETURN_IF_ERROR(check(each));
  return ok();
}

Status check_schema_key(std::string_view key, const Json& value) {
  const auto expect = [&](bool is_right, std::string_view what) -> Status {
    if (is_right) return ok();
    return error(Code::kInvalid, "'{}' is {}, not {}", key, value.kind(), what);
  };
  if (key == "type") return check_types(value);
  if (key == "const" || is_one_of(kIgnored, key)) return ok();
  if (key == "enum") return expect(value.is_array(), "a list");
  if (key == "additionalProperties") return expect(value.is_bool(), "true or false");
  if (key == "minimum" || key == "maximum") return expect(value.is_number(), "a number");
  if (is_one_of(kCounts, key)) return expect(value.is_integer(), "a whole number");
  if (key == "items") return check_schema(value);
  if (key == "required") {
    RETURN_IF_ERROR(expect(value.is_array(), "a list of strings"));
    for (const Json& name : value.as_array())
      RETURN_IF_ERROR(expect(name.is_string(), "a list of strings"));
    return ok();
  }
  if (key != "properties")
    return error(Code::kInvalid, "the key '{}' is not supported", key)
        .note(
            "supported: type, enum, const, properties, required, additionalProperties, items, "
            "minItems, maxItems, minLength, maxLength, minimum and maximum");
  RETURN_IF_ERROR(expect(value.is_object(), "an object"));
  for (const auto& [name, schema] : value.as_object())
    if (Status fault = check_schema(schema); !fault.ok())
      return std::move(fault).error().while_doing(fmt::format("property '{}'", name));
  return ok();
}

bool is_equal(const Json& one, const Json& other) {
  if (one.is_number() && other.is_number()) return one.as_double() == other.as_double();
  return one == other;
}

/// Whether `count` is within the limits of these keys.
bool is_within(const Json& schema, double count, std::string_view least, std::string_view most) {
  const Json* low = schema.find(least);
  const Json* high = schema.find(most);
  return (low == nullptr || count >= low->as_double()) &&
         (high == nullptr || count <= high->as_double());
}

double num_characters(const std::string& text) {
  return static_cast<double>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

bool fits_object(const Json& value, const Json& schema) {
  if (const Json* required = schema.find("required"))
    for (const Json& name : required->as_array())
      if (value.find(name.as_string()) == nullptr) return false;
  const Json* properties = schema.find("properties");
  const Json* others = schema.find("additionalProperties");
  const bool may_have_others = others == nullptr || others->as_bool();
  for (const auto& [name, member] : value.as_object()) {
    const Json* known = properties == nullptr ? nullptr : properties->find(name);
    if (known == nullptr ? !may_have_others : !fits_schema(member, *known)) return false;
  }
  return true;
}

/// Without a fence around it.
std::string_view without_fence(std::string_view text) {
  text = trimmed(text);
  if (!text.starts_with("```") || !text.ends_with("```") || text.size() < 6) return text;
  const size_t line_end = text.find('\n');
  if (line_end == std::string_view::npos) return text;
  return trimmed(text.substr(line_end, text.size() - line_end - 3));
}

class JsonSchema final : public Reward {
 public:
  explicit JsonSchema(Json schema) : schema_(std::move(schema)) {}

  Result<double> score(const EnvironmentTask&, const std::vector<std::string>& actions,
                       double) override {
    ASSIGN_OR_RETURN(const std::string* said, last_turn(actions));
    const auto value = parse_json(without_fence(*said), "the answer", kLimits);
    return value.ok() && fits_schema(*value, schema_) ? 1.0 : 0.0;
  }

 private:
  const Json schema_;
};

}  // namespace

Status check_schema(const Json& schema) {
  if (!schema.is_object())
    return error(Code::kInvalid, "a schema is an object, not {}", schema.kind());
  for (const auto& [key, value] : schema.as_object()) RETURN_IF_ERROR(check_schema_key(key, value));
  return ok();
}

bool fits_schema(const Json& value, const Json& schema) {
  if (const Json* type = schema.find("type")) {
    const bool fits =
        type->is_string()
            ? has_type(value, type->as_string())
            : std::any_of(type->as_array().begin(), type->as_array().end(),
                          [&](const Json& each) { return has_type(value, each.as_string()); });
    if (!fits) return false;
  }
  if (const Json* constant = schema.find("const"))
    if (!is_equal(value, *constant)) return false;
  if (const Json* choices = schema.find("enum"))
    if (std::none_of(choices->as_array().begin(), choices->as_array().end(),
                     [&](const Json& each) { return is_equal(value, each); }))
      return false;
  if (value.is_number()) return is_within(schema, value.as_double(), "minimum", "maximum");
  if (value.is_string())
    return is_within(schema, num_characters(value.as_string()), "minLength", "maxLength");
  if (value.is_object()) return fits_object(value, schema);
  if (!value.is_array()) return true;
  const auto& items = value.as_array();
  const Json* each = schema.find("items");
  return is_within(schema, static_cast<double>(items.size()), "minItems", "maxItems") &&
         (each == nullptr || std::all_of(items.begin(), items.end(), [&](const Json& item) {
            return fits_schema(item, *each);
          }));
}

OptionSet json_schema_options() {
  return OptionsOf<JsonSchemaOptions>().field(
      "schema", &JsonSchemaOptions::schema, at_least(1) | required(),
      "JSON Schema as text: type, enum, const, properties, required, additionalProperties, items "
      "and limits");
}

Result<std::unique_ptr<Reward>> make_json_schema(const JsonSchemaOptions& options) {
  ASSIGN_OR_RETURN(Json schema, parse_json(options.schema, "'schema'", kLimits));
  if (Status fault = check_schema(schema); !fault.ok())
    return std::move(fault).error().while_doing("'schema'");
  return std::unique_ptr<Reward>(std::make_unique<JsonSchema>(std::move(schema)));
}

}  // namespace primerl
