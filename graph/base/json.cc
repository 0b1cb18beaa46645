#include "graph/base/json.h"

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

namespace primerl {
namespace {

using Tree = nlohmann::ordered_json;

/// Builds a Json from nlohmann's parse events; stops at the first broken limit.
class Builder final : public nlohmann::json_sax<Tree> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return put(Json()); }
  bool boolean(bool value) override { return put(Json(value)); }
  bool number_integer(int64_t value) override { return put(Json(value)); }
  bool number_unsigned(uint64_t value) override {
    if (value <= static_cast<uint64_t>(INT64_MAX)) return put(Json(static_cast<int64_t>(value)));
    return put(Json(value));
  }
  bool number_float(double value, const std::string&) override { return put(Json(value)); }
  bool string(std::string& value) override { return put(Json(std::move(value))); }
  bool binary(Tree::binary_t&) override { return fail("binary values are not JSON"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (limits_.refuse_duplicate_keys && !keys_.back().insert(name).second)
      return fail(fmt::format("key '{}' appears twice", name));
    names_.back() = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& e) override {
    position_ = position;
    return fail(e.what());
  }

  Json take() { return std::move(root_); }
  const std::string& fault() const { return fault_; }
  size_t position() const { return position_; }

 private:
  bool put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_array()) {
      open_.back().push_back(std::move(value));
    } else {
      open_.back().as_object().emplace_back(std::move(names_.back()), std::move(value));
    }
    return true;
  }
  bool open(Json container) {
    if (static_cast<int>(open_.size()) >= limits_.depth_max)
      return fail(fmt::format("nested deeper than {}", limits_.depth_max));
    open_.push_back(std::move(container));
    keys_.emplace_back();
    names_.emplace_back();
    return true;
  }
  bool close() {
    Json done = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    names_.pop_back();
    return put(std::move(done));
  }
  bool fail(std::string text) {
    fault_ = std::move(text);
    return false;
  }

  const JsonLimits limits_;
  Json root_;
  std::vector<Json> open_;
  std::vector<std::set<std::string, std::less<>>> keys_;
  std::vector<std::string> names_;
  std::string fault_;
  size_t position_ = 0;
};

Tree to_tree(const Json& json) {
  if (json.is_bool()) return Tree(json.as_bool());
  if (json.is_string()) return Tree(json.as_string());
  if (json.is_array()) {
    Tree tree = Tree::array();
    for (const auto& item : json.as_array()) tree.push_back(to_tree(item));
    return tree;
  }
  if (json.is_object()) {
    Tree tree = Tree::object();
    for (const auto& [key, value] : json.as_object()) tree[key] = to_tree(value);
    return tree;
  }
  if (json.is_integer()) {
    const int64_t number = json.as_int();
    return number < 0 && json.as_double() > 0 ? Tree(static_cast<uint64_t>(number)) : Tree(number);
  }
  if (json.is_number()) return Tree(json.as_double());
  return Tree();
}

// nlohmann's text repeats its class names; keep only the part for people.
std::string plain(std::string text) {
  if (const auto colon = text.find("column "); colon != std::string::npos)
    if (const auto start = text.find(": ", colon); start != std::string::npos)
      return text.substr(start + 2);
  return text;
}

}  // namespace

std::string_view Json::kind() const {
  if (is_null()) return "null";
  if (is_bool()) return "a boolean";
  if (is_number()) return "a number";
  if (is_string()) return "a string";
  if (is_array()) return "an array";
  return "an object";
}

bool Json::as_bool() const {
  CHECK(is_bool());
  return std::get<bool>(value_);
}

int64_t Json::as_int() const {
  if (auto* value = std::get_if<int64_t>(&value_)) return *value;
  if (auto* value = std::get_if<uint64_t>(&value_)) return static_cast<int64_t>(*value);
  CHECK(is_number());
  return static_cast<int64_t>(std::get<double>(value_));
}

double Json::as_double() const {
  if (auto* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  if (auto* value = std::get_if<uint64_t>(&value_)) return static_cast<double>(*value);
  CHECK(is_number());
  return std::get<double>(value_);
}

const std::string& Json::as_string() const {
  CHECK(is_string());
  return std::get<std::string>(value_);
}

const Json::Array& Json::as_array() const {
  CHECK(is_array());
  return std::get<Array>(value_);
}

const Json::Object& Json::as_object() const {
  CHECK(is_object());
  return std::get<Object>(value_);
}

Json::Array& Json::as_array() {
  CHECK(is_array());
  return std::get<Array>(value_);
}

Json::Object& Json::as_object() {
  CHECK(is_object());
  return std::get<Object>(value_);
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& [name, value] : as_object())
    if (name == key) return &value;
  return nullptr;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  for (auto& [name, old] : as_object()) {
    if (name != key) continue;
    old = std::move(value);
    return *this;
  }
  as_object().emplace_back(std::string(key), std::move(value));
  return *this;
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array{};
  as_array().push_back(std::move(value));
}

Result<int64_t> Json::get_int(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return error(Code::kNotFound, "no key '{}'", key);
  if (value->is_integer()) return value->as_int();
  if (value->is_number()) {
    const double number = value->as_double();
    if (number == std::floor(number) && std::abs(number) < 9e15)
      return static_cast<int64_t>(number);
  }
  return error(Code::kInvalid, "'{}' is {}, not a whole number", key, value->kind());
}

Result<double> Json::get_double(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return error(Code::kNotFound, "no key '{}'", key);
  if (!value->is_number())
    return error(Code::kInvalid, "'{}' is {}, not a number", key, value->kind());
  return value->as_double();
}

Result<std::string> Json::get_string(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return error(Code::kNotFound, "no key '{}'", key);
  if (!value->is_string())
    return error(Code::kInvalid, "'{}' is {}, not a string", key, value->kind());
  return value->as_string();
}

Result<bool> Json::get_bool(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return error(Code::kNotFound, "no key '{}'", key);
  if (!value->is_bool())
    return error(Code::kInvalid, "'{}' is {}, not true or false", key, value->kind());
  return value->as_bool();
}

std::string Json::dump(int indent) const {
  return to_tree(*this).dump(indent, ' ', false, Tree::error_handler_t::replace);
}

Result<Json> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits) {
  if (text.size() > limits.bytes_max)
    return error(Code::kExhausted, "{}: {} bytes of JSON are more than the limit of {}", what,
                 text.size(), limits.bytes_max);
  // The parser would end at this byte.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    return error(Code::kInvalid, "{}: byte {} is 0, which JSON does not allow", what, zero);
  Builder builder(limits);
  if (Tree::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  size_t line = 1, column = 1;
  for (size_t i = 0; i + 1 < builder.position() && i < text.size(); ++i) {
    ++column;
    if (text[i] == '\n') ++line, column = 1;
  }
  if (builder.position() == 0) return error(Code::kInvalid, "{}: {}", what, builder.fault());
  return error(Code::kInvalid, "{}:{}:{}: {}", what, line, column, plain(builder.fault()));
}

}  // namespace primerl
