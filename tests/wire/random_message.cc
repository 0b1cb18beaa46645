#include "tests/wire/random_message.h"

#include <bit>

namespace primerl {
namespace {

/// The grammar: fields = { name ":" type ";" }; type = word | "list<" type ">" | "{" fields "}".
class SchemaParser {
 public:
  explicit SchemaParser(std::string_view text) : left_(text) {}

  SchemaNode fields() {
    SchemaNode node{"{", {}};
    while (!left_.empty() && left_.front() != '}') {
      left_.remove_prefix(left_.find(':') + 1);
      node.children.push_back(type());
      skip(';');
    }
    return node;
  }

 private:
  SchemaNode type() {
    if (left_.front() == '{') {
      skip('{');
      auto node = fields();
      skip('}');
      return node;
    }
    const auto end = left_.find_first_of("<>;");
    SchemaNode node{std::string(left_.substr(0, end)), {}};
    left_.remove_prefix(end);
    if (node.kind == "list") {
      skip('<');
      node.children.push_back(type());
      skip('>');
    }
    return node;
  }
  void skip(char expected) {
    CHECK(!left_.empty() && left_.front() == expected, "the schema has another grammar");
    left_.remove_prefix(1);
  }
  std::string_view left_;
};

uint64_t width_of(const SchemaNode& node) {
  const auto digit = node.kind.find_first_of("0123456789");
  return digit == std::string::npos ? 64 : std::stoull(node.kind.substr(digit));
}

class Transcript final : public FieldWriter {
 public:
  std::vector<std::string> lines;
  void begin_struct(size_t size) override { lines.push_back(fmt::format("struct {}", size)); }
  void name(std::string_view field) override { lines.push_back(fmt::format("name {}", field)); }
  void end_struct() override { lines.emplace_back("end struct"); }
  void begin_list(size_t size) override { lines.push_back(fmt::format("list {}", size)); }
  void end_list() override { lines.emplace_back("end list"); }
  void boolean(bool value) override { lines.push_back(fmt::format("boolean {}", value)); }
  void integer(int64_t value) override { lines.push_back(fmt::format("integer {}", value)); }
  void unsigned_integer(uint64_t value) override {
    lines.push_back(fmt::format("unsigned {}", value));
  }
  void number(double value) override {
    lines.push_back(fmt::format("number {:016x}", std::bit_cast<uint64_t>(value)));
  }
  void text(std::string_view value) override { lines.push_back(fmt::format("text {}", value)); }
  void bytes(std::span<const std::byte> value) override { run("bytes", value); }
  void blob(const Blob& value) override { run("blob", value.bytes()); }

 private:
  void run(std::string_view kind, std::span<const std::byte> value) {
    auto& line = lines.emplace_back(kind);
    for (const auto byte : value) line += fmt::format(" {:02x}", static_cast<unsigned>(byte));
  }
};

}  // namespace

SchemaNode parse_schema(std::string_view schema) { return SchemaParser(schema).fields(); }

RandomReader::RandomReader(const MessageType& type, uint64_t seed)
    : schema_(parse_schema(type.schema)), random_(mix(type.schema_hash, seed)) {}

const SchemaNode& RandomReader::enter() {
  auto& place = places_.back();
  if (place.node->kind == "list") return place.node->children.front();
  return place.node->children[place.next++];
}

void RandomReader::begin_struct(size_t num_fields) {
  const SchemaNode& node = places_.empty() ? schema_ : enter();
  CHECK(node.kind == "{" && node.children.size() == num_fields, "not the schema's struct");
  places_.push_back({&node});
}
void RandomReader::end_struct() { places_.pop_back(); }

size_t RandomReader::begin_list() {
  static const SchemaNode kStepItems{"{", {{"u32", {}}, {"u64", {}}}};
  const SchemaNode& node = enter();
  if (node.kind == "step") {
    places_.push_back({&kStepItems});
    return 2;
  }
  places_.push_back({&node});
  return random_.below(5);
}
void RandomReader::end_list() { places_.pop_back(); }

bool RandomReader::boolean() {
  enter();
  return random_.below(2) == 1;
}

/// Every size class is equally likely, limits included.
uint64_t RandomReader::bits(uint64_t width) {
  const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  const uint64_t choice = random_.below(6);
  if (choice == 0) return mask;
  if (choice == 1) return mask >> 1;
  if (choice == 2) return (mask >> 1) + 1;
  return (random_.next() >> random_.below(64)) & mask;
}

int64_t RandomReader::integer() {
  const auto& node = enter();
  // The enums are unsigned bytes.
  if (node.kind.starts_with("enum")) return static_cast<int64_t>(random_.below(5));
  const auto width = width_of(node);
  return static_cast<int64_t>(bits(width) << (64 - width)) >> (64 - width);
}
uint64_t RandomReader::unsigned_integer() { return bits(width_of(enter())); }

double RandomReader::number() {
  const auto& node = enter();
  const auto pattern = bits(width_of(node));
  if (node.kind == "f64") return std::bit_cast<double>(pattern);
  // A NaN float may change its bits when it is converted through double.
  const auto narrow = std::bit_cast<float>(static_cast<uint32_t>(pattern));
  return narrow == narrow ? static_cast<double>(narrow) : 0.0;
}

std::string RandomReader::text() {
  enter();
  // Beyond the limits of msgpack's three text formats.
  const size_t size = random_.below(8) == 0 ? 250 + random_.below(12) : random_.below(40);
  std::string text;
  for (size_t i = 0; i < size; ++i) text += static_cast<char>(random_.below(256));
  return text;
}

std::span<const std::byte> RandomReader::bytes() {
  enter();
  // A multiple of every element size.
  const size_t size = 4 * (random_.below(8) == 0 ? 63 + random_.below(3) : random_.below(12));
  bytes_.clear();
  for (size_t i = 0; i < size; ++i) bytes_.push_back(static_cast<std::byte>(random_.below(256)));
  return bytes_;
}

Blob RandomReader::blob() {
  enter();
  std::vector<std::byte> bytes(random_.below(100));
  for (auto& byte : bytes) byte = static_cast<std::byte>(random_.below(256));
  return Blob(std::move(bytes));
}

Payload random_message(const MessageType& type, uint64_t seed) {
  RandomReader reader(type, seed);
  return {&type, type.read(reader)};
}

std::vector<std::string> transcript(const Payload& payload) {
  Transcript transcript;
  payload.type->write(transcript, payload.message.get());
  return std::move(transcript.lines);
}

}  // namespace primerl
