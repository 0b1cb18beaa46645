#include "actors/tinker/protobuf.h"

#include <bit>
#include <utility>

#include "graph/base/bytes.h"

namespace primerl::tinker {
namespace {

constexpr int kVarintBytesMax = 10;
constexpr uint64_t kFieldNumberMax = (uint64_t{1} << 29) - 1;

Error wrong_kind(std::string_view name, std::string_view wanted) {
  return error(Code::kInvalid, "protobuf field '{}' is not {}", name, wanted);
}

uint64_t fixed_number(std::string_view bytes) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  return value;
}

}  // namespace

Result<uint64_t> ProtoReader::varint() {
  uint64_t value = 0;
  for (int i = 0; i < kVarintBytesMax && static_cast<size_t>(i) < rest_.size(); ++i) {
    const auto byte = static_cast<uint8_t>(rest_[i]);
    if (i == kVarintBytesMax - 1 && byte > 1) break;  // above 64 bits
    value |= uint64_t{byte & 0x7fU} << (7 * i);
    if ((byte & 0x80U) != 0) continue;
    rest_.remove_prefix(i + 1);
    return value;
  }
  return error(Code::kInvalid, "a protobuf number is cut off or has more than 64 bits");
}

Result<std::string_view> ProtoReader::next_bytes(uint64_t count) {
  if (count > rest_.size())
    return error(Code::kInvalid, "a protobuf field has {} bytes, but {} remain", count,
                 rest_.size());
  const std::string_view bytes = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return bytes;
}

Result<ProtoField> ProtoReader::next() {
  ASSIGN_OR_RETURN(const uint64_t key, varint());
  if (key >> 3 == 0 || key >> 3 > kFieldNumberMax)
    return error(Code::kInvalid, "{} is not the number of a protobuf field", key >> 3);
  ProtoField field;
  field.number = static_cast<int32_t>(key >> 3);
  switch (key & 7) {
    case 0: {
      field.kind = ProtoField::Kind::kVarint;
      ASSIGN_OR_RETURN(field.value, varint());
      return field;
    }
    case 1: {
      field.kind = ProtoField::Kind::kFixed64;
      ASSIGN_OR_RETURN(const auto bytes, next_bytes(8));
      field.value = fixed_number(bytes);
      return field;
    }
    case 2: {
      field.kind = ProtoField::Kind::kBytes;
      ASSIGN_OR_RETURN(const uint64_t count, varint());
      ASSIGN_OR_RETURN(field.bytes, next_bytes(count));
      return field;
    }
    case 5: {
      field.kind = ProtoField::Kind::kFixed32;
      ASSIGN_OR_RETURN(const auto bytes, next_bytes(4));
      field.value = fixed_number(bytes);
      return field;
    }
    default:
      return error(Code::kInvalid, "protobuf field {} has the unknown kind {}", field.number,
                   key & 7);
  }
}

Result<std::string_view> bytes_of(const ProtoField& field, std::string_view name) {
  if (field.kind != ProtoField::Kind::kBytes) return wrong_kind(name, "bytes");
  return field.bytes;
}

Result<int64_t> int_of(const ProtoField& field, std::string_view name) {
  if (field.kind != ProtoField::Kind::kVarint) return wrong_kind(name, "an integer");
  return static_cast<int64_t>(field.value);
}

Result<double> double_of(const ProtoField& field, std::string_view name) {
  if (field.kind != ProtoField::Kind::kFixed64) return wrong_kind(name, "a double");
  return std::bit_cast<double>(field.value);
}

void ProtoWriter::varint(uint64_t value) {
  for (; value > 0x7f; value >>= 7) out_.push_back(static_cast<char>((value & 0x7f) | 0x80));
  out_.push_back(static_cast<char>(value));
}

void ProtoWriter::number(int32_t field, uint64_t value) {
  varint(static_cast<uint64_t>(field) << 3);
  varint(value);
}

void ProtoWriter::real(int32_t field, double value) {
  varint((static_cast<uint64_t>(field) << 3) | 1);
  const auto bits = std::bit_cast<uint64_t>(value);
  out_.append(reinterpret_cast<const char*>(&bits), sizeof bits);
}

void ProtoWriter::bytes(int32_t field, std::string_view value) {
  varint((static_cast<uint64_t>(field) << 3) | 2);
  varint(value.size());
  out_.append(value);
}

}  // namespace primerl::tinker
