/// The note of a command: what a person sent to an actor, with the name and the schema of its type,
/// so that it can be read without the program that sent it. docs/formats/trace.md has the layout.
/// Any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "graph/message_type.h"

namespace primerl {

/// Of a note; `body` lies in the bytes that were read.
struct CommandNote {
  std::string type;    // MessageType::name
  std::string schema;  // MessageType::schema
  std::span<const std::byte> body;
};

/// kExhausted when the message is too large for a note.
Result<std::vector<std::byte>> write_command_note(const Payload& command);
/// kCorrupt when the bytes are no such note.
Result<CommandNote> read_command_note(std::span<const std::byte> bytes);

}  // namespace primerl
