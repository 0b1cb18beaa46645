/// WireMessage: a message as frames, and the table of type numbers on the wire.
///
/// encode: Payload -> header, body, Blobs. decode: the reverse; anything that differs from what was
/// sent is refused, with the reason. The table is equal in both programs because both build it from
/// the same catalog; its hash is in the handshake. Immutable after construction, so any thread may
/// use it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "runtime/wire/frame.h"
#include "runtime/wire/msgpack_codec.h"

namespace primerl {

/// Numbers message types from 1 in order of their names; 0 is never a type.
class WireTypes {
 public:
  /// CHECKs that no two types share a name.
  explicit WireTypes(std::vector<const MessageType*> types);
  uint32_t id_of(const MessageType& type) const;  // CHECKs that the table has it
  const MessageType* find(uint32_t id) const;     // null when unknown
  size_t size() const { return types_.size(); }
  /// Hash of all names, versions and schemas.
  uint64_t hash() const { return hash_; }

 private:
  std::vector<const MessageType*> types_;                     // by name
  std::vector<std::pair<const MessageType*, uint32_t>> ids_;  // by address
  uint64_t hash_ = 0;
};

struct WireMessage {
  FrameHeader header;
  std::vector<std::byte> body;
  std::vector<Blob> blobs;
};

/// Fills num_frames, type, payload_bytes and check of `header`; the caller fills the rest.
Result<WireMessage> encode_wire(const Payload& payload, FrameHeader header, const WireTypes& types);

/// The decoded message, or the reason why it is refused; `error` has the text of a kBody refusal.
struct Decoded {
  FrameRefusal refusal = FrameRefusal::kNone;
  std::optional<Error> error;
  Payload payload;
};

/// `header` has been decoded already. Counts are not trusted: frames and bytes must match them.
Decoded decode_wire(const FrameHeader& header, std::span<const std::byte> body,
                    std::span<const Blob> blobs, const WireTypes& types);

}  // namespace primerl
