#include "runtime/query/step_story.h"

#include <cstring>

#include "graph/base/counted.h"
#include "runtime/query/step_text.h"
#include "runtime/trace/command_note.h"
#include "runtime/trace/tenant_note.h"

namespace primerl {
namespace {

std::vector<int64_t> numbers_of(const NondeterministicInput& note) {
  std::vector<int64_t> numbers(note.bytes.size() / sizeof(int64_t));
  if (!numbers.empty())
    std::memcpy(numbers.data(), note.bytes.data(), numbers.size() * sizeof(int64_t));
  return numbers;
}

/// The text of a note kError: a code, then text.
std::string error_text(const NondeterministicInput& note) {
  if (note.bytes.empty()) return "";
  return {reinterpret_cast<const char*>(note.bytes.data()) + 1, note.bytes.size() - 1};
}

/// {"EngineHold": {"owner": "operator", ...}}
Json command_json(const NondeterministicInput& note) {
  const auto command = read_command_note(note.bytes);
  if (!command.ok()) return command.error().message();
  StoredPayload stored;
  stored.body.assign(command->body.begin(), command->body.end());
  TraceCatalog::Type type;
  type.name = command->type;
  type.schema = command->schema;
  const auto content = payload_json(type, stored);
  return Json::object().set(command->type,
                            content.ok() ? *content : Json(content.error().message()));
}

/// {"kind": "join", "slot": 1, "number": 2, "name": "alice", "table": "[tenant.alice]..."}
Json tenant_json(const NondeterministicInput& note) {
  const auto change = read_tenant_note(note.bytes);
  if (!change.ok()) return change.error().message();
  return Json::object()
      .set("kind", to_string(change->kind))
      .set("slot", change->slot.value)
      .set("number", change->tenancy)
      .set("name", change->name)
      .set("table", change->table);
}

/// The table of a join, line by line.
std::string tenant_note_text(const NondeterministicInput& note) {
  const auto change = read_tenant_note(note.bytes);
  if (!change.ok()) return "DAMAGED: " + change.error().message();
  std::string text = fmt::format("tenant '{}', number {}", change->name, change->tenancy);
  std::string_view left = change->table;
  while (!left.empty()) {
    const size_t end = std::min(left.find('\n'), left.size());
    text += fmt::format("\n    {}", left.substr(0, end));
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return text;
}

std::string note_text(const NondeterministicInput& note) {
  switch (note.kind) {
    case NoteKind::kRoom:
      return fmt::format("room() answered {}", fmt::join(numbers_of(note), ", "));
    case NoteKind::kStop:
      return fmt::format("progress() said stop at call {}", fmt::join(numbers_of(note), ", "));
    case NoteKind::kError:
      return fmt::format("failed: {}", error_text(note));
    case NoteKind::kResource:
      return fmt::format("a resource answered {} bytes", note.bytes.size());
    case NoteKind::kCommand:
      return fmt::format("command {}", command_json(note).dump());
    case NoteKind::kTenant:
      return tenant_note_text(note);
    case NoteKind::kEngineResume:
      return "the run was resumed: an engine began anew with what was unfinished";
  }
  return fmt::format("note {} of {} bytes", static_cast<int>(note.kind), note.bytes.size());
}

Json note_json(const NondeterministicInput& note) {
  Json json = Json::object();
  switch (note.kind) {
    case NoteKind::kRoom:
      return json.set("room", Json::list(numbers_of(note)));
    case NoteKind::kStop:
      return json.set("stopped_at_progress", Json::list(numbers_of(note)));
    case NoteKind::kError:
      return json.set("error", error_text(note));
    case NoteKind::kResource:
      return json.set("resource_bytes", static_cast<uint64_t>(note.bytes.size()));
    case NoteKind::kCommand:
      return json.set("command", command_json(note));
    case NoteKind::kTenant:
      return json.set("tenant", tenant_json(note));
    case NoteKind::kEngineResume:
      return json.set("engine_resume_bytes", static_cast<uint64_t>(note.bytes.size()));
  }
  return json.set("kind", static_cast<int>(note.kind));
}

std::string indented(const std::string& text) { return "    " + text + "\n"; }

struct Read {
  Result<StoredPayload> payload;
  Result<Json> json;
  Status fits;
};
Read read(const Trace& trace, const MessageKey& key) {
  Read read{trace.payload(key), Json(), ok()};
  if (!read.payload.ok()) return read;
  const auto& type = trace.catalog().types[read.payload->type];
  read.json = payload_json(type, *read.payload);
  read.fits = check_payload(type, *read.payload);
  return read;
}

std::string content_text(const Read& read) {
  if (!read.payload.ok()) return indented(read.payload.error().message());
  std::string text = read.json.ok() ? indented(pretty_json(*read.json, "    "))
                                    : indented("DAMAGED: " + read.json.error().message());
  if (!read.fits.ok()) text += indented("DAMAGED: " + read.fits.error().message());
  return text;
}

Json content_json(const Read& read) {
  Json json = Json::object();
  if (!read.payload.ok()) return json.set("not_readable", read.payload.error().message());
  if (read.json.ok())
    json.set("payload", *read.json);
  else
    json.set("damaged", read.json.error().message());
  if (!read.fits.ok()) json.set("damaged", read.fits.error().message());
  return json;
}

std::string delivered_text(const Trace& trace, const MessageKey& key) {
  const auto at = trace.delivery(key);
  return at ? fmt::format("handled at {}", step_name(trace.catalog(), *at)) : "not handled";
}

}  // namespace

std::string step_story_text(const Trace& trace, const TraceStep& step) {
  const TraceCatalog& catalog = trace.catalog();
  std::string text = step_line(trace, step) + "\n";
  if (step.kind == StepKind::kMessage) {
    text += fmt::format("  input {} ({})", message_text(catalog, key_of(step)),
                        catalog.types[step.type].name);
    const Read input = read(trace, key_of(step));
    if (input.payload.ok() && !input.payload->sender_group.is_none())
      text += fmt::format(", sent by step {} at {} s",
                          step_text(catalog, input.payload->sender_group, input.payload->step),
                          time_text(catalog, input.payload->sent_at));
    text += "\n" + content_text(input);
  }
  const auto keys = trace.stored_emissions(step.group, step.step);
  text +=
      fmt::format("  emitted {}, {} stored\n", counted(step.num_emissions, "message"), keys.size());
  for (const MessageKey& key : keys)
    text += fmt::format("  emitted {} ({}), {}\n", message_text(catalog, key),
                        catalog.types[catalog.links[key.link.index()].type].name,
                        delivered_text(trace, key)) +
            content_text(read(trace, key));
  for (const NondeterministicInput& note : trace.notes(step.group, step.step))
    text += fmt::format("  {}\n", note_text(note));
  return text;
}

Json step_story_json(const Trace& trace, const TraceStep& step) {
  Json json = step_json(trace, step);
  json.set("schema", "primerl.trace.step/1");
  if (step.kind == StepKind::kMessage) json.set("content", content_json(read(trace, key_of(step))));
  Json emissions = Json::array(), notes = Json::array();
  for (const MessageKey& key : trace.stored_emissions(step.group, step.step)) {
    Json entry = Json::object().set("message", key_json(trace.catalog(), key));
    if (const auto at = trace.delivery(key))
      entry.set("delivered", step_name(trace.catalog(), *at));
    emissions.push_back(entry.set("content", content_json(read(trace, key))));
  }
  for (const NondeterministicInput& note : trace.notes(step.group, step.step))
    notes.push_back(note_json(note));
  return json.set("emissions", std::move(emissions)).set("notes", std::move(notes));
}

}  // namespace primerl
