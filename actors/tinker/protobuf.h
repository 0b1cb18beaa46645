/// The encoding of protobuf messages: fields as (number, value), without a schema. Pure, any
/// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl::tinker {

/// One field as it is in the bytes. The text is a view of them.
struct ProtoField {
  int32_t number = 0;
  enum class Kind : uint8_t { kVarint, kFixed64, kBytes, kFixed32 } kind = Kind::kVarint;
  uint64_t value = 0;           // of a varint or a fixed number
  std::string_view bytes = {};  // of kBytes: a text, numbers or a message
};

/// Reads the fields of one message in their order. The bytes must stay valid.
class ProtoReader {
 public:
  explicit ProtoReader(std::string_view bytes) : rest_(bytes) {}

  bool is_done() const { return rest_.empty(); }
  Result<ProtoField> next();

 private:
  Result<uint64_t> varint();
  Result<std::string_view> next_bytes(uint64_t count);

  std::string_view rest_;
};

/// The typed value of a field. The error names `name`, which the schema calls it.
Result<std::string_view> bytes_of(const ProtoField& field, std::string_view name);
Result<int64_t> int_of(const ProtoField& field, std::string_view name);
Result<double> double_of(const ProtoField& field, std::string_view name);

/// Appends the fields of one message.
class ProtoWriter {
 public:
  void number(int32_t field, uint64_t value);
  void real(int32_t field, double value);
  void bytes(int32_t field, std::string_view value);

  std::string finish() && { return std::move(out_); }

 private:
  void varint(uint64_t value);

  std::string out_;
};

}  // namespace primerl::tinker
