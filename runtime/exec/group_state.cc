#include "runtime/exec/group_state.h"

#include "runtime/wire/msgpack_codec.h"

namespace primerl {
namespace {

/// `message`: the object that `write` writes, if its Blobs may share it.
template <class Write>
SavedFields written(const Write& write, std::shared_ptr<const void> message = nullptr) {
  MsgpackWriter writer;
  writer.share(std::move(message));
  write(writer);
  SavedFields saved;
  saved.body = Blob(writer.take_body());
  saved.blobs = writer.take_blobs();
  return saved;
}

}  // namespace

SavedMessage saved_message(LinkId link, const Envelope& envelope) {
  SavedMessage saved;
  saved.link = link;
  saved.tenant = envelope.tenant;
  saved.origin = envelope.origin;
  saved.incarnation = envelope.incarnation;
  saved.sequence = envelope.sequence;
  saved.sender_step = envelope.sender_step;
  saved.cause = envelope.cause;
  saved.sent_at = envelope.sent_at;
  saved.blob_bytes = envelope.blob_bytes;
  saved.payload = written(
      [&](FieldWriter& out) { envelope.payload.type->write(out, envelope.payload.message.get()); },
      envelope.payload.message);
  return saved;
}

SavedFields save_actor(const Contract& contract, const Actor& actor) {
  if (contract.state.write == nullptr) return {};
  return written([&](FieldWriter& out) { contract.state.write(out, actor); });
}

Status restore_actor(const Contract& contract, const SavedFields& saved, Actor& actor) {
  if (contract.state.read == nullptr) {
    if (saved.body.empty()) return ok();
    return error(Code::kCorrupt, "actor '{}' has no state, and {} bytes of one were saved",
                 contract.name, saved.body.size());
  }
  MsgpackReader reader(saved.body.bytes(), saved.blobs);
  contract.state.read(reader, actor);
  const Status finished = reader.finish();
  if (finished.ok()) return ok();
  return Error(finished.error()).while_doing(fmt::format("the state of '{}'", contract.name));
}

SavedFields encode_group_state(const GroupState& state) {
  return written([&](FieldWriter& out) { wire::write(out, state); });
}

Result<GroupState> decode_group_state(const SavedFields& bytes) {
  MsgpackReader reader(bytes.body.bytes(), bytes.blobs);
  GroupState state;
  wire::read(reader, state);
  RETURN_IF_ERROR(reader.finish());
  return state;
}

}  // namespace primerl
