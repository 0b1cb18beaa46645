#include "tests/graph/schema_check.h"

#include <algorithm>
#include <regex>

namespace primerl::testing {
namespace {

Json to_json(const Value& value) {
  if (value.is_bool()) return value.as_bool();
  if (value.is_integer()) return value.as_integer();
  if (value.is_number()) return value.as_number();
  if (value.is_string()) return value.as_string();
  if (value.is_table()) return testing::to_json(value.as_table());
  Json list = Json::array();
  if (value.is_array())
    for (const auto& item : value.as_array()) list.push_back(to_json(item));
  return list;
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_bool();
  if (type == "integer") return value.is_integer();
  CHECK(type == "number", "a type the schema check does not know");
  return value.is_number();
}

bool matches(const std::string& text, const Json& pattern) {
  return std::regex_search(text, std::regex(pattern.as_string()));
}

class Check {
 public:
  Check(const Json& root, const Json& schema, const Json& value, const std::string& path)
      : root_(root), schema_(schema), value_(value), path_(path) {}

  std::vector<std::string> run() {
    for (const auto& [keyword, argument] : schema_.as_object()) apply(keyword, argument);
    return std::move(faults_);
  }

 private:
  void apply(const std::string& keyword, const Json& argument) {
    if (keyword == "$ref") {
      constexpr std::string_view kDefinitions = "#/definitions/";
      CHECK(argument.as_string().starts_with(kDefinitions), argument.as_string());
      const Json* named = root_.find("definitions");
      const Json* found = named->find(argument.as_string().substr(kDefinitions.size()));
      CHECK(found != nullptr, argument.as_string());
      add(check(*found, value_, path_));
    } else if (keyword == "type") {
      expect(has_type(value_, argument.as_string()), "is no " + argument.as_string());
    } else if (keyword == "enum") {
      const auto& choices = argument.as_array();
      expect(std::find(choices.begin(), choices.end(), value_) != choices.end(), "is no choice");
    } else if (keyword == "pattern") {
      expect(!value_.is_string() || matches(value_.as_string(), argument), "has another pattern");
    } else if (keyword == "minItems") {
      expect(
          !value_.is_array() || static_cast<int64_t>(value_.as_array().size()) >= argument.as_int(),
          "has too few items");
    } else if (keyword == "maxItems") {
      expect(
          !value_.is_array() || static_cast<int64_t>(value_.as_array().size()) <= argument.as_int(),
          "has too many items");
    } else if (keyword == "minimum" || keyword == "maximum") {
      limit(keyword == "minimum", argument.as_double());
    } else if (keyword == "oneOf" || keyword == "anyOf") {
      size_t num_fitting = 0;
      for (const auto& one : argument.as_array())
        num_fitting += check(one, value_, path_).empty() ? 1 : 0;
      expect(keyword == "oneOf" ? num_fitting == 1 : num_fitting > 0, "fits no variant");
    } else if (keyword == "items" && value_.is_array()) {
      for (const auto& item : value_.as_array()) add(check(argument, item, path_ + "[]"));
    } else if (keyword == "required" && value_.is_object()) {
      for (const auto& key : argument.as_array())
        expect(value_.find(key.as_string()) != nullptr, "lacks " + key.as_string());
    } else if (keyword == "additionalProperties") {
      if (value_.is_object()) members();
    } else {
      const std::vector<std::string> others = {
          "$schema",           "definitions",      "title",           "description",
          "default",           "properties",       "items",           "required",
          "patternProperties", "exclusiveMinimum", "exclusiveMaximum"};
      CHECK(std::find(others.begin(), others.end(), keyword) != others.end(), keyword);
    }
  }

  std::vector<std::string> check(const Json& schema, const Json& value,
                                 const std::string& path) const {
    return Check(root_, schema, value, path).run();
  }

  void limit(bool is_minimum, double bound) {
    if (!value_.is_number()) return;
    const double number = value_.as_double();
    const Json* excluded = schema_.find(is_minimum ? "exclusiveMinimum" : "exclusiveMaximum");
    const bool strict = excluded != nullptr && excluded->as_bool();
    const bool fits = strict ? (is_minimum ? number > bound : number < bound)
                             : (is_minimum ? number >= bound : number <= bound);
    expect(fits, "is out of range");
  }

  /// Every schema of ours is closed: a member is named, matches a pattern, or is a fault.
  void members() {
    const Json* named = schema_.find("properties");
    const Json* patterns = schema_.find("patternProperties");
    for (const auto& [key, member] : value_.as_object()) {
      const std::string path = path_.empty() ? key : path_ + "." + key;
      const Json* found = named != nullptr ? named->find(key) : nullptr;
      if (patterns != nullptr)
        for (const auto& [pattern, schema] : patterns->as_object())
          if (matches(key, pattern)) found = &schema;
      if (found != nullptr)
        add(check(*found, member, path));
      else
        faults_.push_back(path + ": is not known");
    }
  }

  void expect(bool holds, const std::string& words) {
    if (!holds) faults_.push_back(path_ + ": " + words);
  }
  void add(std::vector<std::string> faults) {
    faults_.insert(faults_.end(), faults.begin(), faults.end());
  }

  const Json& root_;
  const Json& schema_;
  const Json& value_;
  const std::string& path_;
  std::vector<std::string> faults_;
};

}  // namespace

Json to_json(const Table& table) {
  Json object = Json::object();
  for (const auto& entry : table.entries) object.set(entry.key, to_json(entry.value));
  return object;
}

std::vector<std::string> schema_faults(const Json& schema, const Json& value,
                                       const std::string& path) {
  return Check(schema, schema, value, path).run();
}

}  // namespace primerl::testing
