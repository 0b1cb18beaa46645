#include "runtime/trace/schema.h"

#include <cstring>

#include "runtime/wire/msgpack_codec.h"
#include "runtime/wire/payload_check.h"

namespace primerl {
namespace {

using Kind = FieldSchema::Kind;

/// Parses the text and keeps the first fault.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), left_(text) {}

  FieldSchema fields(size_t depth) {
    FieldSchema node;
    while (ok() && !left_.empty() && left_.front() != '}') {
      const auto colon = left_.find(':');
      if (colon == std::string_view::npos || colon == 0 || colon > 200) {
        fail("a field has no name");
        break;
      }
      node.names.emplace_back(left_.substr(0, colon));
      left_.remove_prefix(colon + 1);
      add(node, type(depth + 1));
      skip(';');
    }
    return node;
  }
  Status finish() {
    if (ok() && !left_.empty()) fail("something follows the last field");
    return fault_;
  }

 private:
  static void add(FieldSchema& node, FieldSchema child) {
    node.has_version |= child.has_version;
    node.has_step |= child.has_step;
    node.children.push_back(std::move(child));
  }
  FieldSchema type(size_t depth) {
    if (depth >= kNestingMax) {
      fail("it is nested too deeply");
      return {};
    }
    if (!left_.empty() && left_.front() == '{') {
      skip('{');
      auto node = fields(depth);
      skip('}');
      return node;
    }
    const std::string_view word = left_.substr(0, left_.find_first_of("<>;:{}"));
    left_.remove_prefix(word.size());
    if (word != "list") return scalar(word);
    FieldSchema node;
    node.kind = Kind::kList;
    skip('<');
    add(node, type(depth + 1));
    skip('>');
    return node;
  }
  FieldSchema scalar(std::string_view word) {
    static constexpr struct {
      std::string_view word;
      Kind kind;
      int width;
    } kWords[] = {
        {"bool", Kind::kBoolean, 8},       {"i8", Kind::kSigned, 8},
        {"i16", Kind::kSigned, 16},        {"i32", Kind::kSigned, 32},
        {"i64", Kind::kSigned, 64},        {"u8", Kind::kUnsigned, 8},
        {"u16", Kind::kUnsigned, 16},      {"u32", Kind::kUnsigned, 32},
        {"u64", Kind::kUnsigned, 64},      {"enum8", Kind::kEnum, 8},
        {"enum16", Kind::kEnum, 16},       {"enum32", Kind::kEnum, 32},
        {"enum64", Kind::kEnum, 64},       {"f32", Kind::kNumber, 32},
        {"f64", Kind::kNumber, 64},        {"text", Kind::kText, 0},
        {"blob", Kind::kBlob, 0},          {"version", Kind::kVersion, 64},
        {"duration", Kind::kDuration, 64}, {"step", Kind::kStep, 0},
        {"id32", Kind::kId, 32},           {"id64", Kind::kId, 64},
    };
    FieldSchema node;
    for (const auto& known : kWords)
      if (known.word == word) {
        node.kind = known.kind;
        node.width = known.width;
        node.has_version = known.kind == Kind::kVersion;
        node.has_step = known.kind == Kind::kStep;
        return node;
      }
    fail(fmt::format("'{}' is no type", word));
    return node;
  }
  void skip(char expected) {
    if (!left_.empty() && left_.front() == expected)
      left_.remove_prefix(1);
    else
      fail(fmt::format("a '{}' is missing", expected));
  }
  bool ok() const { return fault_.ok(); }
  void fail(std::string_view what) {
    if (!ok()) return;
    fault_ =
        error(Code::kCorrupt, "at character {} of a schema: {}", text_.size() - left_.size(), what);
    left_ = {};
  }

  std::string_view text_, left_;
  Status fault_;
};

/// Passes every value of a body to a FieldWriter, with the same calls as wire::write. The writer's
/// `kind`, if it has one, is called before each value.
template <class Writer>
class Walk {
 public:
  Walk(FieldReader& in, Writer& out) : in_(in), out_(out) {}

  void value(const FieldSchema& node) {
    if (!in_.ok()) return;
    if constexpr (requires { out_.kind(node); }) out_.kind(node);
    switch (node.kind) {
      case Kind::kStruct:
        return fields(node);
      case Kind::kList:
        return list(node);
      case Kind::kBoolean:
        return out_.boolean(in_.boolean());
      case Kind::kSigned:
        return out_.integer(in_range(in_.integer(), node));
      case Kind::kUnsigned:
      case Kind::kId:
        return out_.unsigned_integer(in_range(in_.unsigned_integer(), node));
      case Kind::kEnum:
      case Kind::kVersion:
      case Kind::kDuration:
        return out_.integer(in_.integer());
      case Kind::kNumber:
        return out_.number(in_.number());
      case Kind::kText:
        return out_.text(in_.text());
      case Kind::kBlob:
        return out_.blob(in_.blob());
      case Kind::kStep:
        return step();
    }
  }

