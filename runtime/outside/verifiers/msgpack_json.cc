#include "runtime/outside/verifiers/msgpack_json.h"

#include <algorithm>
#include <array>
#include <bit>
#include <msgpack.hpp>
#include <optional>
#include <utility>

namespace primerl {
namespace {

constexpr std::string_view kArrayTags[] = {"__nd__", "__torch_tensor__"};

/// Bytes of one item; none: a dtype that is not known here.
std::optional<int64_t> bytes_of_dtype(std::string_view dtype) {
  static constexpr std::pair<std::string_view, int64_t> kSizes[] = {
      {"bool", 1},    {"int8", 1},     {"uint8", 1},  {"int16", 2},  {"uint16", 2},
      {"float16", 2}, {"bfloat16", 2}, {"int32", 4},  {"uint32", 4}, {"float32", 4},
      {"int64", 8},   {"uint64", 8},   {"float64", 8}};
  for (const auto& [name, size] : kSizes)
    if (name == dtype) return size;
  return std::nullopt;
}

/// Number of items; none: a negative size, or more than an int64 can count.
std::optional<int64_t> items_of(const std::vector<int64_t>& shape) {
  int64_t items = 1;
  for (const int64_t size : shape)
    if (size < 0 || __builtin_mul_overflow(items, size, &items)) return std::nullopt;
  return items;
}

Result<std::vector<int64_t>> read_shape(const Json& array) {
  const Json* const shape = array.find("shape");
  if (shape == nullptr || !shape->is_array())
    return error(Code::kCorrupt, "an array has no list 'shape'");
  std::vector<int64_t> sizes;
  for (const Json& size : shape->as_array()) {
    if (!size.is_integer()) return error(Code::kCorrupt, "a size in 'shape' is {}", size.kind());
    sizes.push_back(size.as_int());
  }
  return sizes;
}

/// Checks the bytes of an array whose dtype is known.
Status check_array(const Json& array) {
  ASSIGN_OR_RETURN(const std::string dtype, array.get_string("dtype"));
  ASSIGN_OR_RETURN(const std::vector<int64_t> shape, read_shape(array));
  const Json* const data = array.find("data");
  if (data == nullptr || !data->is_string())
    return error(Code::kCorrupt, "an array has no bytes 'data'");
  const auto items = items_of(shape);
  if (!items) return error(Code::kCorrupt, "an array's shape is negative or too large");
  const auto item_bytes = bytes_of_dtype(dtype);
  if (!item_bytes) return ok();
  int64_t bytes = 0;
  if (__builtin_mul_overflow(*items, *item_bytes, &bytes) ||
      std::cmp_not_equal(bytes, data->as_string().size()))
    return error(Code::kCorrupt, "an array of {} items of {} has {} bytes", *items, dtype,
                 data->as_string().size());
  return ok();
}

/// Builds a Json from the events of msgpack::parse(); stops at the first fault.
class Builder : public msgpack::null_visitor {
 public:
  explicit Builder(const MsgpackLimits& limits) : limits_(limits) {}

  bool visit_nil() { return put(Json()); }
  bool visit_boolean(bool value) { return put(Json(value)); }
  bool visit_positive_integer(uint64_t value) {
    if (is_key_) return put(Json(std::to_string(value)));
    return put(std::cmp_less_equal(value, INT64_MAX) ? Json(static_cast<int64_t>(value))
                                                     : Json(value));
  }
  bool visit_negative_integer(int64_t value) {
    return put(is_key_ ? Json(std::to_string(value)) : Json(value));
  }
  bool visit_float32(float value) { return put(Json(static_cast<double>(value))); }
  bool visit_float64(double value) { return put(Json(value)); }
  bool visit_str(const char* text, uint32_t size) { return put(Json(std::string(text, size))); }
  bool visit_bin(const char* bytes, uint32_t size) { return put(Json(std::string(bytes, size))); }
  bool visit_ext(const char* bytes, uint32_t size) { return put(Json(std::string(bytes, size))); }
  bool start_array(uint32_t) { return open(Json::array()); }
  bool end_array() { return close(); }
  bool start_map(uint32_t) { return open(Json::object()); }
  bool start_map_key() {
    is_key_ = true;
    return true;
  }
  bool end_map_key() {
    is_key_ = false;
    return true;
  }
  bool end_map() { return check_map(open_.back()) && close(); }
  void parse_error(size_t, size_t at) { fail(fmt::format("not msgpack at byte {}", at)); }
  void insufficient_bytes(size_t, size_t at) { fail(fmt::format("it ends at byte {}", at)); }

  Json move_root() { return std::move(root_); }
  const std::optional<Error>& fault() const { return fault_; }
  size_t num_values() const { return num_values_; }

 private:
  bool fail(std::string text, Code code = Code::kCorrupt) {
    if (!fault_) fault_ = Error(code, std::move(text));
    return false;
  }
  bool put(Json value) {
    if (is_key_) {
      if (!value.is_string()) return fail(fmt::format("a key of a map is {}", value.kind()));
      open_.back().as_object().emplace_back(value.as_string(), Json());
      return true;
    }
    if (++num_values_ > limits_.values_max)
      return fail(fmt::format("it has more than {} values", limits_.values_max), Code::kExhausted);
    add(std::move(value));
    return true;
  }
  void add(Json value) {
    if (open_.empty())
      root_ = std::move(value);
    else if (open_.back().is_array())
      open_.back().push_back(std::move(value));
    else
      open_.back().as_object().back().second = std::move(value);
  }
  bool open(Json container) {
    if (is_key_) return fail("a key of a map is a list or a map");
    if (std::cmp_greater_equal(open_.size(), limits_.depth_max))
      return fail(fmt::format("it is nested deeper than {}", limits_.depth_max), Code::kExhausted);
    if (++num_values_ > limits_.values_max)
      return fail(fmt::format("it has more than {} values", limits_.values_max), Code::kExhausted);
    open_.push_back(std::move(container));
    return true;
  }
  bool close() {
    Json done = std::move(open_.back());
    open_.pop_back();
    add(std::move(done));
    return true;
  }
  bool check_map(const Json& map) {
    std::vector<std::string_view> keys;
    for (const auto& [key, value] : map.as_object()) keys.push_back(key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) return fail(fmt::format("the key '{}' appears twice", *twice));
    if (!is_wire_array(map)) return true;
    const Status checked = check_array(map);
    return checked.ok() || fail(checked.error().message());
  }

