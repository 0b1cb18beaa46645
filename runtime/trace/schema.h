/// FieldSchema: the parsed schema text of a message type, and functions that need only the schema
/// and a body. With them a program without the message's struct can read a trace.
///
///   fields = { name ":" type ";" }    type = word | "list<" type ">" | "{" fields "}"
///
/// Treats schema and body as untrusted: nesting and size are bounded, an unknown type name is a
/// fault, and a body must match exactly. Values; pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/message_type.h"

namespace primerl {

inline constexpr size_t kSchemaBytesMax = size_t{64} << 10;

struct FieldSchema {
  enum class Kind {
    kStruct,
    kList,
    kBoolean,
    kSigned,
    kUnsigned,
    kEnum,
    kNumber,
    kText,
    kBlob,
    kVersion,
    kDuration,
    kStep,
    kId,
  };
  Kind kind = Kind::kStruct;
  int width = 0;                      // bits of a number
  std::vector<std::string> names;     // of a struct's fields
  std::vector<FieldSchema> children;  // fields, or the one item type of a list
  bool has_version = false;           // here or in a child
  bool has_step = false;
  /// A list whose items are stored as one block of bytes.
  bool is_raw() const;
};

Result<FieldSchema> read_schema(std::string_view text);

/// kCorrupt, with the field's name, when body and schema do not match.
Result<Json> body_json(const FieldSchema& schema, std::span<const std::byte> body,
                       std::span<const Blob> blobs);
/// The same, except that a list stored as one block of bytes is replaced by its number of items. So
/// the work does not grow with the number of tokens.
Result<Json> body_outline(const FieldSchema& schema, std::span<const std::byte> body,
                          std::span<const Blob> blobs);
/// The number that payload_check() returns for the message.
Result<uint64_t> body_check(const FieldSchema& schema, uint64_t schema_hash,
                            std::span<const std::byte> body, std::span<const Blob> blobs);
/// Every policy version in a body, except "none yet" (-1).
Result<std::vector<int64_t>> body_versions(const FieldSchema& schema,
                                           std::span<const std::byte> body,
                                           std::span<const Blob> blobs);
/// Every step reference in a body.
Result<std::vector<StepRef>> body_steps(const FieldSchema& schema, std::span<const std::byte> body,
                                        std::span<const Blob> blobs);

}  // namespace primerl
