#include "runtime/wire/msgpack_codec.h"

#include <array>
#include <bit>
#include <msgpack.hpp>

namespace primerl {
namespace {

/// First bytes of the msgpack formats that the codec writes.
enum Format : uint8_t {
  kFixArray = 0x90,
  kFixText = 0xa0,
  kFalse = 0xc2,
  kTrue = 0xc3,
  kBytes8 = 0xc4,
  kBytes16 = 0xc5,
  kBytes32 = 0xc6,
  kDouble = 0xcb,
  kUnsigned8 = 0xcc,
  kUnsigned64 = 0xcf,
  kSigned8 = 0xd0,
  kSigned64 = 0xd3,
  kText8 = 0xd9,
  kText16 = 0xda,
  kText32 = 0xdb,
  kArray16 = 0xdc,
  kArray32 = 0xdd,
  kNegativeFix = 0xe0,
};

}  // namespace

struct MsgpackWriter::Packer {
  /// Output of msgpack::packer.
  struct Sink {
    std::vector<std::byte> bytes;
    void write(const char* data, size_t size) {
      const auto* first = reinterpret_cast<const std::byte*>(data);
      // Fast path for single bytes: heads of structs and small numbers are most of the output.
      if (size == 1) return bytes.push_back(*first);
      bytes.insert(bytes.end(), first, first + size);
    }
  };
  Sink sink;
  msgpack::packer<Sink> out{sink};
};

MsgpackWriter::MsgpackWriter() : packer_(std::make_unique<Packer>()) {}
MsgpackWriter::~MsgpackWriter() = default;

std::vector<std::byte> MsgpackWriter::take_body() { return std::move(packer_->sink.bytes); }
std::span<const std::byte> MsgpackWriter::body() const { return packer_->sink.bytes; }
void MsgpackWriter::clear() {
  packer_->sink.bytes.clear();
  blobs_.clear();
  shared_.reset();
}

void MsgpackWriter::begin_struct(size_t num_fields) {
  packer_->out.pack_array(static_cast<uint32_t>(num_fields));
}
void MsgpackWriter::begin_list(size_t size) {
  CHECK(size <= UINT32_MAX, "a list is longer than msgpack can say");
  packer_->out.pack_array(static_cast<uint32_t>(size));
}
void MsgpackWriter::boolean(bool value) { packer_->out.pack(value); }
void MsgpackWriter::integer(int64_t value) { packer_->out.pack_int64(value); }
void MsgpackWriter::unsigned_integer(uint64_t value) { packer_->out.pack_uint64(value); }
void MsgpackWriter::number(double value) {
  // msgpack::packer writes a whole number as an integer, which loses -0.0 and the type, so doubles
  // are written here.
  const auto bits = std::bit_cast<uint64_t>(value);
  std::array<char, 9> encoded = {static_cast<char>(kDouble)};
  for (size_t i = 0; i < 8; ++i) encoded[i + 1] = static_cast<char>(bits >> (56 - 8 * i));
  packer_->sink.write(encoded.data(), encoded.size());
}
void MsgpackWriter::text(std::string_view value) {
  if (shared_ != nullptr && value.size() > kTextBytesInBodyMax)
    return blob(Blob(shared_, std::as_bytes(std::span(value))));
  CHECK(value.size() <= UINT32_MAX, "a text is longer than msgpack can say");
  packer_->out.pack_str(static_cast<uint32_t>(value.size()));
  packer_->out.pack_str_body(value.data(), static_cast<uint32_t>(value.size()));
}
void MsgpackWriter::bytes(std::span<const std::byte> value) {
  CHECK(value.size() <= UINT32_MAX, "a run of bytes is longer than msgpack can say");
  packer_->out.pack_bin(static_cast<uint32_t>(value.size()));
  packer_->out.pack_bin_body(reinterpret_cast<const char*>(value.data()),
                             static_cast<uint32_t>(value.size()));
}
void MsgpackWriter::blob(const Blob& value) {
  unsigned_integer(value.size());
  blobs_.push_back(value);
}

void MsgpackWriter::array(std::span<const std::byte> value) {
  if (shared_ != nullptr && value.size() > kArrayBytesInBodyMax) return blob(Blob(shared_, value));
  bytes(value);
}

void MsgpackReader::fail(Error fault) {
  if (!fault_.ok()) return;
  fault_ = error(fault.code(), "at byte {} of the body: {}", offset(), fault.message());
  left_ = {};
}

uint8_t MsgpackReader::byte() {
  if (left_.empty()) {
    fail(error(Code::kCorrupt, "the body ends too early"));
    return 0;
  }
  const auto value = static_cast<uint8_t>(left_.front());
  left_ = left_.subspan(1);
  return value;
}

uint64_t MsgpackReader::big_endian(size_t num_bytes) {
  if (left_.size() < num_bytes) {
    fail(error(Code::kCorrupt, "the body ends too early"));
    return 0;
  }
  uint64_t value = 0;
  for (size_t i = 0; i < num_bytes; ++i) value = value << 8 | static_cast<uint8_t>(left_[i]);
  left_ = left_.subspan(num_bytes);
  return value;
}

std::span<const std::byte> MsgpackReader::run(uint64_t size) {
  if (size > left_.size()) {
    fail(error(Code::kCorrupt, "{} bytes are announced, {} are left", size, left_.size()));
    return {};
  }
  const auto bytes = left_.first(size);
  left_ = left_.subspan(size);
  return bytes;
}

size_t MsgpackReader::enter_list() {
  if (++depth_ > kNestingMax) {
    fail(error(Code::kCorrupt, "nested deeper than {}", kNestingMax));
    return 0;
  }
  const uint8_t format = byte();
  uint64_t size = 0;
  if ((format & 0xf0) == kFixArray)
    size = format & 0x0f;
  else if (format == kArray16)
    size = big_endian(2);
  else if (format == kArray32)
    size = big_endian(4);
  else
    fail(error(Code::kCorrupt, "a list was expected, found format {:#x}", format));
  // Every item needs at least one byte.
  if (size > left_.size())
    fail(error(Code::kCorrupt, "a list of {} is announced, {} bytes are left", size, left_.size()));
  return ok() ? size : 0;
}

void MsgpackReader::begin_struct(size_t num_fields) {
  const size_t found = enter_list();
  if (ok() && found != num_fields)
    fail(error(Code::kCorrupt, "{} fields were expected, found {}", num_fields, found));
}

size_t MsgpackReader::begin_list() { return enter_list(); }

bool MsgpackReader::boolean() {
  const uint8_t format = byte();
  if (format != kTrue && format != kFalse)
    fail(error(Code::kCorrupt, "a boolean was expected, found format {:#x}", format));
  return ok() && format == kTrue;
}

int64_t MsgpackReader::integer() {
  const uint8_t format = byte();
  if (format < 0x80) return format;
  if (format >= kNegativeFix) return static_cast<int8_t>(format);
  if (format >= kUnsigned8 && format <= kUnsigned64) {
    const uint64_t value = big_endian(size_t{1} << (format - kUnsigned8));
    if (value > INT64_MAX) fail(error(Code::kCorrupt, "{} does not fit i64", value));
    return ok() ? static_cast<int64_t>(value) : 0;
  }
  if (format >= kSigned8 && format <= kSigned64) {
    const size_t num_bytes = size_t{1} << (format - kSigned8);
    const auto shift = 64 - 8 * num_bytes;
    return static_cast<int64_t>(big_endian(num_bytes) << shift) >> shift;
  }
  fail(error(Code::kCorrupt, "an integer was expected, found format {:#x}", format));
  return 0;
}

uint64_t MsgpackReader::unsigned_integer() {
  const uint8_t format = byte();
  if (format < 0x80) return format;
  if (format >= kUnsigned8 && format <= kUnsigned64)
    return big_endian(size_t{1} << (format - kUnsigned8));
  fail(error(Code::kCorrupt, "an unsigned integer was expected, found format {:#x}", format));
  return 0;
}

double MsgpackReader::number() {
  const uint8_t format = byte();
  if (format != kDouble)
    fail(error(Code::kCorrupt, "a number was expected, found format {:#x}", format));
  return std::bit_cast<double>(big_endian(8));
}

bool MsgpackReader::is_beside_body() const {
  if (left_.empty()) return false;
  const auto format = static_cast<uint8_t>(left_.front());
  return format < 0x80 || (format >= kUnsigned8 && format <= kUnsigned64);
}

std::string MsgpackReader::text() {
  if (is_beside_body()) {
    const Blob beside = blob();
    return {reinterpret_cast<const char*>(beside.bytes().data()), beside.size()};
  }
  const uint8_t format = byte();
  uint64_t size = 0;
  if ((format & 0xe0) == kFixText)
    size = format & 0x1f;
  else if (format >= kText8 && format <= kText32)
    size = big_endian(size_t{1} << (format - kText8));
  else
    fail(error(Code::kCorrupt, "a text was expected, found format {:#x}", format));
  const auto bytes = run(size);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> MsgpackReader::bytes() {
  const uint8_t format = byte();
  if (format < kBytes8 || format > kBytes32) {
    fail(error(Code::kCorrupt, "bytes were expected, found format {:#x}", format));
    return {};
  }
  return run(big_endian(size_t{1} << (format - kBytes8)));
}

Blob MsgpackReader::blob() {
  const uint64_t size = unsigned_integer();
  if (!ok()) return {};
  if (blobs_.empty()) {
    fail(error(Code::kCorrupt, "a blob of {} bytes has no frame", size));
    return {};
  }
  if (blobs_.front().size() != size) {
    fail(error(Code::kCorrupt, "a blob of {} bytes was announced, its frame has {}", size,
               blobs_.front().size()));
    return {};
  }
  Blob blob = blobs_.front();
  blobs_ = blobs_.subspan(1);
  return blob;
}

Blob MsgpackReader::array() {
  if (is_beside_body()) return blob();
  return {nullptr, bytes()};
}

Status MsgpackReader::finish() {
  if (!left_.empty()) fail(error(Code::kCorrupt, "{} bytes are left over", left_.size()));
  if (!blobs_.empty()) fail(error(Code::kCorrupt, "{} frames are left over", blobs_.size()));
  return fault_;
}

namespace {

Status write_message(const Payload& payload, MsgpackWriter& writer) {
  payload.type->write(writer, payload.message.get());
  if (writer.body().size() > kMessageBytesMax)
    return error(Code::kExhausted, "a '{}' has {} bytes without its blobs, at most {} are allowed",
                 payload.type->name, writer.body().size(), kMessageBytesMax)
        .note("put large content into a Blob, an array of numbers or a text");
  return ok();
}

}  // namespace

Result<EncodedMessage> encode_message(const Payload& payload) {
  MsgpackWriter writer;
  RETURN_IF_ERROR(encode_message(payload, writer));
  return EncodedMessage{writer.take_body(), writer.take_blobs()};
}

Result<EncodedMessage> encode_in_body(const Payload& payload) {
  MsgpackWriter writer;
  RETURN_IF_ERROR(write_message(payload, writer));
  return EncodedMessage{writer.take_body(), writer.take_blobs()};
}

Status encode_message(const Payload& payload, MsgpackWriter& writer) {
  writer.share(payload.message);
  return write_message(payload, writer);
}

Result<Payload> decode_message(const MessageType& type, std::span<const std::byte> body,
                               std::span<const Blob> blobs) {
  if (body.size() > kMessageBytesMax)
    return error(Code::kExhausted, "a body of {} bytes is above the limit of {}", body.size(),
                 kMessageBytesMax);
  MsgpackReader reader(body, blobs);
  auto message = type.read(reader);
  if (auto status = reader.finish(); !status.ok())
    return Error(status.error()).while_doing(fmt::format("reading a '{}'", type.name));
  return Payload{&type, std::move(message)};
}

}  // namespace primerl
