#include "runtime/wire/peer_frame.h"

#include "graph/base/bytes.h"
#include "runtime/wire/payload_check.h"

namespace primerl {

std::string_view to_string(PeerFrameKind kind) {
  switch (kind) {
    case PeerFrameKind::kHello:
      return "hello";
    case PeerFrameKind::kWelcome:
      return "welcome";
    case PeerFrameKind::kProbe:
      return "probe";
    case PeerFrameKind::kPosition:
      return "position";
    case PeerFrameKind::kAck:
      return "ack";
    case PeerFrameKind::kRefusal:
      return "refusal";
    case PeerFrameKind::kBye:
      return "bye";
    case PeerFrameKind::kBatches:
      return "batches";
    case PeerFrameKind::kChunk:
      return "chunk";
    case PeerFrameKind::kReads:
      return "reads";
    case PeerFrameKind::kReference:
      return "reference";
    case PeerFrameKind::kStream:
      return "stream";
  }
  return "none";
}

namespace {

FrameRefusal check_kind(uint8_t kind, Lane lane, uint64_t sequence, uint64_t payload_bytes) {
  if (kind < static_cast<uint8_t>(PeerFrameKind::kHello) ||
      kind > static_cast<uint8_t>(PeerFrameKind::kStream))
    return FrameRefusal::kKind;
  const auto known = static_cast<PeerFrameKind>(kind);
  const bool is_bulk = known == PeerFrameKind::kChunk || known == PeerFrameKind::kReference ||
                       known == PeerFrameKind::kStream;
  const bool is_small = known == PeerFrameKind::kBatches || known == PeerFrameKind::kReads;
  if ((is_small && lane != Lane::kFrames) || (is_bulk && lane != Lane::kBulk))
    return FrameRefusal::kKind;
  // Numbered kinds must have a sequence number, other kinds must not.
  if (is_numbered(known) != (sequence != 0)) return FrameRefusal::kKind;
  switch (known) {
    case PeerFrameKind::kProbe:
    case PeerFrameKind::kPosition:
    case PeerFrameKind::kAck:
    case PeerFrameKind::kBye:
      return payload_bytes == 0 ? FrameRefusal::kNone : FrameRefusal::kTooLong;
    case PeerFrameKind::kHello:
    case PeerFrameKind::kWelcome:
    case PeerFrameKind::kRefusal:
      return payload_bytes <= kGreetingBytesMax ? FrameRefusal::kNone : FrameRefusal::kTooLong;
    case PeerFrameKind::kReads:
      return payload_bytes == kReadsBytes ? FrameRefusal::kNone : FrameRefusal::kBytesDiffer;
    case PeerFrameKind::kReference:
      return payload_bytes == kReferenceBytes ? FrameRefusal::kNone : FrameRefusal::kBytesDiffer;
    case PeerFrameKind::kStream:
      return payload_bytes >= kStreamNumberBytes ? FrameRefusal::kNone : FrameRefusal::kBytesDiffer;
    case PeerFrameKind::kBatches:
    case PeerFrameKind::kChunk:
      return FrameRefusal::kNone;
  }
  return FrameRefusal::kKind;
}

}  // namespace

void encode_peer_frame_header(const PeerFrameHeader& header,
                              std::span<std::byte, kPeerFrameHeaderBytes> bytes) {
  std::byte* at = bytes.data();
  put_number<uint16_t>(at, kPeerProtocolMagic);
  put_number<uint8_t>(at + 2, kPeerProtocolVersion);
  put_number<uint8_t>(at + 3, static_cast<uint8_t>(header.kind));
  put_number<uint32_t>(at + 4, header.incarnation);
  put_number<uint32_t>(at + 8, header.peer_incarnation);
  put_number<uint32_t>(at + 12, header.process.value);
  put_number<uint64_t>(at + 16, header.sequence);
  put_number<uint64_t>(at + 24, header.acknowledged);
  put_number<uint64_t>(at + 32, header.payload_bytes);
  put_number<uint64_t>(at + 40, header.check);
}

FrameRefusal decode_peer_frame_header(std::span<const std::byte> bytes, Lane lane,
                                      uint64_t payload_bytes_max, PeerFrameHeader& header) {
  if (bytes.size() < kPeerFrameHeaderBytes) return FrameRefusal::kSize;
  const std::byte* at = bytes.data();
  if (take_number<uint16_t>(at) != kPeerProtocolMagic) return FrameRefusal::kMagic;
  if (take_number<uint8_t>(at + 2) != kPeerProtocolVersion) return FrameRefusal::kVersion;
  const auto sequence = take_number<uint64_t>(at + 16);
  const auto payload_bytes = take_number<uint64_t>(at + 32);
  const auto kind = take_number<uint8_t>(at + 3);
  const FrameRefusal refusal = check_kind(kind, lane, sequence, payload_bytes);
  if (refusal != FrameRefusal::kNone) return refusal;
  if (payload_bytes > payload_bytes_max) return FrameRefusal::kTooLong;
  // Incarnations count from 1.
  if (take_number<uint32_t>(at + 4) == 0) return FrameRefusal::kIncarnation;
  header.kind = static_cast<PeerFrameKind>(kind);
  header.incarnation = take_number<uint32_t>(at + 4);
  header.peer_incarnation = take_number<uint32_t>(at + 8);
  header.process = ProcessId(take_number<uint32_t>(at + 12));
  header.sequence = sequence;
  header.acknowledged = take_number<uint64_t>(at + 24);
  header.payload_bytes = payload_bytes;
  header.check = take_number<uint64_t>(at + 40);
  return FrameRefusal::kNone;
}

uint64_t frame_payload_hash(std::span<const std::byte> head, std::span<const std::byte> data) {
  return hash_bytes(data, hash_bytes(head, 0));
}

uint64_t frame_check(const PeerFrameHeader& header, uint64_t payload_hash) {
  std::array<std::byte, kPeerFrameHeaderBytes> bytes;
  encode_peer_frame_header(header, bytes);
  return hash_bytes(std::span(bytes).first(kPeerFrameHeaderBytes - sizeof header.check),
                    payload_hash);
}

uint8_t version_of_peer_frame(std::span<const std::byte> bytes) {
  if (bytes.size() < 3 || take_number<uint16_t>(bytes.data()) != kPeerProtocolMagic) return 0;
  return take_number<uint8_t>(bytes.data() + 2);
}

void encode_chunk_header(const ChunkHeader& header, std::span<std::byte, kChunkHeaderBytes> bytes) {
  put_number<uint64_t>(bytes.data(), header.object);
  put_number<uint64_t>(bytes.data() + 8, header.object_bytes);
  put_number<uint64_t>(bytes.data() + 16, header.offset);
}

ChunkHeader decode_chunk_header(std::span<const std::byte, kChunkHeaderBytes> bytes) {
  ChunkHeader header;
  header.object = take_number<uint64_t>(bytes.data());
  header.object_bytes = take_number<uint64_t>(bytes.data() + 8);
  header.offset = take_number<uint64_t>(bytes.data() + 16);
  return header;
}

void encode_reference(const BlobReference& reference, std::span<std::byte, kReferenceBytes> bytes) {
  put_number<uint64_t>(bytes.data(), reference.object);
  put_number<uint64_t>(bytes.data() + 8, reference.object_bytes);
  put_number<uint64_t>(bytes.data() + 16, reference.offset);
  put_number<uint32_t>(bytes.data() + 24, reference.slot);
  put_number<uint32_t>(bytes.data() + 28, reference.turn);
}

BlobReference decode_reference(std::span<const std::byte, kReferenceBytes> bytes) {
  BlobReference reference;
  reference.object = take_number<uint64_t>(bytes.data());
  reference.object_bytes = take_number<uint64_t>(bytes.data() + 8);
  reference.offset = take_number<uint64_t>(bytes.data() + 16);
  reference.slot = take_number<uint32_t>(bytes.data() + 24);
  reference.turn = take_number<uint32_t>(bytes.data() + 28);
  return reference;
}

}  // namespace primerl