  const MsgpackLimits limits_;
  Json root_;
  std::vector<Json> open_;
  bool is_key_ = false;
  size_t num_values_ = 0;
  std::optional<Error> fault_;
};

/// The length of the UTF-8 character at the beginning of `text`; 0: not UTF-8.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  // Encodings that are too long, surrogates, and values above 10FFFF.
  const bool is_valid = (first != 0xe0 || byte(1) >= 0xa0) && (first != 0xed || byte(1) < 0xa0) &&
                        (first != 0xf0 || byte(1) >= 0x90) && (first != 0xf4 || byte(1) < 0x90);
  return is_valid ? size : 0;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

struct Sink {
  std::string bytes;
  void write(const char* data, size_t size) { bytes.append(data, size); }
};
using Packer = msgpack::packer<Sink>;

/// msgpack::packer writes a whole number as an int, which would change its type.
void write_double(double value, Sink& sink) {
  const auto bits = std::bit_cast<uint64_t>(value);
  std::array<char, 9> encoded = {static_cast<char>(0xcb)};
  for (size_t i = 0; i < 8; ++i) encoded[i + 1] = static_cast<char>(bits >> (56 - 8 * i));
  sink.write(encoded.data(), encoded.size());
}

void write_text(const std::string& text, Packer& packer) {
  const auto size = static_cast<uint32_t>(text.size());
  if (is_utf8(text)) {
    packer.pack_str(size);
    packer.pack_str_body(text.data(), size);
  } else {
    packer.pack_bin(size);
    packer.pack_bin_body(text.data(), size);
  }
}

void write_value(const Json& value, Packer& packer, Sink& sink) {
  if (value.is_null()) {
    packer.pack_nil();
  } else if (value.is_bool()) {
    packer.pack(value.as_bool());
  } else if (value.is_integer()) {
    const int64_t number = value.as_int();
    if (number < 0 && value.as_double() > 0)
      packer.pack_uint64(static_cast<uint64_t>(number));
    else
      packer.pack_int64(number);
  } else if (value.is_number()) {
    write_double(value.as_double(), sink);
  } else if (value.is_string()) {
    write_text(value.as_string(), packer);
  } else if (value.is_array()) {
    packer.pack_array(static_cast<uint32_t>(value.as_array().size()));
    for (const Json& each : value.as_array()) write_value(each, packer, sink);
  } else {
    packer.pack_map(static_cast<uint32_t>(value.as_object().size()));
    for (const auto& [key, each] : value.as_object()) {
      write_text(key, packer);
      write_value(each, packer, sink);
    }
  }
}

}  // namespace

Result<Json> read_msgpack(std::string_view bytes, const MsgpackLimits& limits) {
  MsgpackLimits own = limits;
  return read_msgpack_part(bytes, own);
}

Result<Json> read_msgpack_part(std::string_view bytes, MsgpackLimits& limits) {
  Builder builder(limits);
  size_t used = 0;
  const bool is_whole = msgpack::parse(bytes.data(), bytes.size(), used, builder);
  if (builder.fault()) return Error(*builder.fault()).while_doing("reading msgpack");
  if (!is_whole) return error(Code::kCorrupt, "reading msgpack: it ends at byte {}", bytes.size());
  if (used != bytes.size())
    return error(Code::kCorrupt, "reading msgpack: {} bytes follow the value", bytes.size() - used);
  limits.values_max -= builder.num_values();
  return builder.move_root();
}

std::string write_msgpack(const Json& value) {
  Sink sink;
  Packer packer(sink);
  write_value(value, packer, sink);
  return std::move(sink.bytes);
}

int64_t WireArray::item_bytes() const { return bytes_of_dtype(dtype).value_or(0); }

bool is_wire_array(const Json& value) {
  return std::any_of(std::begin(kArrayTags), std::end(kArrayTags), [&](std::string_view tag) {
    const Json* const found = value.find(tag);
    return found != nullptr && found->is_bool() && found->as_bool();
  });
}

Result<WireArray> read_wire_array(const Json& value) {
  if (!is_wire_array(value)) return error(Code::kCorrupt, "it is {}, not an array", value.kind());
  RETURN_IF_ERROR(check_array(value));
  WireArray array;
  ASSIGN_OR_RETURN(array.dtype, value.get_string("dtype"));
  if (array.item_bytes() == 0)
    return error(Code::kCorrupt, "an array has the unknown dtype '{}'", array.dtype);
  ASSIGN_OR_RETURN(array.shape, read_shape(value));
  ASSIGN_OR_RETURN(array.data, value.get_string("data"));
  return array;
}

Json write_wire_array(const WireArray& array) {
  return Json::object()
      .set("__nd__", true)
      .set("dtype", array.dtype)
      .set("shape", Json::list(array.shape))
      .set("data", array.data);
}

}  // namespace primerl
