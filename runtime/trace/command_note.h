/// The note of a command that a person sent to an actor. It has the name and the schema of the
/// command's type, so it can be read without the program that sent it. docs/formats/trace.md has
/// the layout. Any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/message_type.h"

namespace primerl {

/// The parts of a note; `body` points into the bytes that were read.
struct CommandNote {
  std::string type;    // MessageType::name
  std::string schema;  // MessageType::schema
  std::span<const std::byte> body;
};

/// The layout: the sizes of name and schema in 4 bytes each; name, schema, body.
std::vector<std::byte> write_note(std::string_view name, std::string_view schema,
                                  std::span<const std::byte> body);
/// kExhausted when the message is too large for a note.
Result<std::vector<std::byte>> write_command_note(const Payload& command);
/// kCorrupt when the bytes are not such a note.
Result<CommandNote> read_command_note(std::span<const std::byte> bytes);

}  // namespace primerl