 private:
  int64_t in_range(int64_t value, const FieldSchema& node) {
    const int shift = 64 - node.width;
    if (static_cast<int64_t>(static_cast<uint64_t>(value) << shift) >> shift != value)
      in_.fail(error(Code::kCorrupt, "{} does not fit {} bits", value, node.width));
    return value;
  }
  uint64_t in_range(uint64_t value, const FieldSchema& node) {
    if (node.width < 64 && value >> node.width != 0)
      in_.fail(error(Code::kCorrupt, "{} does not fit {} bits", value, node.width));
    return value;
  }
  void fields(const FieldSchema& node) {
    in_.begin_struct(node.children.size());
    out_.begin_struct(node.children.size());
    for (size_t i = 0; i < node.children.size() && in_.ok(); ++i) {
      out_.name(node.names[i]);
      value(node.children[i]);
    }
    in_.end_struct();
    out_.end_struct();
  }
  void list(const FieldSchema& node) {
    const FieldSchema& item = node.children.front();
    if (node.is_raw()) {
      const Blob run = in_.array();
      const auto bytes = run.bytes();
      const auto width = static_cast<size_t>(item.width) / 8;
      if (bytes.size() % width != 0)
        return in_.fail(error(Code::kCorrupt, "{} bytes are no whole number of items of {}",
                              bytes.size(), width));
      return out_.bytes(bytes);
    }
    const size_t size = in_.begin_list();
    out_.begin_list(size);
    for (size_t i = 0; i < size && in_.ok(); ++i) value(item);
    in_.end_list();
    out_.end_list();
  }
  void step() {
    if (in_.begin_list() != 2)
      return in_.fail(error(Code::kCorrupt, "a step reference has two numbers"));
    FieldSchema instance;
    instance.width = 32;
    out_.begin_list(2);
    out_.unsigned_integer(in_range(in_.unsigned_integer(), instance));
    out_.unsigned_integer(in_.unsigned_integer());
    in_.end_list();
    out_.end_list();
  }

  FieldReader& in_;
  Writer& out_;
};

template <class Writer>
Status walk(const FieldSchema& schema, std::span<const std::byte> body, std::span<const Blob> blobs,
            Writer& writer) {
  if (body.size() > kMessageBytesMax)
    return error(Code::kCorrupt, "a body of {} bytes is above the limit of {}", body.size(),
                 kMessageBytesMax);
  MsgpackReader reader(body, blobs);
  Walk<Writer>(reader, writer).value(schema);
  return reader.finish();
}

class Ignore : public FieldWriter {
 public:
  void begin_struct(size_t) override {}
  void name(std::string_view) override {}
  void end_struct() override {}
  void begin_list(size_t) override {}
  void end_list() override {}
  void boolean(bool) override {}
  void integer(int64_t) override {}
  void unsigned_integer(uint64_t) override {}
  void number(double) override {}
  void text(std::string_view) override {}
  void bytes(std::span<const std::byte>) override {}
  void blob(const Blob&) override {}
};

class JsonWriter final : public FieldWriter {
 public:
  explicit JsonWriter(bool only_counts) : only_counts_(only_counts) {}
  void kind(const FieldSchema& node) { node_ = &node; }
  void begin_struct(size_t) override { open(Json::object()); }
  void name(std::string_view field) override { places_.back().name = field; }
  void end_struct() override { close(); }
  void begin_list(size_t) override { open(Json::array()); }
  void end_list() override { close(); }
  void boolean(bool value) override { put(value); }
  void integer(int64_t value) override { put(value); }
  void unsigned_integer(uint64_t value) override {
    // Ids with the value "none".
    const bool is_none = node_->kind == Kind::kId &&
                         value == (node_->width == 32 ? uint64_t{UINT32_MAX} : UINT64_MAX);
    put(is_none ? Json() : Json(value));
  }
  void number(double value) override { put(value); }
  void text(std::string_view value) override { put(value); }
  void bytes(std::span<const std::byte> value) override {
    const FieldSchema& item = node_->children.front();
    if (only_counts_)
      return put(static_cast<uint64_t>(value.size()) * 8 / static_cast<uint64_t>(item.width));
    Json::Array list;
    if (item.kind == Kind::kNumber)
      list = numbers<float, double>(value);
    else if (item.width == 8)
      list = numbers<uint8_t, int64_t>(value);
    else
      list = numbers<int32_t, int64_t>(value);
    put(std::move(list));
  }
  void blob(const Blob& value) override {
    put(Json::object().set("blob_bytes", static_cast<uint64_t>(value.size())));
  }
  Json take() { return std::move(result_); }

