#include "runtime/trace/tenant_note.h"

#include "graph/base/random.h"
#include "runtime/trace/command_note.h"
#include "runtime/wire/msgpack_codec.h"
#include "runtime/wire/payload_check.h"

namespace primerl {
namespace {

constexpr std::string_view kName = "TenantChange";

std::string schema() {
  wire::Describe<TenantChange> describe;
  TenantChange::fields(describe);
  return describe.text;
}

}  // namespace

Result<std::vector<std::byte>> write_tenant_note(const TenantChange& change) {
  MsgpackWriter writer;
  wire::write(writer, change);
  auto bytes = write_note(kName, schema(), writer.body());
  if (bytes.size() <= kTenantNoteBytesMax) return bytes;
  return error(Code::kExhausted, "the table of tenant '{}' has {} bytes, too many for the record",
               change.name, change.table.size())
      .note(fmt::format("a record takes tables up to about {} bytes: shorten its lists and texts",
                        kTenantNoteBytesMax));
}

Result<TenantChange> read_tenant_note(std::span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const CommandNote note, read_command_note(bytes));
  if (note.type != kName)
    return error(Code::kCorrupt, "a note of '{}' is no note of a tenant event", note.type);
  if (note.schema != schema())
    return error(Code::kInvalid, "the note of a tenant event has the fields '{}', not '{}'",
                 note.schema, schema())
        .note("read it with the program that recorded it");
  TenantChange change;
  MsgpackReader reader(note.body);
  wire::read(reader, change);
  if (const Status finished = reader.finish(); !finished.ok())
    return error(Code::kCorrupt, "the note of a tenant event is damaged: {}",
                 finished.error().message());
  if (change.kind > TenantChange::Kind::kSet || change.slot.is_none())
    return error(Code::kCorrupt, "the note of a tenant event has the kind {} and the slot {}",
                 static_cast<int>(change.kind), change.slot.value);
  return change;
}

TenantCheck tenant_check(const TenantChange& change) {
  PayloadCheck check(stable_hash(schema(), stable_hash(kName)));
  wire::write(check, change);
  return {check.value(), check.num_bytes()};
}

}  // namespace primerl
