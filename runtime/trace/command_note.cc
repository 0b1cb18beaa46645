#include "runtime/trace/command_note.h"

#include <cstring>

#include "runtime/trace/frames.h"
#include "runtime/wire/msgpack_codec.h"

namespace primerl {
namespace {

/// Sizes in bytes of name and schema, which follow; then the body.
struct CommandNoteHead {
  uint32_t name_bytes = 0;
  uint32_t schema_bytes = 0;
};

}  // namespace

std::vector<std::byte> write_note(std::string_view name, std::string_view schema,
                                  std::span<const std::byte> body) {
  const CommandNoteHead head{static_cast<uint32_t>(name.size()),
                             static_cast<uint32_t>(schema.size())};
  std::vector<std::byte> bytes;
  bytes.reserve(sizeof head + name.size() + schema.size() + body.size());
  const auto add = [&bytes](std::span<const std::byte> part) {
    bytes.insert(bytes.end(), part.begin(), part.end());
  };
  add(std::as_bytes(std::span(&head, 1)));
  add(std::as_bytes(std::span(name)));
  add(std::as_bytes(std::span(schema)));
  add(body);
  return bytes;
}

Result<std::vector<std::byte>> write_command_note(const Payload& command) {
  ASSIGN_OR_RETURN(const EncodedMessage encoded, encode_in_body(command));
  auto bytes = write_note(command.type->name, command.type->schema, encoded.body);
  if (bytes.size() <= kInlineBytesMax) return bytes;
  return error(Code::kExhausted, "a command of {} bytes is too large for the record", bytes.size());
}

Result<CommandNote> read_command_note(std::span<const std::byte> bytes) {
  CommandNoteHead head;
  if (bytes.size() >= sizeof head) std::memcpy(&head, bytes.data(), sizeof head);
  const uint64_t texts = uint64_t{head.name_bytes} + head.schema_bytes;
  if (head.name_bytes == 0 || bytes.size() < sizeof head + texts)
    return error(Code::kCorrupt, "{} bytes are no note of a command", bytes.size());
  const char* text = reinterpret_cast<const char*>(bytes.data()) + sizeof head;
  return CommandNote{std::string(text, head.name_bytes),
                     std::string(text + head.name_bytes, head.schema_bytes),
                     bytes.subspan(sizeof head + static_cast<size_t>(texts))};
}

}  // namespace primerl
