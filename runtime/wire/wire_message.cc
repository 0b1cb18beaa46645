#include "runtime/wire/wire_message.h"

#include <algorithm>

#include "runtime/wire/payload_check.h"

namespace primerl {

WireTypes::WireTypes(std::vector<const MessageType*> types) : types_(std::move(types)) {
  std::sort(types_.begin(), types_.end(),
            [](const auto* a, const auto* b) { return a->name < b->name; });
  for (size_t i = 0; i < types_.size(); ++i) {
    CHECK(i == 0 || types_[i - 1]->name != types_[i]->name, "two message types share a name");
    hash_ = mix(hash_, types_[i]->schema_hash);
    ids_.emplace_back(types_[i], static_cast<uint32_t>(i + 1));
  }
  std::sort(ids_.begin(), ids_.end());
}

uint32_t WireTypes::id_of(const MessageType& type) const {
  const auto found = std::lower_bound(ids_.begin(), ids_.end(), std::pair{&type, uint32_t{0}});
  CHECK(found != ids_.end() && found->first == &type, "a message type is not in the table");
  return found->second;
}

const MessageType* WireTypes::find(uint32_t id) const {
  return id == 0 || id > types_.size() ? nullptr : types_[id - 1];
}

Result<WireMessage> encode_wire(const Payload& payload, FrameHeader header,
                                const WireTypes& types) {
  ASSIGN_OR_RETURN(auto encoded, encode_in_body(payload));
  const size_t num_frames = kFrameCountMin + encoded.blobs.size();
  if (num_frames > kFrameCountMax)
    return error(Code::kExhausted, "a '{}' carries {} blobs, at most {} are allowed",
                 payload.type->name, encoded.blobs.size(), kFrameCountMax - kFrameCountMin);
  header.num_frames = static_cast<uint16_t>(num_frames);
  header.type = types.id_of(*payload.type);
  header.payload_bytes = encoded.body.size();
  for (const auto& blob : encoded.blobs) header.payload_bytes += blob.size();
  header.check = payload_check(payload);
  return WireMessage{header, std::move(encoded.body), std::move(encoded.blobs)};
}

Decoded decode_wire(const FrameHeader& header, std::span<const std::byte> body,
                    std::span<const Blob> blobs, const WireTypes& types) {
  Decoded decoded;
  const auto refuse = [&decoded](FrameRefusal refusal) {
    decoded.refusal = refusal;
    return decoded;
  };
  if (kFrameCountMin + blobs.size() != header.num_frames)
    return refuse(FrameRefusal::kFramesDiffer);
  uint64_t num_bytes = body.size();
  for (const auto& blob : blobs) num_bytes += blob.size();
  if (num_bytes != header.payload_bytes) return refuse(FrameRefusal::kBytesDiffer);
  const MessageType* type = types.find(header.type);
  if (type == nullptr) return refuse(FrameRefusal::kUnknownType);
  auto payload = decode_message(*type, body, blobs);
  if (!payload.ok()) {
    decoded.error = payload.error();
    return refuse(FrameRefusal::kBody);
  }
  if (payload_check(*payload) != header.check) return refuse(FrameRefusal::kCheck);
  decoded.payload = std::move(payload).value();
  return decoded;
}

}  // namespace primerl