 private:
  struct Place {
    Json value;
    std::string name;
  };
  template <class From, class To>
  static Json::Array numbers(std::span<const std::byte> bytes) {
    Json::Array list;
    list.reserve(bytes.size() / sizeof(From));
    for (size_t at = 0; at + sizeof(From) <= bytes.size(); at += sizeof(From)) {
      From item;
      std::memcpy(&item, bytes.data() + at, sizeof item);
      list.emplace_back(static_cast<To>(item));
    }
    return list;
  }
  void open(Json value) { places_.push_back({std::move(value), {}}); }
  void close() {
    Json value = std::move(places_.back().value);
    places_.pop_back();
    put(std::move(value));
  }
  void put(Json value) {
    if (places_.empty())
      result_ = std::move(value);
    else if (places_.back().value.is_array())
      places_.back().value.push_back(std::move(value));
    else  // not set(): a forged schema may repeat a name, and a search per field would be quadratic
      places_.back().value.as_object().emplace_back(places_.back().name, std::move(value));
  }

  const bool only_counts_;
  const FieldSchema* node_ = nullptr;
  std::vector<Place> places_;
  Json result_;
};

class VersionWriter final : public Ignore {
 public:
  void kind(const FieldSchema& node) { is_version_ = node.kind == Kind::kVersion; }
  void integer(int64_t value) override {
    if (is_version_ && value >= 0) found.push_back(value);
  }
  std::vector<int64_t> found;

 private:
  bool is_version_ = false;
};

class StepWriter final : public Ignore {
 public:
  void kind(const FieldSchema& node) { place_ = node.kind == Kind::kStep ? 1 : 0; }
  void unsigned_integer(uint64_t value) override {
    if (place_ == 1) instance_ = static_cast<uint32_t>(value);
    if (place_ == 2 && value > 0) found.push_back({InstanceId(instance_), value});
    if (place_ > 0) ++place_;
  }
  std::vector<StepRef> found;

 private:
  int place_ = 0;
  uint32_t instance_ = 0;
};

}  // namespace

bool FieldSchema::is_raw() const {
  if (kind != Kind::kList) return false;
  const FieldSchema& item = children.front();
  return (item.kind == Kind::kSigned && item.width == 32) ||
         (item.kind == Kind::kNumber && item.width == 32) ||
         (item.kind == Kind::kUnsigned && item.width == 8);
}

Result<FieldSchema> read_schema(std::string_view text) {
  if (text.size() > kSchemaBytesMax)
    return error(Code::kCorrupt, "a schema of {} bytes is above the limit of {}", text.size(),
                 kSchemaBytesMax);
  Parser parser(text);
  FieldSchema node = parser.fields(0);
  RETURN_IF_ERROR(parser.finish());
  return node;
}

Result<Json> body_json(const FieldSchema& schema, std::span<const std::byte> body,
                       std::span<const Blob> blobs) {
  JsonWriter writer(false);
  RETURN_IF_ERROR(walk(schema, body, blobs, writer));
  return writer.take();
}

Result<Json> body_outline(const FieldSchema& schema, std::span<const std::byte> body,
                          std::span<const Blob> blobs) {
  JsonWriter writer(true);
  RETURN_IF_ERROR(walk(schema, body, blobs, writer));
  return writer.take();
}

Result<uint64_t> body_check(const FieldSchema& schema, uint64_t schema_hash,
                            std::span<const std::byte> body, std::span<const Blob> blobs) {
  PayloadCheck check(schema_hash);
  RETURN_IF_ERROR(walk(schema, body, blobs, check));
  return check.value();
}

Result<std::vector<int64_t>> body_versions(const FieldSchema& schema,
                                           std::span<const std::byte> body,
                                           std::span<const Blob> blobs) {
  VersionWriter writer;
  RETURN_IF_ERROR(walk(schema, body, blobs, writer));
  return std::move(writer.found);
}

Result<std::vector<StepRef>> body_steps(const FieldSchema& schema, std::span<const std::byte> body,
                                        std::span<const Blob> blobs) {
  StepWriter writer;
  RETURN_IF_ERROR(walk(schema, body, blobs, writer));
  return std::move(writer.found);
}

}  // namespace primerl
