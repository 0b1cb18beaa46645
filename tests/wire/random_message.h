/// Random messages of any type, by seed: a FieldReader that makes up the values.
///
/// It follows the type's schema text, so that each integer width gets values up to its limits.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/message_type.h"

namespace primerl {

/// One member type of a schema.
struct SchemaNode {
  std::string kind;                  // "u64", "list", "{" for a struct, ...
  std::vector<SchemaNode> children;  // fields, or the one item type of a list
};
/// Reads the text of MessageType::schema.
SchemaNode parse_schema(std::string_view schema);

class RandomReader final : public FieldReader {
 public:
  RandomReader(const MessageType& type, uint64_t seed);

  bool ok() const override { return true; }
  Error fault() const override { return error(Code::kInternal, "random messages have no faults"); }
  void fail(Error fault) override { CHECK(false, fault.message()); }
  void begin_struct(size_t num_fields) override;
  void name(std::string_view) override {}
  void end_struct() override;
  size_t begin_list() override;
  void end_list() override;
  bool boolean() override;
  int64_t integer() override;
  uint64_t unsigned_integer() override;
  double number() override;
  std::string text() override;
  std::span<const std::byte> bytes() override;
  Blob blob() override;

 private:
  /// The reader's position: a struct's next field, or a list's item type again and again.
  struct Place {
    const SchemaNode* node;
    size_t next = 0;
  };
  const SchemaNode& enter();
  uint64_t bits(uint64_t width);

  SchemaNode schema_;
  RandomStream random_;
  std::vector<Place> places_;
  std::vector<std::byte> bytes_;
};

Payload random_message(const MessageType& type, uint64_t seed);

/// Every value of a message as one line of text, for comparing and for reading.
std::vector<std::string> transcript(const Payload& payload);

}  // namespace primerl
